#include <cmath>
#include <cstring>

#include "coders/digit_words_scalar.h"
#include "linear/digit_dot.h"
#include "linear/dot.h"

namespace tw {
namespace {

struct Multiply {
  const float* input;  // arranged, so that lane by lane it is that of the sums
  float* sums;
  Prefetcher<kSecondLevel>* prefetcher;
  size_t column = 0;

  void begin_run() { prefetcher->step(); }
  void take(uint16_t word) {
    const uint32_t bits = uint32_t{word} << 16;
    float factor;
    std::memcpy(&factor, &bits, sizeof factor);
    const size_t lane = column % kDotLanes / 2 + column % 2 * (kDotLanes / 2);
    sums[lane] = std::fma(factor, input[column / kDotLanes * kDotLanes + lane], sums[lane]);
    ++column;
  }
};

size_t add_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, const float* input, float* sums,
                Prefetcher<kSecondLevel>* prefetcher) {
  Multiply sink{input, sums, prefetcher};
  return for_words(runs, rests, num_runs, &sink);
}

}  // namespace

extern const DigitDotKernels kDigitDotScalar;
const DigitDotKernels kDigitDotScalar = {nullptr, add_runs};

}  // namespace tw
