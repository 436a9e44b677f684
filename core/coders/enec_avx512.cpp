#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/enec.h"

namespace tw {
namespace {

size_t merge(const EnecMap& map, const uint8_t* quads, const uint8_t* high, size_t n, uint8_t* out) {
  const __m512i base = _mm512_set1_epi8(static_cast<char>(map.base));
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(map.sign));
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(map.mask));
  const __m512i m = _mm512_set1_epi16(map.m);
  const uint8_t* next = high;
  for (size_t i = 0; i < n; i += 64, quads += 2) {
    const unsigned flags = quads[0] | unsigned{quads[1]} << 8;
    const __m512i spread = _mm512_maskz_expand_epi32(static_cast<__mmask16>(flags), _mm512_loadu_si512(next));
    next += kQuad * static_cast<size_t>(_mm_popcnt_u32(flags));
    // high << m < 256, so no bit crosses into the next byte.
    const __m512i y = _mm512_or_si512(_mm512_loadu_si512(out + i), _mm512_sllv_epi16(spread, m));
    const __m512i x = _mm512_sub_epi8(base, _mm512_xor_si512(y, sign));
    _mm512_storeu_si512(out + i, _mm512_and_si512(x, mask));
  }
  return static_cast<size_t>(next - high);
}

}  // namespace

extern const EnecKernels kEnecAvx512;
const EnecKernels kEnecAvx512 = {merge};

}  // namespace tw
#endif
