// What profile fast writes ahead of its plan: a block is coded to the same bytes whatever the blocks before are, and
// the kernel that splits words into planes does what those do that split and pack in turn.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "frame/header.h"
#include "tests/frames.h"
#include "tests/layouts.h"
#include "tests/target.h"
#include "transforms/planes.h"
#include "transforms/words.h"

namespace {

using tests::Bytes;
constexpr uint8_t kMark = 0xa5;
constexpr const char* kDtypes[] = {"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "I8", "U8"};
std::mt19937_64 random_bits(7);
std::normal_distribution<double> normal;

enum Content { kWeights, kLarger, kTrimmed, kNoise, kOneExponent, kFewZeros, kConstant, kNumContents };

// Exponents of weights are those of normal numbers; the larger ones have another first tier.
uint64_t word(const tw::Layout& dtype, Content content) {
  const uint64_t noise = random_bits();
  const unsigned bits = 8 * dtype.word_nbytes, rest_bits = bits - dtype.exponent_bits;
  const int top = (1 << dtype.exponent_bits) - (content == kLarger ? 3 : 5);
  int scale = 0;
  std::frexp(normal(random_bits), &scale);
  if (content == kNoise) return noise;
  if (content == kConstant) return 5;
  if (content == kFewZeros && noise >> 56 == 0) return 0;
  const uint64_t exponent = static_cast<uint64_t>(content == kOneExponent ? top : std::max(1, top + scale));
  const uint64_t mantissa = content == kTrimmed ? noise & ~uint64_t{1} : noise;
  const uint64_t sign = dtype.split == tw::Split::kFloat ? noise >> 63 << (bits - 1) : 0;
  const unsigned low_bits = dtype.split == tw::Split::kFloat ? rest_bits - 1 : rest_bits;
  return sign | exponent << low_bits | (mantissa & ((uint64_t{1} << low_bits) - 1));
}

Bytes words(const tw::Layout& dtype, Content content, size_t n) {
  Bytes all(n * dtype.word_nbytes);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t one = word(dtype, content);
    std::memcpy(all.data() + i * dtype.word_nbytes, &one, dtype.word_nbytes);
  }
  return all;
}

Bytes compress(const char* dtype, const Bytes& content, uint32_t block_words, uint32_t profile, tw_frame* frame) {
  *frame = tests::new_frame(dtype, 0, {content.size() / tw::find_dtype(dtype)->layout.word_nbytes}, profile,
                            tests::BlockWords(block_words));
  return tests::compress(frame, content);
}

// The blocks of a frame, and each of them alone.
void check_blocks(const char* name, uint32_t block_words, uint32_t profile) {
  const tw::Layout& dtype = tw::find_dtype(name)->layout;
  std::vector<Bytes> blocks;
  Bytes all;
  for (unsigned i = 0; i < 24; ++i) {
    // Two of a kind in a row are frequent.
    const Content content = i % 2 == 1 && random_bits() % 4 != 0 ? kWeights : Content(random_bits() % kNumContents);
    blocks.push_back(words(dtype, content, i == 23 ? block_words - 100 : block_words));
    all.insert(all.end(), blocks.back().begin(), blocks.back().end());
  }
  tw_frame frame, alone;
  const Bytes together = compress(name, all, block_words, profile, &frame);
  size_t at = frame.header_nbytes;
  for (const Bytes& block : blocks) {
    const Bytes one = compress(name, block, block_words, profile, &alone);
    CHECK(at + alone.data_nbytes <= together.size());
    CHECK(std::memcmp(together.data() + at, one.data() + alone.header_nbytes, alone.data_nbytes) == 0);
    at += alone.data_nbytes;
  }
  CHECK(at == together.size());
}

void check_unweave(const tw::Layout& dtype, size_t n, size_t tile) {
  const unsigned nbytes = dtype.rest_nbytes(), width = dtype.rest_bits;
  const Bytes content = words(dtype, kNoise, n);
  Bytes exponents(n), expected(n), rests(n * nbytes + tw::kSlack);
  Bytes field(tw::field_nbytes(n, width) + 1, kMark), expected_field(field);
  std::vector<uint64_t> runs(n / tw::kRun), expected_runs(runs);
  tw::word_kernels.split(dtype, content.data(), n, expected.data(), rests.data(), expected_runs.data());
  tw::word_kernels.pack_numbers(nbytes, width, 0, rests.data(), n, expected_field.data());
  for (size_t first = 0; first < n; first += tile) {
    const size_t count = n - first < tile ? n - first : tile;
    tw::word_kernels.unweave(dtype, content.data() + first * dtype.word_nbytes, n, first, count,
                             exponents.data() + first, field.data(), runs.data() + first / tw::kRun);
  }
  CHECK(exponents == expected);
  CHECK(field == expected_field);
  CHECK(runs == expected_runs);
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  for (const tw::Layout& layout : tests::split_layouts()) {
    for (const size_t n : {256u, 512u, 2048u, 4864u}) {
      check_unweave(layout, n, 256);
      check_unweave(layout, n, 2048);
    }
  }
  for (const char* dtype : kDtypes) {
    for (const uint32_t profile : {TW_ENEC, TW_FAST, TW_COMPACT}) {
      check_blocks(dtype, 1024, profile);
      check_blocks(dtype, 9216, profile);  // beyond what is small
    }
  }
  std::printf("ok\n");
  return 0;
}
