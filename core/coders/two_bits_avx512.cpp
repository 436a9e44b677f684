#if defined(__x86_64__)
#include "coders/two_bits_avx512.h"

#include "coders/two_bits_x86.h"

namespace tw {
namespace {

size_t expand(const uint8_t* field, const DigitNames& names, const uint8_t* next, size_t num_runs, uint8_t* out) {
  const TwoBitNames both(names);
  const uint8_t* source = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4, out += kRun) {
    const TwoBitRun digits(field, both);
#pragma GCC unroll 4
    for (unsigned k = 0; k < 4; ++k) _mm512_storeu_si512(out + 64 * k, digits.expand(k, &source));
  }
  return static_cast<size_t>(source - next);
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, const uint8_t* exponents, size_t num_runs, uint8_t* field,
             uint8_t* next) {
  const __m512i starts = bytes(start), belows = bytes(below), gaps = bytes(gap), escape = bytes(3);
  uint8_t* target = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4) {
    __m512i packed = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (unsigned k = 0; k < 4; ++k, exponents += 64) {
      const __m512i x = _mm512_loadu_si512(exponents);
      __m512i digits = _mm512_sub_epi8(x, starts);
      digits = _mm512_mask_sub_epi8(digits, _mm512_cmpge_epu8_mask(digits, belows), digits, gaps);
      digits = _mm512_min_epu8(digits, escape);
      packed = _mm512_or_si512(packed, _mm512_slli_epi16(digits, 2 * k));
      const __mmask64 escapes = _mm512_cmpeq_epi8_mask(digits, escape);
      _mm512_storeu_si512(target, _mm512_maskz_compress_epi8(escapes, x));
      target += _mm_popcnt_u64(escapes);
    }
    _mm512_storeu_si512(field, packed);
  }
  return static_cast<size_t>(target - next);
}

}  // namespace

extern const TwoBitKernels kTwoBitAvx512;
const TwoBitKernels kTwoBitAvx512 = {expand, split, count};

}  // namespace tw
#endif
