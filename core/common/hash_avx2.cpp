#if defined(__x86_64__)
#include <immintrin.h>

#include "common/hash.h"

namespace tw {
namespace {

inline __m256i step(__m256i accumulators, __m256i value, __m256i secret) {
  const __m256i key = _mm256_xor_si256(value, secret);
  const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
  const __m256i swapped = _mm256_shuffle_epi32(value, 0x4e);
  return _mm256_add_epi64(_mm256_add_epi64(accumulators, swapped), product);
}

void accumulate(uint64_t accumulators[8], const uint8_t* data, size_t num_stripes, const uint64_t* secret) {
  __m256i* state = reinterpret_cast<__m256i*>(accumulators);
  __m256i low = _mm256_loadu_si256(state), high = _mm256_loadu_si256(state + 1);
  for (size_t stripe = 0; stripe < num_stripes; ++stripe, data += 64, ++secret) {
    const __m256i* values = reinterpret_cast<const __m256i*>(data);
    const __m256i* secrets = reinterpret_cast<const __m256i*>(secret);
    low = step(low, _mm256_loadu_si256(values), _mm256_loadu_si256(secrets));
    high = step(high, _mm256_loadu_si256(values + 1), _mm256_loadu_si256(secrets + 1));
  }
  _mm256_storeu_si256(state, low);
  _mm256_storeu_si256(state + 1, high);
}

}  // namespace

extern const HashKernels kHashAvx2;
const HashKernels kHashAvx2 = {accumulate};

}  // namespace tw
#endif
