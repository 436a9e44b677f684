#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/byte_select.h"
#include "coders/cascade.h"

namespace tw {
namespace {

// 16 bytes: those of `next` spread over the set bits of `mask`, 0 elsewhere.
inline __m128i spread16(unsigned mask, const uint8_t* next) {
  const unsigned low = mask & 255, high = mask >> 8;
  const __m128i control_low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kByteSelect.expand[low]));
  const __m128i control_high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kByteSelect.expand[high]));
  const __m128i source_low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(next));
  const __m128i source_high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(next + _mm_popcnt_u32(low)));
  return _mm_unpacklo_epi64(_mm_shuffle_epi8(source_low, control_low), _mm_shuffle_epi8(source_high, control_high));
}

size_t expand(uint8_t escape, const uint8_t names[8], const uint8_t* next, size_t n, uint8_t* out) {
  const __m256i lookup = _mm256_broadcastsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(names)));
  const __m256i escapes = _mm256_set1_epi8(static_cast<char>(escape));
  const uint8_t* source = next;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i digits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(out + i));
    const __m256i escaped = _mm256_cmpeq_epi8(digits, escapes);
    unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(escaped));
    if (n - i < 32) mask &= (1u << (n - i)) - 1;
    const __m256i named = _mm256_andnot_si256(escaped, _mm256_shuffle_epi8(lookup, digits));
    const __m128i low = spread16(mask & 0xffff, source);
    const __m128i high = spread16(mask >> 16, source + _mm_popcnt_u32(mask & 0xffff));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_or_si256(named, _mm256_set_m128i(high, low)));
    source += _mm_popcnt_u32(mask);
  }
  return static_cast<size_t>(source - next);
}

inline uint8_t* compress8(unsigned mask, __m128i bytes, uint8_t* next) {
  const __m128i control = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kByteSelect.compress[mask]));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(next), _mm_shuffle_epi8(bytes, control));
  return next + _mm_popcnt_u32(mask);
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
             uint8_t* digits, uint8_t* next) {
  const __m256i starts = _mm256_set1_epi8(static_cast<char>(start));
  const __m256i belows = _mm256_set1_epi8(static_cast<char>(below));
  const __m256i gaps = _mm256_set1_epi8(static_cast<char>(gap));
  const __m256i escapes = _mm256_set1_epi8(static_cast<char>(escape));
  uint8_t* target = next;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(exponents + i));
    __m256i d = _mm256_sub_epi8(x, starts);
    const __m256i above = _mm256_cmpeq_epi8(_mm256_max_epu8(d, belows), d);
    d = _mm256_min_epu8(_mm256_sub_epi8(d, _mm256_and_si256(above, gaps)), escapes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(digits + i), d);
    unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(d, escapes)));
    if (n - i < 32) mask &= (1u << (n - i)) - 1;
    const __m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
    target = compress8(mask & 255, low, target);
    target = compress8(mask >> 8 & 255, _mm_srli_si128(low, 8), target);
    target = compress8(mask >> 16 & 255, high, target);
    target = compress8(mask >> 24, _mm_srli_si128(high, 8), target);
  }
  return static_cast<size_t>(target - next);
}

}  // namespace

extern const CascadeKernels kCascadeAvx2;
const CascadeKernels kCascadeAvx2 = {expand, split};

}  // namespace tw
#endif
