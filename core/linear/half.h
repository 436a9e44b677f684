// Words of BF16 and F16 as floats.
#pragma once
#include <cstdint>

#include "common/bits.h"

namespace tw {

static inline float float_of_bits(uint32_t bits) { return load<float>(&bits); }

static inline float float_of_bf16(uint16_t word) { return float_of_bits(uint32_t{word} << 16); }

static inline float float_of_f16(uint16_t word) {
  const uint32_t sign = (word & 0x8000u) << 16, exponent = word >> 10 & 31, mantissa = word & 0x3ffu;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0));
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

}  // namespace tw
