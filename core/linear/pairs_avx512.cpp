#if defined(__x86_64__)
#include "common/avx512.h"
#include "linear/pairs.h"

namespace tw {
namespace {

// VDPBF16PS.
struct Chain {
  using Pair = __m512bh;
  static constexpr size_t kInputNbytes = kWeightNbytes;
  static inline Pair of(__m512i words) { return reinterpret_cast<__m512bh>(words); }
  static inline __attribute__((always_inline)) __m512 add(__m512 sums, Pair pair, const uint8_t* input) {
    return _mm512_dpbf16_ps(sums, pair, reinterpret_cast<__m512bh>(_mm512_set1_epi32(load<int>(input))));
  }
};

}  // namespace
}  // namespace tw

#include "linear/chains_avx512.h"

namespace tw {

extern const DotKernels kPairs512Avx512, kPairs1024Avx512;
const DotKernels kPairs512Avx512 = {arrange_pairs, dot<TW_PAIRS_512>, kGroups * kRows, nullptr, nullptr, nullptr};
const DotKernels kPairs1024Avx512 = {arrange_pairs, dot<TW_PAIRS_1024>, kGroups * kRows, nullptr, nullptr, nullptr};

}  // namespace tw
#endif
