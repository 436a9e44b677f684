// Words of BF16 from digits and rests, 64 at a time. Everything is local to the including source, which is built for
// AVX-512.
#pragma once
#include "coders/digit_words.h"
#include "coders/two_bits_avx512.h"

namespace tw {
namespace {

// The eighths of a vector in the order in which bytes are interleaved to words that follow each other.
inline __m512i in_order(__m512i bytes) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bytes);
}

// Gives the sink 64 words: sink->take(the first 32, the others).
template <unsigned = 0, class Sink>
inline __attribute__((always_inline)) void take_words(__m512i exponents, const uint8_t* rests_at, Sink* sink) {
  constexpr int kSelect = 0xca;  // where the first operand has ones the second, elsewhere the third
  const __m512i turned = in_order(exponents), rests = in_order(_mm512_loadu_si512(rests_at));
  const __m512i low = _mm512_ternarylogic_epi64(bytes(0x80), turned, rests, kSelect);
  const __m512i high = _mm512_ternarylogic_epi64(bytes(0x80), rests, turned, kSelect);
  sink->take(_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high));
}

inline __attribute__((always_inline)) __m512i put_escapes(__m512i named, __mmask64 escaped, const uint8_t** next) {
  const __m512i words = _mm512_mask_expand_epi8(named, escaped, _mm512_loadu_si512(*next));
  *next += _mm_popcnt_u64(escaped);
  return words;
}

template <class Sink>
inline __attribute__((always_inline)) size_t for_two_bits(const DigitRuns& runs, const uint8_t* rests, size_t num_runs,
                                                          Sink* sink) {
  const TwoBitNames names(*runs.names);
  const uint8_t *digits = runs.digits, *next = runs.next;
  for (size_t run = 0; run < num_runs; ++run, digits += kRun / 4) {
    sink->begin_run();
    const TwoBitRun of_run(digits, names);
#pragma GCC unroll 4
    for (unsigned k = 0; k < 4; ++k, rests += 64) take_words(of_run.expand(k, &next), rests, sink);
  }
  return static_cast<size_t>(next - runs.next);
}

}  // namespace
}  // namespace tw

#include "coders/digit_words_x86.h"
