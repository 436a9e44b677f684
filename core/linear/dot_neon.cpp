#if defined(__aarch64__)
#include <arm_neon.h>

namespace tw {
namespace {

struct Vec {
  using V = float32x4_t;
  static constexpr unsigned long kWidth = 4;
  static constexpr unsigned long kMostInputs = 2;
  static constexpr unsigned long rows(unsigned long inputs) { return inputs == 1 ? 2 : 1; }
  static inline V zero() { return vdupq_n_f32(0.0f); }
  static inline V load(const float* from) { return vld1q_f32(from); }
  static inline void store(float* to, V v) { vst1q_f32(to, v); }
  static inline V multiply_add(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  static inline V add(V a, V b) { return vaddq_f32(a, b); }
  static inline float sum(V v) {
    const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static inline __attribute__((always_inline)) void load_bf16(const unsigned char* from, V* w) {
    const uint32x4_t odd = vdupq_n_u32(0xffff0000u);
    for (unsigned i = 0; i < 4; ++i) {
      const uint32x4_t words = vreinterpretq_u32_u8(vld1q_u8(from + 16 * i));
      w[i] = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
      w[4 + i] = vreinterpretq_f32_u32(vandq_u32(words, odd));
    }
  }
  static inline __attribute__((always_inline)) void load_f16(const unsigned char* from, V* w) {
    for (unsigned i = 0; i < 8; ++i) w[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 8 * i)));
  }
};

}  // namespace
}  // namespace tw

#include "linear/dot_impl.h"

namespace tw {
extern const DotKernels kDotNeon;
const DotKernels kDotNeon = {dot, add_terms, total, false};
}  // namespace tw
#endif
