#include "coders/digit_words.h"
#include "common/bits.h"

namespace tw {
namespace {

size_t weave_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, uint8_t* words) {
  const size_t run_nbytes = kRun * runs.width / 8;
  const unsigned escape = (1u << runs.width) - 1;
  const uint8_t *digits = runs.digits, *next = runs.next;
  for (size_t run = 0; run < num_runs; ++run, digits += run_nbytes) {
    for (size_t i = 0; i < kRun; ++i, words += sizeof(uint16_t)) {
      const unsigned digit = digits[i % run_nbytes] >> (i / run_nbytes * runs.width) & escape;
      const unsigned turned = digit == escape ? *next++ : runs.names->low[digit], rest = *rests++;
      // The uppermost bits of both bytes change places.
      store(words, static_cast<uint16_t>((turned & 0x7f) << 8 | (rest & 0x80) << 8 | (turned & 0x80) | (rest & 0x7f)));
    }
  }
  return static_cast<size_t>(next - runs.next);
}

}  // namespace

extern const DigitWordKernels kDigitWordScalar;
const DigitWordKernels kDigitWordScalar = {weave_runs};

}  // namespace tw
