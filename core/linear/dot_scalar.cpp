#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/bits.h"

namespace tw {
namespace {

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float float_of_f16(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ffu;
  if (exponent == 31) return float_of(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
  if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

struct Vec {
  using V = float;
  using Words = uint32_t;
  static constexpr unsigned long kMostInputs = 4;
  static constexpr unsigned long rows(unsigned long) { return 1; }
  static V multiply_add(V a, V b, V c) { return std::fma(a, b, c); }
  static float sum(V v) { return v; }
  static V widen(const uint8_t* from) { return float_of_f16(load<uint16_t>(from)); }
};

}  // namespace
}  // namespace tw

#include "linear/dot_impl.h"

namespace tw {
extern const DotKernels kDotScalar;
const DotKernels kDotScalar = {dot, add_terms, total, false};
}  // namespace tw
