#if defined(__aarch64__)
#include <arm_neon.h>

#include "coders/enec.h"

namespace tw {
namespace {

struct QuadPlaces {
  // Byte j: its place among the bytes of the quads at set bits; 255, which looks up 0, in other quads.
  uint8_t of[16][16];
};

constexpr QuadPlaces make_places() {
  QuadPlaces places{};
  for (unsigned flags = 0; flags < 16; ++flags) {
    uint8_t next = 0;
    for (unsigned j = 0; j < 16; ++j) places.of[flags][j] = (flags >> (j / kQuad) & 1) != 0 ? next++ : 255;
  }
  return places;
}

constexpr QuadPlaces kPlaces = make_places();

size_t merge(const EnecMap& map, const uint8_t* quads, const uint8_t* high, size_t n, uint8_t* out) {
  const uint8x16_t base = vdupq_n_u8(map.base);
  const uint8x16_t sign = vdupq_n_u8(map.sign);
  const uint8x16_t mask = vdupq_n_u8(map.mask);
  const int8x16_t m = vdupq_n_s8(static_cast<int8_t>(map.m));
  const uint8_t* next = high;
  for (size_t i = 0; i < n; i += 16) {
    const unsigned flags = quads[i / 32] >> (i / 4 % 8) & 15;
    const uint8x16_t spread = vqtbl1q_u8(vld1q_u8(next), vld1q_u8(kPlaces.of[flags]));
    next += kQuad * static_cast<size_t>(__builtin_popcount(flags));
    const uint8x16_t y = vorrq_u8(vld1q_u8(out + i), vshlq_u8(spread, m));
    vst1q_u8(out + i, vandq_u8(vsubq_u8(base, veorq_u8(y, sign)), mask));
  }
  return static_cast<size_t>(next - high);
}

}  // namespace

extern const EnecKernels kEnecNeon;
const EnecKernels kEnecNeon = {merge};

}  // namespace tw
#endif
