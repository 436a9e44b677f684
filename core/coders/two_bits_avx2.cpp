#if defined(__x86_64__)
#include "coders/two_bits_avx2.h"

#include "coders/two_bits_x86.h"

namespace tw {
namespace {

template <bool GAP, bool EXTRACTS>
size_t split_runs(uint8_t start, uint8_t below, uint8_t gap, const uint8_t* exponents, size_t num_runs, uint8_t* field,
                  uint8_t* next) {
  const __m256i starts = bytes(start), belows = bytes(below), gaps = bytes(gap), escape = bytes(3);
  const uint64_t* select = kByteSelect.compress;
  asm("" : "+r"(select));  // or GCC adds where the table begins to each index
  uint8_t* target = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4) {
    __m256i packed[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v, exponents += 32) {
      const __m256i x = load(exponents);
      __m256i digits = _mm256_sub_epi8(x, starts);
      if (GAP) {
        const __m256i above = _mm256_cmpeq_epi8(_mm256_max_epu8(digits, belows), digits);
        digits = _mm256_sub_epi8(digits, _mm256_and_si256(above, gaps));
      }
      digits = _mm256_min_epu8(digits, escape);
      packed[v % 2] = _mm256_or_si256(packed[v % 2], _mm256_slli_epi16(digits, v / 2 * 2));
      const __m256i escaped = _mm256_cmpeq_epi8(digits, escape);
      if constexpr (EXTRACTS) {
        target = extract32(exponents, escaped, target);
      } else {
        target = compress32(select, static_cast<unsigned>(_mm256_movemask_epi8(escaped)), x, target);
      }
    }
    store(field, packed[0]);
    store(field + 32, packed[1]);
  }
  return static_cast<size_t>(target - next);
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, const uint8_t* exponents, size_t num_runs, uint8_t* field,
             uint8_t* next) {
  const auto split = gap == 0 ? (kExtractsFast ? split_runs<false, true> : split_runs<false, false>)
                              : (kExtractsFast ? split_runs<true, true> : split_runs<true, false>);
  return split(start, below, gap, exponents, num_runs, field, next);
}

}  // namespace

extern const TwoBitKernels kTwoBitAvx2;
const TwoBitKernels kTwoBitAvx2 = {expand_two_bits, split, count};

}  // namespace tw
#endif
