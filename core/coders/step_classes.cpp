#include "coders/step_classes.h"

#include <array>

namespace tw {
namespace {

constexpr unsigned kFraction = 6;  // of logarithms
constexpr unsigned kMaxLog = 20 << kFraction;

// By log2(n / m): the bits of a gap in units of 2^-8. With q = 1 - m / n the quotient of a gap by 2^k is on average
// 1 / (1 - q^(2^k)) - 1.
constexpr std::array<uint16_t, kMaxLog> make_gap_costs() {
  constexpr uint64_t one = uint64_t{1} << 32, root = 4248701965;  // 2^-(1 / 64) in units of 2^-32
  std::array<uint16_t, kMaxLog> costs{};
  uint64_t p = one;
  for (uint16_t& cost : costs) {
    uint64_t best = UINT64_MAX, q = one - p;
    for (unsigned k = 0; k < 20; ++k, q = q * q >> 32) {
      const uint64_t bits = (uint64_t{k} << kCostFraction) + (one << kCostFraction) / (one - q);
      if (bits < best) best = bits;
    }
    cost = static_cast<uint16_t>(best);
    p = p * root >> 32;
  }
  return costs;
}
constexpr std::array<uint16_t, kMaxLog> kGapCosts = make_gap_costs();

// log2(1 + i / 64) in units of 2^-6, rounded to the nearest.
constexpr uint8_t kLogs[64] = {0,  1,  3,  4,  6,  7,  8,  10, 11, 12, 13, 15, 16, 17, 18, 19, 21, 22, 23, 24, 25, 26,
                               27, 28, 29, 30, 31, 32, 34, 35, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 47,
                               48, 49, 50, 51, 52, 52, 53, 54, 55, 56, 56, 57, 58, 59, 60, 60, 61, 62, 63, 63};

}  // namespace

StepClasses classes_of(const Dtype& dtype, const Thresholds& thresholds) {
  StepClasses classes = {thresholds.num_classes, {}};
  for (unsigned c = 0; c + 1 < classes.count; ++c) {
    classes.limits[c] = uint64_t{thresholds.thresholds[c]} << dtype.exponent_shift();
  }
  return classes;
}

uint32_t log2_64ths(uint64_t x) {
  const unsigned length = bit_length(x);
  return (length - 1) << kFraction | kLogs[(x << (64 - length) >> (63 - kFraction)) & 63];
}

uint64_t rice_cost(uint64_t n, uint64_t m) {
  if (m == 0) return 0;
  const uint32_t high = log2_64ths(n), low = log2_64ths(m);
  const uint32_t log = high > low ? high - low : 0;
  return m * kGapCosts[log < kMaxLog ? log : kMaxLog - 1];
}

}  // namespace tw
