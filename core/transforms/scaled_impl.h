// One word of kind scaled. Everything is local to the including source.
#pragma once
#include <cstring>

#include "transforms/scaled.h"

namespace tw {
namespace {

constexpr uint8_t kNoNumber = 0x7f;  // magnitude of the code of F8_E4M3 that is NaN

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint16_t rounded(float x) {
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Without a subnormal number on the way, which some threads take for zero.
inline float of_f8_e4m3(uint8_t code) {
  const uint32_t exponent = code >> 3 & 15, sign = uint32_t{code} << 24 & 0x80000000;
  const float mantissa = static_cast<float>((code & 7) + (exponent != 0 ? 8 : 0));
  const float unit = of_bits((117 + exponent + (exponent == 0)) << 23);
  return of_bits(bits_of(mantissa * unit) | sign);
}

inline float of_i8(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }

template <class Value>
void multiply_each(Value&& value, const uint8_t* numbers, size_t n, float scale, uint8_t* words) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t word = rounded(value(numbers[i]) * scale);
    std::memcpy(words + 2 * i, &word, sizeof word);
  }
}

inline bool multiply_portable(Codes codes, const uint8_t* numbers, size_t n, float scale, uint8_t* words) {
  if (codes == Codes::kI8) {
    multiply_each(of_i8, numbers, n, scale, words);
    return true;
  }
  multiply_each(of_f8_e4m3, numbers, n, scale, words);
  bool sound = true;
  for (size_t i = 0; i < n; ++i) sound &= (numbers[i] & kNoNumber) != kNoNumber;
  return sound;
}

}  // namespace
}  // namespace tw
