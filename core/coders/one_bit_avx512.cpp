#if defined(__x86_64__)
#include "coders/one_bit.h"
#include "common/avx512.h"
#include "transforms/planes.h"

namespace tw {
namespace {

size_t expand(const uint8_t* field, uint8_t name, const uint8_t* next, size_t num_runs, uint8_t* out) {
  const __m512i named = _mm512_set1_epi8(static_cast<char>(name));
  const uint8_t* source = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 8, out += kRun) {
    // Bit k of each byte is a slice of 32 digits. Two of them side by side fill a vector.
    const __m256i digits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(field));
#pragma GCC unroll 4
    for (unsigned k = 0; k < 8; k += 2) {
      const __mmask32 low = _mm256_test_epi8_mask(digits, _mm256_set1_epi8(static_cast<char>(1u << k)));
      const __mmask32 high = _mm256_test_epi8_mask(digits, _mm256_set1_epi8(static_cast<char>(2u << k)));
      const __mmask64 escapes = _mm512_kunpackd(high, low);
      _mm512_storeu_si512(out + 32 * k, _mm512_mask_expand_epi8(named, escapes, _mm512_loadu_si512(source)));
      source += _mm_popcnt_u64(escapes);
    }
  }
  return static_cast<size_t>(source - next);
}

}  // namespace

extern const OneBitKernels kOneBitAvx512;
const OneBitKernels kOneBitAvx512 = {expand};

}  // namespace tw
#endif
