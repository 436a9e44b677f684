#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/byte_select.h"
#include "coders/cascade.h"

namespace tw {
namespace {

// For each byte of a 16-byte half, how many up to it are set, less one: the rank of a set one.
inline __m256i ranks(__m256i set) {
  __m256i sums = _mm256_add_epi8(set, _mm256_slli_si256(set, 1));
  sums = _mm256_add_epi8(sums, _mm256_slli_si256(sums, 2));
  sums = _mm256_add_epi8(sums, _mm256_slli_si256(sums, 4));
  sums = _mm256_add_epi8(sums, _mm256_slli_si256(sums, 8));
  return _mm256_xor_si256(sums, _mm256_set1_epi8(-1));  // a set byte counts as -1, so this is -sums - 1
}

size_t expand(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out) {
  const __m256i lookup = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(names)));
  const __m256i escapes = _mm256_set1_epi8(static_cast<char>(escape));
  const bool rare = escape == 15;  // most vectors have none
  const uint8_t* source = next;
  unsigned mask = 0;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i digits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(out + i));
    const __m256i escaped = _mm256_cmpeq_epi8(digits, escapes);
    const __m256i named = _mm256_shuffle_epi8(lookup, digits);
    mask = static_cast<unsigned>(_mm256_movemask_epi8(escaped));
    if (rare && mask == 0) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), named);
      continue;
    }
    const uint8_t* high = source + _mm_popcnt_u32(mask & 0xffff);
    const __m256i exponents =
        _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high), reinterpret_cast<const __m128i*>(source));
    const __m256i spread = _mm256_shuffle_epi8(exponents, ranks(escaped));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_blendv_epi8(named, spread, escaped));
    source += _mm_popcnt_u32(mask);
  }
  if (n % 32 != 0) source -= _mm_popcnt_u32(mask >> n % 32);  // what follows the n-th is no digit
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
