// Expanding tiers of two-bit digits by shuffles. Everything is local to the including source, which is built for AVX2.
#pragma once
#include "coders/bytes_avx2.h"
#include "coders/two_bits.h"
#include "transforms/planes.h"

namespace tw {
namespace {

// A factor that adds the bytes of 32 bits up.
inline __m256i every_byte() {
  __m256i every = _mm256_set1_epi32(0x01010101);
  asm("" : "+x"(every));  // or GCC multiplies by shifts, which are more
  return every;
}

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

// The names of digits, for both halves of a vector.
struct HalfNames {
  __m256i low, high;

  explicit HalfNames(const DigitNames& names) : low(repeat(names.low)), high(repeat(names.high)) {}
};

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

  // Slice K.
  template <int K>
  __m256i expand(const HalfNames& names, const uint8_t** next) const {
    const __m256i nibble = bytes(0x0f);
    const __m256i index = _mm256_and_si256(K < 2 ? digits : _mm256_srli_epi16(digits, 4), nibble);
    const __m256i sums = K % 2 == 0 ? even : odd;
    const __m256i ranks = _mm256_and_si256(K < 2 ? sums : _mm256_srli_epi16(sums, 4), nibble);
    const __m256i named = _mm256_shuffle_epi8(K % 2 == 0 ? names.low : names.high, index);
    return expand32(named, _mm256_slli_epi16(three, 7 - 2 * K), ranks, next);
  }
};

// TwoBitKernels::expand.
inline size_t expand_two_bits(const uint8_t* field, const DigitNames& digit_names, const uint8_t* next, size_t num_runs,
                              uint8_t* out) {
  const HalfNames names(digit_names);
  const __m256i every = every_byte();
  const uint8_t* source = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4, out += kRun) {
    const Half a(field, every), b(field + 32, every);
    store(out, a.expand<0>(names, &source));
    store(out + 32, b.expand<0>(names, &source));
    store(out + 64, a.expand<1>(names, &source));
    store(out + 96, b.expand<1>(names, &source));
    store(out + 128, a.expand<2>(names, &source));
    store(out + 160, b.expand<2>(names, &source));
    store(out + 192, a.expand<3>(names, &source));
    store(out + 224, b.expand<3>(names, &source));
  }
  return static_cast<size_t>(source - next);
}

}  // namespace
}  // namespace tw
