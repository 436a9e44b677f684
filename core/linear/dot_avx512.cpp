#if defined(__x86_64__)
#include "common/avx512.h"

namespace tw {
namespace {

struct Vec {
  using V = __m512;
  static constexpr unsigned long kWidth = 16;
  static constexpr unsigned long kMostInputs = 4;
  static constexpr unsigned long rows(unsigned long inputs) { return inputs == 4 ? 2 : 4; }
  static inline V zero() { return _mm512_setzero_ps(); }
  static inline V load(const float* from) { return _mm512_loadu_ps(from); }
  static inline void store(float* to, V v) { _mm512_storeu_ps(to, v); }
  static inline V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
  static inline float sum(V v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static inline __attribute__((always_inline)) void load_bf16(const unsigned char* from, V* w) {
    const __m512i words = _mm512_loadu_si512(from);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static inline __attribute__((always_inline)) void load_f16(const unsigned char* from, V* w) {
    w[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    w[1] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32)));
  }
};

}  // namespace
}  // namespace tw

#include "linear/dot_impl.h"

namespace tw {
extern const DotKernels kDotAvx512;
const DotKernels kDotAvx512 = {dot, add_terms, total, true};
}  // namespace tw
#endif
