#if defined(__x86_64__)
#include "coders/digit_words_avx2.h"

namespace tw {
namespace {

struct Store {
  uint8_t* words;

  void begin_run() {}
  template <unsigned>
  void take(__m256i first, __m256i second) {
    store(words, _mm256_permute2x128_si256(first, second, 0x20));
    store(words + 32, _mm256_permute2x128_si256(first, second, 0x31));
    words += 64;
  }
};

size_t weave_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, uint8_t* words) {
  Store sink{words};
  return for_words(runs, rests, num_runs, &sink);
}

}  // namespace

extern const DigitWordKernels kDigitWordAvx2;
const DigitWordKernels kDigitWordAvx2 = {weave_runs};

}  // namespace tw
#endif
