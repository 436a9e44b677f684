#include "coders/step_classes.h"

#include <array>

namespace tw {
namespace {

constexpr unsigned kMaxLog = 20 << kLogFraction;

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

}  // namespace

StepClasses classes_of(const Layout& dtype, const Thresholds& thresholds) {
  StepClasses classes = {thresholds.num_classes, {}};
  for (unsigned c = 0; c + 1 < classes.count; ++c) {
    classes.limits[c] = uint64_t{thresholds.thresholds[c]} << dtype.exponent_shift();
  }
  return classes;
}

uint64_t rice_cost(uint64_t n, uint64_t m) {
  if (m == 0) return 0;
  const uint32_t high = log2_64ths(static_cast<uint32_t>(n)), low = log2_64ths(static_cast<uint32_t>(m));
  const uint32_t log = high > low ? high - low : 0;
  return m * kGapCosts[log < kMaxLog ? log : kMaxLog - 1];
}

}  // namespace tw
