#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/cascade.h"

namespace tw {
namespace {

size_t expand(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out) {
  const __m512i lookup = _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(names)));
  const __m512i escapes = _mm512_set1_epi8(static_cast<char>(escape));
  size_t used = 0;
  for (size_t i = 0; i < n; i += 64) {
    const __m512i digits = _mm512_loadu_si512(out + i);
    __mmask64 escaped = _mm512_cmpeq_epi8_mask(digits, escapes);
    if (n - i < 64) escaped &= (uint64_t{1} << (n - i)) - 1;
    const __m512i named = _mm512_shuffle_epi8(lookup, digits);
    _mm512_storeu_si512(out + i, _mm512_mask_expand_epi8(named, escaped, _mm512_loadu_si512(next + used)));
    used += static_cast<size_t>(_mm_popcnt_u64(escaped));
  }
  return used;
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
             uint8_t* digits, uint8_t* next) {
  const __m512i starts = _mm512_set1_epi8(static_cast<char>(start));
  const __m512i belows = _mm512_set1_epi8(static_cast<char>(below));
  const __m512i gaps = _mm512_set1_epi8(static_cast<char>(gap));
  const __m512i escapes = _mm512_set1_epi8(static_cast<char>(escape));
  size_t used = 0;
  for (size_t i = 0; i < n; i += 64) {
    const __m512i x = _mm512_loadu_si512(exponents + i);
    __m512i d = _mm512_sub_epi8(x, starts);
    d = _mm512_mask_sub_epi8(d, _mm512_cmpge_epu8_mask(d, belows), d, gaps);
    d = _mm512_min_epu8(d, escapes);
    _mm512_storeu_si512(digits + i, d);
    __mmask64 escaped = _mm512_cmpeq_epi8_mask(d, escapes);
    if (n - i < 64) escaped &= (uint64_t{1} << (n - i)) - 1;
    _mm512_storeu_si512(next + used, _mm512_maskz_compress_epi8(escaped, x));
    used += static_cast<size_t>(_mm_popcnt_u64(escaped));
  }
  return used;
}

}  // namespace

extern const CascadeKernels kCascadeAvx512;
const CascadeKernels kCascadeAvx512 = {expand, split};

}  // namespace tw
#endif
