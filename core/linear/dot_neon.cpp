#if defined(__aarch64__)
#include <arm_neon.h>

namespace tw {
namespace {

struct Vec {
  using V = float32x4_t;
  using Words = uint32x4_t;
  static constexpr unsigned long kMostInputs = 2;
  static constexpr unsigned long rows(unsigned long inputs) { return inputs == 1 ? 2 : 1; }
  static inline V multiply_add(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  static inline float sum(V v) {
    const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static inline V widen(const unsigned char* from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
};

}  // namespace
}  // namespace tw

#include "linear/dot_impl.h"

namespace tw {
extern const DotKernels kDotNeon;
const DotKernels kDotNeon = {dot, add_terms, total, false};
}  // namespace tw
#endif
