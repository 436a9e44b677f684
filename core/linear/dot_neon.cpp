#if defined(__aarch64__)
#include <arm_neon.h>

#include "linear/dot.h"

namespace tw {
namespace {

struct Vec {
  using V = float32x4_t;
  using Words = uint32x4_t;
  static constexpr size_t kPanel = 2048, kMostInputs = 4;
  static constexpr size_t rows(size_t inputs) { return inputs == 1 ? 2 : 8 / inputs; }
  static inline V multiply_add(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  static inline float sum(V v) {
    const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static inline V widen(const uint8_t* from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
};

}  // namespace
}  // namespace tw

#include "linear/sums_impl.h"

namespace tw {
namespace {

const DotKernels* find(tw_order order, WeightFormat format) {
  if (order == TW_SUMS_32) return find_sums<32>(format);
  return order == TW_SUMS_64 ? find_sums<64>(format) : nullptr;
}

}  // namespace

extern const FindDot kFindDotNeon;
const FindDot kFindDotNeon = find;

}  // namespace tw
#endif
