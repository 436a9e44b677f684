#if defined(__x86_64__)
#include <immintrin.h>

#include "common/hash.h"

namespace tw {
namespace {

void accumulate(uint64_t accumulators[8], const uint8_t* data, size_t num_stripes, const uint64_t* secret) {
  __m512i state = _mm512_loadu_si512(accumulators);
  for (size_t stripe = 0; stripe < num_stripes; ++stripe, data += 64, ++secret) {
    const __m512i value = _mm512_loadu_si512(data);
    const __m512i key = _mm512_xor_si512(value, _mm512_loadu_si512(secret));
    const __m512i product = _mm512_maskz_mul_epu32(0xff, key, _mm512_maskz_srli_epi64(0xff, key, 32));
    const __m512i swapped = _mm512_maskz_shuffle_epi32(0xffff, value, static_cast<_MM_PERM_ENUM>(0x4e));
    state = _mm512_add_epi64(_mm512_add_epi64(state, swapped), product);
  }
  _mm512_storeu_si512(accumulators, state);
}

}  // namespace

extern const HashKernels kHashAvx512;
const HashKernels kHashAvx512 = {accumulate};

}  // namespace tw
#endif
