// Words of BF16 from digits and rests over a target's take_words(), put_escapes() and for_two_bits(); the header of
// that target includes this. Everything is local to the including source.
#pragma once
#include "coders/digit_words.h"
#include "common/x86_bytes.h"

namespace tw {
namespace {

template <class Sink>
inline __attribute__((always_inline)) size_t for_nibbles(const DigitRuns& runs, const uint8_t* rests, size_t num_runs,
                                                         Sink* sink) {
  const Bytes names = repeat(runs.names->low), escape = bytes(0x0f);
  const uint8_t *digits = runs.digits, *next = runs.next;
  for (size_t run = 0; run < num_runs; ++run, digits += kRun / 2) {
    sink->begin_run();
    for (unsigned half = 0; half < 2; ++half) {
      const auto turned_at = [&](size_t i) {
        const Bytes index = nibbles(load(digits + i), half);
        const auto escaped = equal(index, escape);
        const Bytes named = look_up(names, index);
        return __builtin_expect(any(escaped), 0) ? put_escapes(named, escaped, &next) : named;  // most have none
      };
#pragma GCC unroll 2
      for (size_t i = 0; i < kRun / 2; i += 2 * sizeof(Bytes), rests += 2 * sizeof(Bytes)) {
        take_words<0>(turned_at(i), rests, sink);
        take_words<1>(turned_at(i + sizeof(Bytes)), rests + sizeof(Bytes), sink);
      }
    }
  }
  return static_cast<size_t>(next - runs.next);
}

// All words of the runs, with sink->begin_run() before each run. Returns how many of runs.next were used.
template <class Sink>
inline __attribute__((always_inline)) size_t for_words(const DigitRuns& runs, const uint8_t* rests, size_t num_runs,
                                                       Sink* sink) {
  return runs.width == 4 ? for_nibbles(runs, rests, num_runs, sink) : for_two_bits(runs, rests, num_runs, sink);
}

}  // namespace
}  // namespace tw
