// A layout out of seven bits of an input: two for the bytes of a word, three for the exponent's bits, two for the
// split.
#pragma once
#include <cstdint>

#include "tensorwire.h"

inline tw_layout layout_of(uint8_t bits, bool ordered) {
  const auto width = static_cast<uint8_t>(1 << (bits & 3)), exponent_bits = static_cast<uint8_t>(1 + (bits >> 2 & 7));
  const uint8_t split = bits >> 5 & 3;
  if (split == TW_WHOLE) return {width, 0, 0, TW_WHOLE, ordered};
  const auto rest_bits = static_cast<uint8_t>(8 * width - exponent_bits);
  const bool no_sign = split == TW_FLOAT && rest_bits == 0;
  return {width, exponent_bits, rest_bits, no_sign ? static_cast<uint8_t>(TW_UNSIGNED) : split, ordered};
}
