#include <cmath>
#include <cstdint>
#include <cstring>

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
  static constexpr unsigned long kWidth = 1;
  static constexpr unsigned long kMostInputs = 4;
  static constexpr unsigned long rows(unsigned long) { return 1; }
  static V zero() { return 0.0f; }
  static V load(const float* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(float* to, V v) { std::memcpy(to, &v, sizeof v); }
  static V multiply_add(V a, V b, V c) { return std::fma(a, b, c); }
  static V add(V a, V b) { return a + b; }
  static float sum(V v) { return v; }
  static uint32_t half(const uint8_t* from, unsigned i) {
    uint16_t word;
    std::memcpy(&word, from + 2 * i, sizeof word);
    return word;
  }
  static void load_bf16(const uint8_t* from, V* w) {
    for (unsigned i = 0; i < 16; ++i) {
      w[i] = float_of(half(from, 2 * i) << 16);
      w[16 + i] = float_of(half(from, 2 * i + 1) << 16);
    }
  }
  static void load_f16(const uint8_t* from, V* w) {
    for (unsigned i = 0; i < 32; ++i) w[i] = float_of_f16(half(from, i));
  }
};

}  // namespace
}  // namespace tw

#include "linear/dot_impl.h"

namespace tw {
extern const DotKernels kDotScalar;
const DotKernels kDotScalar = {dot, add_terms, total, false};
}  // namespace tw
