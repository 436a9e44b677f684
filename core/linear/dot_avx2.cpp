#if defined(__x86_64__)
#include <immintrin.h>

namespace tw {
namespace {

struct Vec {
  using V = __m256;
  static constexpr unsigned long kWidth = 8;
  static constexpr unsigned long kMostInputs = 2;
  static constexpr unsigned long rows(unsigned long inputs) { return inputs == 1 ? 2 : 1; }
  static inline V zero() { return _mm256_setzero_ps(); }
  static inline V load(const float* from) { return _mm256_loadu_ps(from); }
  static inline void store(float* to, V v) { _mm256_storeu_ps(to, v); }
  static inline V multiply_add(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static inline V add(V a, V b) { return _mm256_add_ps(a, b); }
  static inline float sum(V v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static inline __attribute__((always_inline)) void load_bf16(const unsigned char* from, V* w) {
    const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    for (unsigned i = 0; i < 2; ++i) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
      w[i] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
      w[2 + i] = _mm256_castsi256_ps(_mm256_and_si256(words, odd));
    }
  }
  static inline __attribute__((always_inline)) void load_f16(const unsigned char* from, V* w) {
    for (unsigned i = 0; i < 4; ++i)
      w[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
  }
};

}  // namespace
}  // namespace tw

#include "linear/dot_impl.h"

namespace tw {
extern const DotKernels kDotAvx2;
const DotKernels kDotAvx2 = {dot, add_terms, total, false};
}  // namespace tw
#endif
