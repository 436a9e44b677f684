#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "coders/byte_select.h"
#include "coders/two_bits.h"
#include "transforms/planes.h"

namespace tw {
namespace {

inline __m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint8_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline __m256i bytes(unsigned byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }

// For each byte of a 16-byte half, the sum of those before it in the half. The bytes are of two 4-bit numbers, 0 or 1:
// no sum exceeds 15.
inline __m256i sums_before(__m256i ones, __m256i every) {
  const __m256i from_low = _mm256_setr_epi8(-1, -1, -1, -1, 3, 3, 3, 3, -1, -1, -1, -1, 11, 11, 11, 11,  //
                                            -1, -1, -1, -1, 3, 3, 3, 3, -1, -1, -1, -1, 11, 11, 11, 11);
  const __m256i from_half = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 7, 7, 7, 7, 7, 7, 7, 7,  //
                                             -1, -1, -1, -1, -1, -1, -1, -1, 7, 7, 7, 7, 7, 7, 7, 7);
  __m256i sums = _mm256_mullo_epi32(ones, every);                     // of 4 bytes
  sums = _mm256_add_epi8(sums, _mm256_shuffle_epi8(sums, from_low));  // of 8
  return _mm256_add_epi8(_mm256_sub_epi8(sums, ones), _mm256_shuffle_epi8(sums, from_half));
}

// 32 numbers. `escapes` has the upper bit of each that is escaped, `ranks` which of the next that is in its half.
inline const uint8_t* expand32(__m256i named, __m256i escapes, __m256i ranks, const uint8_t* next, uint8_t* out) {
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(escapes));
  const uint8_t* high = next + _mm_popcnt_u32(mask & 0xffff);
  const __m256i exponents =
      _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high), reinterpret_cast<const __m128i*>(next));
  store(out, _mm256_blendv_epi8(named, _mm256_shuffle_epi8(exponents, ranks), escapes));
  return next + _mm_popcnt_u32(mask);
}

// Half of a run: 32 bytes with 4 slices of digits, which are 64 numbers apart.
struct Half {
  __m256i digits, three, even, odd;

  Half(const uint8_t* field, __m256i every) {
    const __m256i ones = bytes(0x11);
    digits = load(field);
    three = _mm256_and_si256(digits, _mm256_srli_epi16(digits, 1));  // at bits 0, 2, 4 and 6
    even = sums_before(_mm256_and_si256(three, ones), every);
    odd = sums_before(_mm256_and_si256(_mm256_srli_epi16(three, 2), ones), every);
  }

  template <int K>
  const uint8_t* expand(__m256i names, const uint8_t* next, uint8_t* out) const {
    const __m256i nibble = bytes(0x0f);
    const __m256i index = _mm256_and_si256(K < 2 ? digits : _mm256_srli_epi16(digits, 4), nibble);
    const __m256i sums = K % 2 == 0 ? even : odd;
    const __m256i ranks = _mm256_and_si256(K < 2 ? sums : _mm256_srli_epi16(sums, 4), nibble);
    return expand32(_mm256_shuffle_epi8(names, index), _mm256_slli_epi16(three, 7 - 2 * K), ranks, next, out);
  }
};

size_t expand(const uint8_t* field, const DigitNames& names, const uint8_t* next, size_t num_runs, uint8_t* out) {
  const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(names.low)));
  const __m256i high = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(names.high)));
  __m256i every = _mm256_set1_epi32(0x01010101);
  asm("" : "+x"(every));  // or GCC multiplies by shifts, which are more
  const uint8_t* source = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4, out += kRun) {
    const Half a(field, every), b(field + 32, every);
    source = a.expand<0>(low, source, out);
    source = b.expand<0>(low, source, out + 32);
    source = a.expand<1>(high, source, out + 64);
    source = b.expand<1>(high, source, out + 96);
    source = a.expand<2>(low, source, out + 128);
    source = b.expand<2>(low, source, out + 160);
    source = a.expand<3>(high, source, out + 192);
    source = b.expand<3>(high, source, out + 224);
  }
  return static_cast<size_t>(source - next);
}

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
const TwoBitKernels kTwoBitAvx2 = {expand, split, count};

}  // namespace tw
#endif
