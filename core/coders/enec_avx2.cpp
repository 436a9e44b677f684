#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/byte_select.h"
#include "coders/enec.h"

namespace tw {
namespace {

size_t merge(const EnecMap& map, const uint8_t* quads, const uint8_t* high, size_t n, uint8_t* out) {
  const __m256i base = _mm256_set1_epi8(static_cast<char>(map.base));
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(map.sign));
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(map.mask));
  const __m256i m = _mm256_set1_epi32(map.m);
  const uint8_t* next = high;
  for (size_t i = 0; i < n; i += 32, ++quads) {
    // For each quad its rank among the flagged ones, negative if it is not flagged.
    const __m256i rank =
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kByteSelect.expand[*quads])));
    const __m256i picked =
        _mm256_permutevar8x32_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(next)), rank);
    const __m256i spread = _mm256_andnot_si256(_mm256_srai_epi32(rank, 31), picked);
    next += kQuad * static_cast<size_t>(_mm_popcnt_u32(*quads));
    // high << m < 256, so no bit crosses into the next byte.
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(out + i));
    const __m256i y = _mm256_or_si256(low, _mm256_sllv_epi32(spread, m));
    const __m256i x = _mm256_sub_epi8(base, _mm256_xor_si256(y, sign));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_and_si256(x, mask));
  }
  return static_cast<size_t>(next - high);
}

}  // namespace

extern const EnecKernels kEnecAvx2;
const EnecKernels kEnecAvx2 = {merge};

}  // namespace tw
#endif
