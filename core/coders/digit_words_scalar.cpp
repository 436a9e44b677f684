#include "coders/digit_words_scalar.h"

#include "common/bits.h"

namespace tw {
namespace {

struct Store {
  uint8_t* words;

  void begin_run() {}
  void take(uint16_t word) {
    store(words, word);
    words += sizeof word;
  }
};

size_t weave_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, uint8_t* words) {
  Store sink{words};
  return for_words(runs, rests, num_runs, &sink);
}

}  // namespace

extern const DigitWordKernels kDigitWordScalar;
const DigitWordKernels kDigitWordScalar = {weave_runs};

}  // namespace tw
