#if defined(__x86_64__)
#include <immintrin.h>

#include "transforms/histogram.h"

namespace tw {
namespace {

typedef uint8_t Vector __attribute__((vector_size(32), may_alias));

// Values below 16 in the lower half of each byte; the upper bit is set for others.
inline Vector in_window(Vector values) {
  return reinterpret_cast<Vector>(_mm256_adds_epu8(reinterpret_cast<__m256i>(values), _mm256_set1_epi8(0x70)));
}

inline bool any_high_bit(Vector index) { return _mm256_movemask_epi8(reinterpret_cast<__m256i>(index)) != 0; }

// A shuffle gives 0 for a byte with the upper bit.
template <bool UPPER>
inline Vector one_hot(Vector index) {
  constexpr int64_t kBits = static_cast<int64_t>(0x8040201008040201);
  const __m256i bits = _mm256_broadcastsi128_si256(UPPER ? _mm_set_epi64x(kBits, 0) : _mm_set_epi64x(0, kBits));
  return reinterpret_cast<Vector>(_mm256_shuffle_epi8(bits, reinterpret_cast<__m256i>(index)));
}

}  // namespace
}  // namespace tw

#include "transforms/histogram_impl.h"

namespace tw {
extern const HistogramKernels kHistogramAvx2;
const HistogramKernels kHistogramAvx2 = {byte_histogram_vector};
}  // namespace tw
#endif
