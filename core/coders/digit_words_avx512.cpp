#if defined(__x86_64__)
#include "coders/digit_words_avx512.h"

namespace tw {
namespace {

struct Store {
  uint8_t* words;

  void begin_run() {}
  void take(__m512i first, __m512i second) {
    _mm512_storeu_si512(words, first);
    _mm512_storeu_si512(words + 64, second);
    words += 128;
  }
};

size_t weave_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, uint8_t* words) {
  Store sink{words};
  return for_words(runs, rests, num_runs, &sink);
}

}  // namespace

extern const DigitWordKernels kDigitWordAvx512;
const DigitWordKernels kDigitWordAvx512 = {weave_runs};

}  // namespace tw
#endif
