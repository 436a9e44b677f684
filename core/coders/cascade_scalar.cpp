#include "coders/cascade.h"

namespace tw {
namespace {

size_t expand(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out) {
  size_t used = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool escaped = out[i] == escape;
    out[i] = escaped ? next[used] : names[out[i]];
    used += escaped;
  }
  return used;
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
             uint8_t* digits, uint8_t* next) {
  size_t escapes = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t x = exponents[i];
    uint8_t digit = static_cast<uint8_t>(x - start);
    if (digit >= below) digit = static_cast<uint8_t>(digit - gap);
    if (digit > escape) digit = escape;
    digits[i] = digit;
    next[escapes] = x;
    escapes += digit == escape;
  }
  return escapes;
}

}  // namespace

extern const CascadeKernels kCascadeScalar;
const CascadeKernels kCascadeScalar = {expand, split};

}  // namespace tw
