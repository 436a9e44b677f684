#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/digit_words_avx2.h"
#include "linear/dot.h"

namespace tw {
namespace {

// Words come as digits become them: a vector has pairs 0 to 3 and 8 to 11, or 4 to 7 and 12 to 15.
struct Vec {
  using V = __m256;
  typedef uint32_t Words __attribute__((vector_size(32)));
  static constexpr size_t pair(size_t vector, size_t lane) { return vector * 4 + lane % 4 + lane / 4 * 8; }
  static inline V multiply_add(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static inline void load(const uint8_t* from, Words* words) {
    for (size_t v = 0; v < 2; ++v) {
      const auto* const at = reinterpret_cast<const __m128i*>(from) + v;
      words[v] = reinterpret_cast<Words>(_mm256_loadu2_m128i(at + 2, at));
    }
  }
  static inline float total(const V* sums) {
    const auto halved = [](V sum) { return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1)); };
    const __m128 pairs = _mm_hadd_ps(halved(sums[0]), halved(sums[1])), fours = _mm_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(_mm_add_ss(fours, _mm_movehdup_ps(fours)));
  }
};

}  // namespace
}  // namespace tw

#include "linear/gemv_impl.h"

namespace tw {
namespace {

struct Multiply : Sink<kVectors> {
  template <unsigned>
  inline __attribute__((always_inline)) void take(__m256i first, __m256i second) {
    add_words(reinterpret_cast<Vec::Words>(first), input, sums);
    add_words(reinterpret_cast<Vec::Words>(second), input + 2 * kWidth, sums + 1);
    input += kColumns;
  }
};

}  // namespace

extern const DotKernels kGemvAvx2;
const DotKernels kGemvAvx2 = {arrange, dot, kRows, add_terms, total, add_runs<Multiply>};

}  // namespace tw
#endif
