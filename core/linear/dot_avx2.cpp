#if defined(__x86_64__)
#include <immintrin.h>

namespace tw {
namespace {

struct Vec {
  using V = __m256;
  typedef unsigned Words __attribute__((vector_size(32)));
  static constexpr unsigned long kMostInputs = 2;
  static constexpr unsigned long rows(unsigned long inputs) { return inputs == 1 ? 2 : 1; }
  static inline V multiply_add(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static inline float sum(V v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static inline V widen(const unsigned char* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
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
