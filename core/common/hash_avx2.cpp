#if defined(__x86_64__)
#include <immintrin.h>

#include "common/hash_secret.h"

namespace tw {
namespace {

inline __m256i load_half(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Products are added to acc; the values themselves to sum, whose neighbours change places once per call of fold().
struct Accumulators {
  static constexpr size_t kAhead = 512;
  static const uint8_t* key(size_t i) { return kHashSecret + 8 * i; }
  struct Keys {
    const uint8_t* operator[](size_t i) const { return key(i); }
  };

  __m256i acc[2], sum[2];

  explicit Accumulators(const uint64_t from[8]) {
    for (size_t h = 0; h < 2; ++h) {
      acc[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 4 * h));
      sum[h] = _mm256_setzero_si256();
    }
  }
  void store(uint64_t to[8]) const {
    for (size_t h = 0; h < 2; ++h) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 4 * h), acc[h]);
  }

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

}  // namespace
}  // namespace tw

#include "common/hash_x86.h"  // behind Accumulators, which it uses

namespace tw {

extern const HashKernels kHashAvx2;
const HashKernels kHashAvx2 = {accumulate, copy};

}  // namespace tw
#endif
