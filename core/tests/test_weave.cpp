// Words from exponents and untrimmed fields on the target that TENSORWIRE_CPU names, segment by segment.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "common/dtype.h"
#include "tests/check.h"
#include "tests/target.h"
#include "transforms/planes.h"
#include "transforms/words.h"

namespace {

std::mt19937_64 random_bits(3);

// Each word as docs/format.md says: its exponent, and its rest as the field has it.
struct Parts {
  std::vector<uint8_t> exponents, field;
};

Parts parts_of(const tw::Dtype& dtype, const std::vector<uint8_t>& words, size_t n) {
  const unsigned exponent_bits = dtype.exponent_bits, rest_bits = dtype.rest_bits;
  Parts parts = {std::vector<uint8_t>(n + tw::kSlack), {}};
  std::vector<uint8_t> rests(n * dtype.rest_nbytes() + tw::kSlack);
  for (size_t i = 0; i < n; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, words.data() + i * dtype.word_nbytes, dtype.word_nbytes);
    if (dtype.split == tw::Split::kSigned) word ^= uint64_t{1} << (8 * dtype.word_nbytes - 1);
    const bool has_sign = dtype.split == tw::Split::kFloat;
    const unsigned shift = dtype.exponent_shift();
    parts.exponents[i] = static_cast<uint8_t>(word >> shift & ((1u << exponent_bits) - 1));
    uint64_t rest = word & ((uint64_t{1} << shift) - 1);
    if (has_sign) rest |= word >> (8 * dtype.word_nbytes - 1) << dtype.exponent_shift();
    std::memcpy(rests.data() + i * dtype.rest_nbytes(), &rest, dtype.rest_nbytes());
  }
  parts.field.resize(tw::field_nbytes(n, rest_bits) + tw::kSlack);
  tw::word_kernels.pack_numbers(dtype.rest_nbytes(), rest_bits, 0, rests.data(), n, parts.field.data());
  return parts;
}

void test_weave(const tw::Dtype& dtype, size_t n) {
  std::vector<uint8_t> words(n * dtype.word_nbytes);
  for (uint8_t& byte : words) byte = static_cast<uint8_t>(random_bits());
  const Parts parts = parts_of(dtype, words, n);
  for (size_t segment : {size_t{256}, size_t{512}, tw::kSegment}) {
    std::vector<uint8_t> out(words.size() + 8, 0xee);
    for (size_t first = 0; first < n; first += segment) {
      const size_t count = n - first < segment ? n - first : segment;
      tw::word_kernels.weave(dtype, parts.exponents.data() + first, parts.field.data(), n, first, count,
                             out.data() + first * dtype.word_nbytes);
    }
    CHECK(std::memcmp(out.data(), words.data(), words.size()) == 0);
    for (size_t i = words.size(); i < out.size(); ++i) CHECK(out[i] == 0xee);
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  for (const char* name : {"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "I8", "U8"}) {
    for (size_t n : {1, 3, 31, 128, 255, 256, 257, 511, 512, 700, 2048, 2049, 5000}) {
      test_weave(tw::find_dtype(name)->layout, n);
    }
  }
  std::printf("ok\n");
  return 0;
}
