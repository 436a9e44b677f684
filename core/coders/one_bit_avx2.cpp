#if defined(__x86_64__)
#include "coders/one_bit.h"
#include "coders/two_bits_avx2.h"

namespace tw {
namespace {

// A run: 32 bytes with 8 slices of digits, which are 32 numbers apart.
struct Run {
  __m256i digits, sums[4];  // sums[k] of slices k and k + 4

  Run(const uint8_t* field, __m256i every) : digits(load(field)) {
    sums[0] = sums_before(_mm256_and_si256(digits, bytes(0x11)), every);
    sums[1] = sums_before(_mm256_and_si256(_mm256_srli_epi16(digits, 1), bytes(0x11)), every);
    sums[2] = sums_before(_mm256_and_si256(_mm256_srli_epi16(digits, 2), bytes(0x11)), every);
    sums[3] = sums_before(_mm256_and_si256(_mm256_srli_epi16(digits, 3), bytes(0x11)), every);
  }

  template <int K>
  void expand(__m256i name, const uint8_t** next, uint8_t* out) const {
    const __m256i ranks = _mm256_and_si256(K < 4 ? sums[K % 4] : _mm256_srli_epi16(sums[K % 4], 4), bytes(0x0f));
    store(out + 32 * K, expand32(name, _mm256_slli_epi16(digits, 7 - K), ranks, next));
  }
};

size_t expand(const uint8_t* field, uint8_t name, const uint8_t* next, size_t num_runs, uint8_t* out) {
  const __m256i named = bytes(name), every = every_byte();
  const uint8_t* source = next;
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 8, out += kRun) {
    const Run digits(field, every);
    digits.expand<0>(named, &source, out);
    digits.expand<1>(named, &source, out);
    digits.expand<2>(named, &source, out);
    digits.expand<3>(named, &source, out);
    digits.expand<4>(named, &source, out);
    digits.expand<5>(named, &source, out);
    digits.expand<6>(named, &source, out);
    digits.expand<7>(named, &source, out);
  }
  return static_cast<size_t>(source - next);
}

}  // namespace

extern const OneBitKernels kOneBitAvx2;
const OneBitKernels kOneBitAvx2 = {expand};

}  // namespace tw
#endif
