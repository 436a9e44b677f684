// Kernels of one-bit and of two-bit digits against planes and tiers in turn, with few escapes, some, and nothing else;
// the output is not exceeded, and a tier may be split in place.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "coders/cascade.h"
#include "coders/one_bit.h"
#include "coders/two_bits.h"
#include "tests/check.h"
#include "tests/target.h"

namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint8_t kEscape = 3, kMark = 0xa5;

// Exponents of a tier: of each 256, `named` or fewer that it names; none of those of earlier tiers.
Bytes exponents(size_t n, unsigned start, unsigned below, unsigned gap, unsigned named) {
  std::mt19937 random(static_cast<unsigned>(n) * 257 + named);
  Bytes all(n + tw::kSlack);
  for (size_t i = 0; i < n; ++i) {
    const unsigned any = static_cast<unsigned>(random()), digit = any >> 8 & 3;
    all[i] = static_cast<uint8_t>(any % 256 < named ? start + digit + (digit >= below ? gap : 0)
                                                    : start + kEscape + gap + (any >> 16) % 100);
  }
  return all;
}

void check_two_bits(size_t runs, unsigned start, unsigned below, unsigned gap, unsigned named) {
  const size_t n = runs * tw::kRun, field_nbytes = n / 4;
  const Bytes x = exponents(n, start, below, gap, named);
  const uint8_t s = static_cast<uint8_t>(start), b = static_cast<uint8_t>(below), g = static_cast<uint8_t>(gap);

  Bytes digits(n + tw::kSlack), expected(n + tw::kSlack), expected_field(field_nbytes + 1, kMark);
  const size_t escapes = tw::cascade_kernels.split(s, b, g, kEscape, x.data(), n, digits.data(), expected.data());
  tw::plane_kernels.pack_field(2, digits.data(), n, expected_field.data());
  Bytes next = x, field(field_nbytes + 1, kMark);
  CHECK(tw::two_bit_kernels.split(s, b, g, next.data(), runs, field.data(), next.data()) == escapes);
  CHECK(std::memcmp(next.data(), expected.data(), escapes) == 0);
  CHECK(field == expected_field);

  uint32_t expected_counts[4] = {}, counts[2];
  for (size_t i = 0; i < n; ++i) ++expected_counts[digits[i]];
  tw::two_bit_kernels.count(field.data(), runs, counts);
  CHECK(counts[0] == expected_counts[1] && counts[1] == expected_counts[2]);

  tw::DigitNames names;
  for (unsigned i = 0; i < tw::kMaxNames; ++i) {
    const auto name = [&](unsigned d) { return static_cast<uint8_t>(start + d + (d >= below ? gap : 0)); };
    names.low[i] = name(i & 3);
    names.high[i] = name(i >> 2);
  }
  Bytes out(n + 1, kMark);
  CHECK(tw::two_bit_kernels.expand(field.data(), names, next.data(), runs, out.data()) == escapes);
  CHECK(std::memcmp(out.data(), x.data(), n) == 0);
  CHECK(out[n] == kMark);
}

void check_one_bit(size_t runs, uint8_t name, unsigned escaped) {
  if (tw::one_bit_kernels.expand == nullptr) return;
  const size_t n = runs * tw::kRun;
  std::mt19937 random(static_cast<unsigned>(n) * 257 + escaped);
  Bytes digits(n + tw::kSlack), next(n + tw::kSlack), field(n / 8);
  for (size_t i = 0; i < n; ++i) digits[i] = random() % 256 < escaped;
  for (uint8_t& x : next) x = static_cast<uint8_t>(random());
  tw::plane_kernels.pack_field(1, digits.data(), n, field.data());

  uint8_t names[tw::kMaxNames] = {};
  for (unsigned i = 0; i < tw::kMaxNames; i += 2) names[i] = name;
  Bytes expected = digits, out(n + 1, kMark);
  const size_t used = tw::cascade_kernels.expand(1, names, next.data(), n, expected.data());
  CHECK(tw::one_bit_kernels.expand(field.data(), name, next.data(), runs, out.data()) == used);
  CHECK(std::memcmp(out.data(), expected.data(), n) == 0);
  CHECK(out[n] == kMark);
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  for (const size_t runs : {0u, 1u, 2u, 7u, 8u, 9u, 33u}) {
    for (const unsigned named : {0u, 1u, 128u, 200u, 255u, 256u}) {
      check_two_bits(runs, 120, 0, 0, named);
      check_two_bits(runs, 117, 3, 3, named);
      check_two_bits(runs, 119, 1, 10, named);
      check_two_bits(runs, 0, 0, 3, named);
    }
  }
  for (const size_t runs : {0u, 1u, 2u, 7u, 33u}) {
    for (const unsigned escaped : {0u, 1u, 60u, 128u, 255u, 256u}) check_one_bit(runs, 117, escaped);
  }
  std::printf("ok\n");
  return 0;
}
