#if defined(__aarch64__)
#include <arm_neon.h>

#include "coders/byte_select.h"
#include "coders/cascade.h"

namespace tw {
namespace {

// Bit j is set where byte j is all ones; only the first `count` bytes are looked at.
inline unsigned mask_of(uint8x8_t equal, size_t count) {
  const uint8x8_t bits = vcreate_u8(0x8040201008040201);
  const unsigned mask = vaddv_u8(vand_u8(equal, bits));
  return count < 8 ? mask & ((1u << count) - 1) : mask;
}

size_t expand(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out) {
  const uint8x16_t lookup = vld1q_u8(names);
  const uint8x8_t escapes = vdup_n_u8(escape);
  const uint8_t* source = next;
  for (size_t i = 0; i < n; i += 8) {
    const uint8x8_t digits = vld1_u8(out + i);
    const uint8x8_t escaped = vceq_u8(digits, escapes);
    const unsigned mask = mask_of(escaped, n - i);
    const uint8x8_t spread = vtbl1_u8(vld1_u8(source), vcreate_u8(kByteSelect.expand[mask]));
    vst1_u8(out + i, vbsl_u8(escaped, spread, vqtbl1_u8(lookup, digits)));
    source += __builtin_popcount(mask);
  }
  return static_cast<size_t>(source - next);
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
             uint8_t* digits, uint8_t* next) {
  const uint8x8_t starts = vdup_n_u8(start), belows = vdup_n_u8(below), gaps = vdup_n_u8(gap);
  const uint8x8_t escapes = vdup_n_u8(escape);
  uint8_t* target = next;
  for (size_t i = 0; i < n; i += 8) {
    const uint8x8_t x = vld1_u8(exponents + i);
    const uint8x8_t d = vsub_u8(x, starts);
    const uint8x8_t digit = vmin_u8(vsub_u8(d, vand_u8(vcge_u8(d, belows), gaps)), escapes);
    vst1_u8(digits + i, digit);
    const unsigned mask = mask_of(vceq_u8(digit, escapes), n - i);
    vst1_u8(target, vtbl1_u8(x, vcreate_u8(kByteSelect.compress[mask])));
    target += __builtin_popcount(mask);
  }
  return static_cast<size_t>(target - next);
}

}  // namespace

extern const CascadeKernels kCascadeNeon;
const CascadeKernels kCascadeNeon = {expand, split};

}  // namespace tw
#endif
