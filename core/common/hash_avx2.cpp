#if defined(__x86_64__)
#include <immintrin.h>

#include "common/hash_secret.h"

namespace tw {
namespace {

inline __m256i load_half(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Products are added to acc; the values themselves to sum, whose neighbours change places once per call of fold().
struct Accumulators {
  __m256i acc[2], sum[2];

  // What is loaded goes to `copy` too, unless that is nullptr.
  void add(const uint8_t* stripe, const uint8_t* secret, uint8_t* copy) {
    for (size_t h = 0; h < 2; ++h) {
      const __m256i value = load_half(stripe + 32 * h);
      if (copy != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + 32 * h), value);
      const __m256i key = _mm256_xor_si256(value, load_half(secret + 32 * h));
      acc[h] = _mm256_add_epi64(acc[h], _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32)));
      sum[h] = _mm256_add_epi64(sum[h], value);
    }
    // Without this GCC takes the products of all stripes of a block before it adds them up, and keeps them in memory.
    asm("" : "+x"(acc[0]), "+x"(acc[1]), "+x"(sum[0]), "+x"(sum[1]));
  }

  void fold() {
    for (size_t h = 0; h < 2; ++h) {
      acc[h] = _mm256_add_epi64(acc[h], _mm256_shuffle_epi32(sum[h], 0x4e));
      sum[h] = _mm256_setzero_si256();
    }
  }

  void scramble() {
    const __m256i prime = _mm256_set1_epi32(static_cast<int>(kHashPrime32[0]));
    for (size_t h = 0; h < 2; ++h) {
      __m256i x = _mm256_xor_si256(acc[h], _mm256_srli_epi64(acc[h], 47));
      x = _mm256_xor_si256(x, load_half(kHashSecret + kHashScrambleAt + 32 * h));
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), prime);
      acc[h] = _mm256_add_epi64(_mm256_mul_epu32(x, prime), _mm256_slli_epi64(high, 32));
    }
  }
};

template <bool kCopies>
inline void take(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  const uint8_t* const start = data;
  const auto place = [&](const uint8_t* stripe) { return kCopies ? copy + (stripe - start) : nullptr; };
  Accumulators lanes;
  for (size_t h = 0; h < 2; ++h) {
    lanes.acc[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(acc + 4 * h));
    lanes.sum[h] = _mm256_setzero_si256();
  }
  while (num_stripes != 0) {
    if (phase == 0 && num_stripes >= kHashBlockStripes) {
#pragma GCC unroll 16
      for (size_t i = 0; i < kHashBlockStripes; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(data + i * kHashStripe + 512), _MM_HINT_T0);
        lanes.add(data + i * kHashStripe, kHashSecret + 8 * i, place(data + i * kHashStripe));
      }
      data += kHashBlockStripes * kHashStripe;
      num_stripes -= kHashBlockStripes;
    } else {
      lanes.add(data, kHashSecret + 8 * phase, place(data));
      data += kHashStripe;
      --num_stripes;
      if (++phase < kHashBlockStripes) continue;
      phase = 0;
    }
    lanes.fold();
    lanes.scramble();
  }
  lanes.fold();
  for (size_t h = 0; h < 2; ++h) _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + 4 * h), lanes.acc[h]);
}

void accumulate(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase) {
  take<false>(acc, data, num_stripes, phase, nullptr);
}

void copy(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  take<true>(acc, data, num_stripes, phase, copy);
}

}  // namespace

extern const HashKernels kHashAvx2;
const HashKernels kHashAvx2 = {accumulate, copy};

}  // namespace tw
#endif
