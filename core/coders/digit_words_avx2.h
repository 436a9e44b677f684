// Words of BF16 from digits and rests, 32 at a time. Everything is local to the including source, which is built for
// AVX2.
#pragma once
#include "coders/digit_words.h"
#include "coders/two_bits_avx2.h"

namespace tw {
namespace {

// Gives the sink 32 words as they are interleaved: sink->take<half>(words 0 to 7 and 16 to 23, words 8 to 15 and 24 to
// 31), where `half` says which of each 64 they are.
template <unsigned half, class Sink>
inline __attribute__((always_inline)) void take_words(__m256i turned, const uint8_t* rests_at, Sink* sink) {
  const __m256i rests = load(rests_at);
  // The uppermost bits of both bytes change places.
  const __m256i exchanged = _mm256_and_si256(_mm256_xor_si256(turned, rests), bytes(0x80));
  const __m256i low = _mm256_xor_si256(rests, exchanged), high = _mm256_xor_si256(turned, exchanged);
  sink->template take<half>(_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
}

// Not inlined, since most vectors of 4-bit digits have no escape.
__attribute__((noinline)) inline __m256i put_escapes(__m256i named, __m256i escaped, const uint8_t** next) {
  return expand32(named, escaped, ranks_of(escaped), next);
}

// In two steps, by way of the first-level cache: for both together there are not enough registers.
template <class Sink>
inline __attribute__((always_inline)) size_t for_two_bits(const DigitRuns& runs, const uint8_t* rests, size_t num_runs,
                                                          Sink* sink) {
  constexpr size_t kRunsAtOnce = 4;
  alignas(32) uint8_t turned[kRunsAtOnce * kRun];
  const uint8_t *digits = runs.digits, *next = runs.next;
  for (size_t run = 0; run < num_runs; run += kRunsAtOnce) {
    const size_t count = num_runs - run < kRunsAtOnce ? num_runs - run : kRunsAtOnce;
    next += expand_two_bits(digits, *runs.names, next, count, turned);
    digits += count * (kRun / 4);
    for (size_t r = 0; r < count; ++r) {
      sink->begin_run();
#pragma GCC unroll 4
      for (size_t i = r * kRun; i < (r + 1) * kRun; i += 64, rests += 64) {
        take_words<0>(load(turned + i), rests, sink);
        take_words<1>(load(turned + i + 32), rests + 32, sink);
      }
    }
  }
  return static_cast<size_t>(next - runs.next);
}

}  // namespace
}  // namespace tw

#include "coders/digit_words_x86.h"
