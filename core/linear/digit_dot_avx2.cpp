#if defined(__x86_64__)
#include "coders/digit_words_avx2.h"
#include "linear/digit_dot.h"
#include "linear/dot.h"

namespace tw {
namespace {

// Words come as they are interleaved, and their lanes stay so: of each 16 lanes the second and third four change
// places.
inline __m256 load_lanes(const float* sixteen, unsigned half) {
  return _mm256_loadu2_m128(sixteen + 4 * half + 8, sixteen + 4 * half);
}

void arrange(const float* input, size_t columns, float* arranged) {
  for (size_t i = 0; i < columns; i += 16) {
    _mm256_storeu_ps(arranged + i, load_lanes(input + i, 0));
    _mm256_storeu_ps(arranged + i + 8, load_lanes(input + i, 1));
  }
}

// Sums and prefetcher are copies, which stay in registers.
struct Multiply {
  __m256 sums[4];
  const float* input;
  Prefetcher<kSecondLevel> prefetcher;

  Multiply(const float* sums_at, const float* arranged, const Prefetcher<kSecondLevel>& ahead)
      : input(arranged), prefetcher(ahead) {
    for (unsigned i = 0; i < 4; ++i) sums[i] = load_lanes(sums_at + i / 2 * 16, i % 2);
  }
  void store_sums(float* to) const {
    for (unsigned i = 0; i < 4; ++i) {
      float* const half = to + i / 2 * 16 + i % 2 * 4;
      _mm256_storeu2_m128(half + 8, half, sums[i]);
    }
  }
  void begin_run() { prefetcher.step(); }
  void take(__m256i first, __m256i second) {
    const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    add(0, _mm256_slli_epi32(first, 16));
    add(1, _mm256_slli_epi32(second, 16));
    add(2, _mm256_and_si256(first, odd));
    add(3, _mm256_and_si256(second, odd));
    input += kDotLanes;
  }
  void add(unsigned i, __m256i factors) {
    sums[i] = _mm256_fmadd_ps(_mm256_castsi256_ps(factors), _mm256_loadu_ps(input + 8 * i), sums[i]);
  }
};

size_t add_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, const float* input, float* sums,
                Prefetcher<kSecondLevel>* prefetcher) {
  Multiply sink(sums, input, *prefetcher);
  const size_t used = for_words(runs, rests, num_runs, &sink);
  sink.store_sums(sums);
  *prefetcher = sink.prefetcher;
  return used;
}

}  // namespace

extern const DigitDotKernels kDigitDotAvx2;
const DigitDotKernels kDigitDotAvx2 = {arrange, add_runs};

}  // namespace tw
#endif
