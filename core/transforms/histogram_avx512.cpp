#if defined(__x86_64__)
#include "common/avx512.h"
#include "transforms/histogram.h"

namespace tw {
namespace {

typedef uint8_t Vector __attribute__((vector_size(64), may_alias));

// Values below 16 in the lower half of each byte; the upper bit is set for others.
inline Vector in_window(Vector values) {
  return reinterpret_cast<Vector>(_mm512_adds_epu8(reinterpret_cast<__m512i>(values), _mm512_set1_epi8(0x70)));
}

inline bool any_high_bit(Vector index) { return _mm512_movepi8_mask(reinterpret_cast<__m512i>(index)) != 0; }

// A shuffle gives 0 for a byte with the upper bit.
template <bool UPPER>
inline Vector one_hot(Vector index) {
  constexpr int64_t kBits = static_cast<int64_t>(0x8040201008040201);
  const __m512i bits = _mm512_broadcast_i32x4(UPPER ? _mm_set_epi64x(kBits, 0) : _mm_set_epi64x(0, kBits));
  return reinterpret_cast<Vector>(_mm512_shuffle_epi8(bits, reinterpret_cast<__m512i>(index)));
}

}  // namespace
}  // namespace tw

#include "transforms/histogram_impl.h"

namespace tw {
extern const HistogramKernels kHistogramAvx512;
const HistogramKernels kHistogramAvx512 = {byte_histogram_vector};
}  // namespace tw
#endif
