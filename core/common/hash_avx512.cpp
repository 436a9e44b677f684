#if defined(__x86_64__)
#include "common/avx512.h"
#include "common/hash_secret.h"

namespace tw {
namespace {

// As in hash_avx2.cpp, with a stripe in one register, and the keys of a whole block kept in 16.
struct Accumulators {
  static constexpr size_t kAhead = 1024;
  static __m512i key(size_t i) { return _mm512_loadu_si512(kHashSecret + 8 * i); }
  struct Keys {
    __m512i of[kHashBlockStripes];
    Keys() {
      for (size_t i = 0; i < kHashBlockStripes; ++i) of[i] = key(i);
    }
    __m512i operator[](size_t i) const { return of[i]; }
  };

  __m512i acc, sum = _mm512_setzero_si512();

  explicit Accumulators(const uint64_t from[8]) : acc(_mm512_loadu_si512(from)) {}
  void store(uint64_t to[8]) const { _mm512_storeu_si512(to, acc); }

  void add(const uint8_t* stripe, __m512i secret, uint8_t* copy) {
    const __m512i value = _mm512_loadu_si512(stripe);
    if (copy != nullptr) _mm512_storeu_si512(copy, value);
    const __m512i key = _mm512_xor_si512(value, secret);
    acc = _mm512_add_epi64(acc, _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32)));
    sum = _mm512_add_epi64(sum, value);
  }

  void fold() {
    acc = _mm512_add_epi64(acc, _mm512_shuffle_epi32(sum, static_cast<_MM_PERM_ENUM>(0x4e)));
    sum = _mm512_setzero_si512();
  }

  void scramble() {
    const __m512i key = _mm512_loadu_si512(kHashSecret + kHashScrambleAt);
    const __m512i prime = _mm512_set1_epi32(static_cast<int>(kHashPrime32[0]));
    const __m512i x = _mm512_ternarylogic_epi64(acc, _mm512_srli_epi64(acc, 47), key, 0x96);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), prime);
    acc = _mm512_add_epi64(_mm512_mul_epu32(x, prime), _mm512_slli_epi64(high, 32));
  }
};

}  // namespace
}  // namespace tw

#include "common/hash_x86.h"  // behind Accumulators, which it uses

namespace tw {

extern const HashKernels kHashAvx512;
const HashKernels kHashAvx512 = {accumulate, copy};

}  // namespace tw
#endif
