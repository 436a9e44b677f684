#if defined(__x86_64__)
#include "coders/two_bits_avx2.h"

#include <immintrin.h>

#include <cstring>

#include "coders/byte_select.h"
#include "transforms/planes.h"

namespace tw {
namespace {

// The bytes at the set bits of the mask, of 8; writes 8.
inline uint8_t* compress8(const uint64_t* select, unsigned mask, __m128i bytes, uint8_t* next) {
  const __m128i control = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(select + mask));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(next), _mm_shuffle_epi8(bytes, control));
  return next + _mm_popcnt_u32(mask);
}

template <bool GAP>
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
      const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(digits, escape)));
      const __m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
      target = compress8(select, mask & 255, low, target);
      target = compress8(select, mask >> 8 & 255, _mm_srli_si128(low, 8), target);
      target = compress8(select, mask >> 16 & 255, high, target);
      target = compress8(select, mask >> 24, _mm_srli_si128(high, 8), target);
    }
    store(field, packed[0]);
    store(field + 32, packed[1]);
  }
  return static_cast<size_t>(target - next);
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, const uint8_t* exponents, size_t num_runs, uint8_t* field,
             uint8_t* next) {
  if (gap == 0) return split_runs<false>(start, below, gap, exponents, num_runs, field, next);
  return split_runs<true>(start, below, gap, exponents, num_runs, field, next);
}

void count(const uint8_t* field, size_t num_runs, uint32_t counts[2]) {
  // Of a pair of digits, how many are 1 in the lower half of a byte, how many are 2 in the upper half.
  const __m256i pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x01, 0x10, 0x00, 0x01, 0x02, 0x11, 0x01,  //
                                                                  0x10, 0x11, 0x20, 0x10, 0x00, 0x01, 0x10, 0x00));
  const __m256i nibble = bytes(0x0f), zero = _mm256_setzero_si256();
  __m256i ones = zero, twos = zero;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4) {
    __m256i sums = zero;  // at most 8 in each half of a byte
    for (size_t h = 0; h < 2; ++h) {
      const __m256i digits = load(field + 32 * h);
      const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(digits, 4), nibble);
      sums = _mm256_add_epi8(sums, _mm256_shuffle_epi8(pairs, _mm256_and_si256(digits, nibble)));
      sums = _mm256_add_epi8(sums, _mm256_shuffle_epi8(pairs, upper));
    }
    ones = _mm256_add_epi64(ones, _mm256_sad_epu8(_mm256_and_si256(sums, nibble), zero));
    twos = _mm256_add_epi64(twos, _mm256_sad_epu8(_mm256_and_si256(_mm256_srli_epi16(sums, 4), nibble), zero));
  }
  uint64_t sums[2][4];
  std::memcpy(sums[0], &ones, sizeof ones);
  std::memcpy(sums[1], &twos, sizeof twos);
  for (size_t d = 0; d < 2; ++d) {
    counts[d] = static_cast<uint32_t>(sums[d][0] + sums[d][1] + sums[d][2] + sums[d][3]);
  }
}

}  // namespace

extern const TwoBitKernels kTwoBitAvx2;
const TwoBitKernels kTwoBitAvx2 = {expand_two_bits, split, count};

}  // namespace tw
#endif
