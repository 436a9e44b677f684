#include "coders/class_costs.h"
#include "common/cpu.h"

namespace tw {
namespace {

// By log2(n / m): the bits of a gap in units of 2^-8. With q = 1 - m / n the quotient of a gap by 2^k is on average
// 1 / (1 - q^(2^k)) - 1.
constexpr std::array<uint16_t, kMaxGapLog> make_gap_costs() {
  constexpr uint64_t one = uint64_t{1} << 32, root = 4248701965;  // 2^-(1 / 64) in units of 2^-32
  std::array<uint16_t, kMaxGapLog> costs{};
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

}  // namespace

constexpr std::array<uint16_t, kMaxGapLog> kGapCosts = make_gap_costs();

StepClasses classes_of(const Layout& dtype, const Thresholds& thresholds) {
  StepClasses classes = {thresholds.num_classes, {}};
  for (unsigned c = 0; c + 1 < classes.count; ++c) {
    classes.limits[c] = uint64_t{thresholds.thresholds[c]} << dtype.exponent_shift();
  }
  return classes;
}

extern const ClassCostKernels kClassCostScalar, kClassCostAvx2;

const ClassCostKernels& class_cost_kernels = pick<kClassCostScalar, kClassCostAvx2, kClassCostAvx2>();

}  // namespace tw
