#if defined(__x86_64__)
#include "common/avx512.h"
#include "common/hash_secret.h"

namespace tw {
namespace {

// As in hash_avx2.cpp, with a stripe in one register, and the keys of a whole block kept in 16.
struct Accumulators {
  __m512i acc, sum;

  // What is loaded goes to `copy` too, unless that is nullptr.
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

template <bool kCopies>
inline void take(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  const uint8_t* const start = data;
  const auto place = [&](const uint8_t* stripe) { return kCopies ? copy + (stripe - start) : nullptr; };
  Accumulators lanes{_mm512_loadu_si512(acc), _mm512_setzero_si512()};
  __m512i secrets[kHashBlockStripes];
  for (size_t i = 0; i < kHashBlockStripes; ++i) secrets[i] = _mm512_loadu_si512(kHashSecret + 8 * i);
  while (num_stripes != 0) {
    if (phase == 0 && num_stripes >= kHashBlockStripes) {
#pragma GCC unroll 16
      for (size_t i = 0; i < kHashBlockStripes; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(data + i * kHashStripe + 1024), _MM_HINT_T0);
        lanes.add(data + i * kHashStripe, secrets[i], place(data + i * kHashStripe));
      }
      data += kHashBlockStripes * kHashStripe;
      num_stripes -= kHashBlockStripes;
    } else {
      lanes.add(data, _mm512_loadu_si512(kHashSecret + 8 * phase), place(data));
      data += kHashStripe;
      --num_stripes;
      if (++phase < kHashBlockStripes) continue;
      phase = 0;
    }
    lanes.fold();
    lanes.scramble();
  }
  lanes.fold();
  _mm512_storeu_si512(acc, lanes.acc);
}

void accumulate(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase) {
  take<false>(acc, data, num_stripes, phase, nullptr);
}

void copy(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  take<true>(acc, data, num_stripes, phase, copy);
}

}  // namespace

extern const HashKernels kHashAvx512;
const HashKernels kHashAvx512 = {accumulate, copy};

}  // namespace tw
#endif
