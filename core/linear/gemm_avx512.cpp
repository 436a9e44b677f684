#if defined(__x86_64__)
#include "common/avx512.h"
#include "linear/pairs.h"

namespace tw {
namespace {

// What oneDNN does in place of VDPBF16PS.
struct Chain {
  struct Pair {
    __m512 upper, lower;
  };
  static constexpr size_t kInputNbytes = sizeof(float);
  static inline __attribute__((always_inline)) Pair of(__m512i words) {
    const __m512i upper = _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    return {_mm512_castsi512_ps(upper), _mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
  }
  static inline __attribute__((always_inline)) __m512 add(__m512 sums, const Pair& pair, const uint8_t* input) {
    sums = _mm512_fmadd_ps(pair.upper, _mm512_set1_ps(load<float>(input + sizeof(float))), sums);
    return _mm512_fmadd_ps(pair.lower, _mm512_set1_ps(load<float>(input)), sums);
  }
};

}  // namespace
}  // namespace tw

#include "linear/chains_avx512.h"

namespace tw {

extern const DotKernels kGemmAvx512;
const DotKernels kGemmAvx512 = {arrange_floats, dot<TW_GEMM_768>, kGroups * kRows, nullptr, nullptr, nullptr};

}  // namespace tw
#endif
