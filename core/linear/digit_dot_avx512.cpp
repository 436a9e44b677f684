#if defined(__x86_64__)
#include "coders/digit_words_avx512.h"
#include "linear/digit_dot.h"

namespace tw {
namespace {

// Sums and prefetcher are copies, which stay in registers.
struct Multiply {
  __m512 even, odd;
  const float* input;
  Prefetcher<kSecondLevel> prefetcher;

  Multiply(const float* sums_at, const float* arranged, const Prefetcher<kSecondLevel>& ahead)
      : even(_mm512_loadu_ps(sums_at)), odd(_mm512_loadu_ps(sums_at + 16)), input(arranged), prefetcher(ahead) {}
  void begin_run() { prefetcher.step(); }
  void take(__m512i first, __m512i second) {
    add(first);
    add(second);
  }
  void add(__m512i words) {
    const __m512i upper = _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)), _mm512_loadu_ps(input), even);
    odd = _mm512_fmadd_ps(_mm512_castsi512_ps(upper), _mm512_loadu_ps(input + 16), odd);
    input += 32;
  }
};

size_t add_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, const float* input, float* sums,
                Prefetcher<kSecondLevel>* prefetcher) {
  Multiply sink(sums, input, *prefetcher);
  const size_t used = for_words(runs, rests, num_runs, &sink);
  _mm512_storeu_ps(sums, sink.even);
  _mm512_storeu_ps(sums + 16, sink.odd);
  *prefetcher = sink.prefetcher;
  return used;
}

}  // namespace

extern const DigitDotKernels kDigitDotAvx512;
const DigitDotKernels kDigitDotAvx512 = {nullptr, add_runs};

}  // namespace tw
#endif
