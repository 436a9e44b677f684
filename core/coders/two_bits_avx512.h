// Expanding tiers of two-bit digits. Everything is local to the including source, which is built for AVX-512.
#pragma once
#include "coders/two_bits.h"
#include "common/x86_bytes.h"

namespace tw {
namespace {

// The names of digits, for each quarter of a vector.
struct TwoBitNames {
  __m512i low, high;

  explicit TwoBitNames(const DigitNames& names) : low(repeat(names.low)), high(repeat(names.high)) {}
};

// A run: 64 bytes with 4 slices of digits, which are 64 numbers apart.
struct TwoBitRun {
  __m512i three;  // at bits 0, 2, 4 and 6 of each byte
  __m512i named[4];

  TwoBitRun(const uint8_t* field, const TwoBitNames& names) {
    const __m512i digits = _mm512_loadu_si512(field);
    const __m512i first = nibbles(digits, 0), second = nibbles(digits, 1);
    three = _mm512_and_si512(digits, _mm512_srli_epi16(digits, 1));
    named[0] = _mm512_shuffle_epi8(names.low, first);
    named[1] = _mm512_shuffle_epi8(names.high, first);
    named[2] = _mm512_shuffle_epi8(names.low, second);
    named[3] = _mm512_shuffle_epi8(names.high, second);
  }

  // Slice k.
  inline __attribute__((always_inline)) __m512i expand(unsigned k, const uint8_t** next) const {
    const __mmask64 escapes = _mm512_test_epi8_mask(three, bytes(1u << (2 * k)));
    const __m512i expanded = _mm512_mask_expand_epi8(named[k], escapes, _mm512_loadu_si512(*next));
    *next += _mm_popcnt_u64(escapes);
    return expanded;
  }
};

}  // namespace
}  // namespace tw
