#if defined(__x86_64__)
#include "coders/digit_words_avx512.h"
#include "common/avx512.h"
#include "linear/dot.h"

namespace tw {
namespace {

struct Vec {
  using V = __m512;
  typedef uint32_t Words __attribute__((vector_size(64)));
  static constexpr size_t pair(size_t, size_t lane) { return lane; }
  static inline V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline void load(const uint8_t* from, Words* words) {
    *words = reinterpret_cast<Words>(_mm512_loadu_si512(from));
  }
  static inline float total(const V* sums) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(*sums), _mm512_extractf32x8_ps(*sums, 1));
    const __m256 pairs = _mm256_hadd_ps(eight, eight), fours = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
  }
};

}  // namespace
}  // namespace tw

#include "linear/gemv_impl.h"

namespace tw {
namespace {

struct Multiply : Sink<kVectors> {
  inline __attribute__((always_inline)) void take(__m512i first, __m512i second) {
    add_words(reinterpret_cast<Vec::Words>(first), input, sums);
    add_words(reinterpret_cast<Vec::Words>(second), input + kColumns, sums);
    input += 2 * kColumns;
  }
};

}  // namespace

extern const DotKernels kGemvAvx512;
const DotKernels kGemvAvx512 = {arrange, dot, kRows, add_terms, total, add_runs<Multiply>};

}  // namespace tw
#endif
