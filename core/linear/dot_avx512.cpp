#if defined(__x86_64__)
#include "common/avx512.h"

namespace tw {
namespace {

struct Vec {
  using V = __m512;
  typedef unsigned Words __attribute__((vector_size(64)));
  static constexpr unsigned long kMostInputs = 4;
  static constexpr unsigned long rows(unsigned long inputs) { return inputs == 4 ? 2 : 4; }
  static inline V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline float sum(V v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static inline V widen(const unsigned char* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
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
