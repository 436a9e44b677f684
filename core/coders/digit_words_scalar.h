// Words of BF16 from digits and rests, one by one. Everything is local to the including source.
#pragma once
#include "coders/digit_words.h"

namespace tw {
namespace {

// Gives them to the sink: sink->begin_run() before each run, sink->take(word) with each word. Returns how many of
// runs.next were used.
template <class Sink>
inline size_t for_words(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, Sink* sink) {
  const size_t run_nbytes = kRun * runs.width / 8;
  const unsigned escape = (1u << runs.width) - 1;
  const uint8_t *digits = runs.digits, *next = runs.next;
  for (size_t run = 0; run < num_runs; ++run, digits += run_nbytes) {
    sink->begin_run();
    for (size_t i = 0; i < kRun; ++i) {
      const unsigned digit = digits[i % run_nbytes] >> (i / run_nbytes * runs.width) & escape;
      const unsigned turned = digit == escape ? *next++ : runs.names->low[digit], rest = *rests++;
      // The uppermost bits of both bytes change places.
      sink->take(static_cast<uint16_t>((turned & 0x7f) << 8 | (rest & 0x80) << 8 | (turned & 0x80) | (rest & 0x7f)));
    }
  }
  return static_cast<size_t>(next - runs.next);
}

}  // namespace
}  // namespace tw
