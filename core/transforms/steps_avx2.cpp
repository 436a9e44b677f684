#if defined(__x86_64__)
#include <immintrin.h>

#include "common/cpu.h"
#include "transforms/dense_steps_avx2.h"
#include "transforms/steps_masks.h"

namespace tw {
namespace {

// 64 comparisons as 2 W vectors of lanes that are all ones or all zeros, for words of W bytes.
template <class T>
struct Comparisons {
  static constexpr size_t kVectors = 2 * sizeof(T);
  __m256i of[kVectors];
};

inline __m256i load_vector(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline uint64_t byte_mask(__m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

inline uint64_t mask_of(const Comparisons<uint8_t>& found) { return byte_mask(found.of[0], found.of[1]); }
inline uint64_t mask_of(const Comparisons<uint16_t>& found) {
  const auto pack = [&](size_t v) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(found.of[v], found.of[v + 1]), 0xd8);
  };
  return byte_mask(pack(0), pack(2));
}
inline uint64_t mask_of(const Comparisons<uint32_t>& found) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto pack = [&](size_t v) {
    const __m256i low = _mm256_packs_epi32(found.of[v], found.of[v + 1]);
    const __m256i high = _mm256_packs_epi32(found.of[v + 2], found.of[v + 3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  };
  return byte_mask(pack(0), pack(4));
}
inline uint64_t mask_of(const Comparisons<uint64_t>& found) {
  uint64_t mask = 0;
  for (size_t v = 0; v < 16; ++v) {
    mask |= static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(found.of[v]))) << (4 * v);
  }
  return mask;
}

template <class T>
inline __m256i equal(__m256i a, __m256i b) {
  if constexpr (sizeof(T) == 1) return _mm256_cmpeq_epi8(a, b);
  if constexpr (sizeof(T) == 2) return _mm256_cmpeq_epi16(a, b);
  if constexpr (sizeof(T) == 4) return _mm256_cmpeq_epi32(a, b);
  return _mm256_cmpeq_epi64(a, b);
}

// Asked once. Processors with AVX-512 all are.
const bool kDepositsFast = cpu_deposits_fast();

struct Masks : PortableMasks {
  static uint64_t at_least(const uint8_t* bytes, uint8_t limit) {
    const __m256i least = _mm256_set1_epi8(static_cast<char>(limit));
    Comparisons<uint8_t> found;
    for (size_t v = 0; v < 2; ++v) {
      const __m256i values = load_vector(bytes + 32 * v);
      found.of[v] = _mm256_cmpeq_epi8(_mm256_max_epu8(values, least), values);
    }
    return mask_of(found);
  }
  template <class T>
  static uint64_t differ(const uint8_t* a, const uint8_t* b) {
    Comparisons<T> found;
    for (size_t v = 0; v < found.kVectors; ++v) {
      found.of[v] = equal<T>(load_vector(a + 32 * v), load_vector(b + 32 * v));
    }
    return ~mask_of(found);
  }
  template <class T>
  static uint64_t reach(const uint8_t* words, T limit) {
    Comparisons<T> found;
    for (size_t v = 0; v < found.kVectors; ++v) {
      const __m256i values = load_vector(words + 32 * v);
      // Magnitudes are not negative, so a comparison of signed numbers will do; the limit may be 0.
      if constexpr (sizeof(T) == 1) {
        const __m256i magnitudes = _mm256_and_si256(values, _mm256_set1_epi8(0x7f));
        found.of[v] = _mm256_cmpgt_epi8(magnitudes, _mm256_set1_epi8(static_cast<char>(limit - 1)));
      } else if constexpr (sizeof(T) == 2) {
        const __m256i magnitudes = _mm256_and_si256(values, _mm256_set1_epi16(0x7fff));
        found.of[v] = _mm256_cmpgt_epi16(magnitudes, _mm256_set1_epi16(static_cast<int16_t>(limit - 1)));
      } else if constexpr (sizeof(T) == 4) {
        const __m256i magnitudes = _mm256_and_si256(values, _mm256_set1_epi32(0x7fffffff));
        found.of[v] = _mm256_cmpgt_epi32(magnitudes, _mm256_set1_epi32(static_cast<int32_t>(limit - 1)));
      } else {
        const __m256i magnitudes = _mm256_and_si256(values, _mm256_set1_epi64x(std::numeric_limits<int64_t>::max()));
        found.of[v] = _mm256_cmpgt_epi64(magnitudes, _mm256_set1_epi64x(static_cast<int64_t>(limit - 1)));
      }
    }
    return mask_of(found);
  }
  static uint64_t deposit(uint64_t bits, uint64_t mask) {
    return kDepositsFast ? _pdep_u64(bits, mask) : PortableMasks::deposit(bits, mask);
  }
  static uint64_t extract(uint64_t bits, uint64_t mask) {
    return kDepositsFast ? _pext_u64(bits, mask) : PortableMasks::extract(bits, mask);
  }
  template <class T>
  static constexpr bool kDense = sizeof(T) == 2;
  using Dense = Sixteens;
};

}  // namespace
}  // namespace tw

#include "transforms/steps_impl.h"  // behind Masks, which it uses

namespace tw {

extern const StepKernels kStepAvx2;
const StepKernels kStepAvx2 = kStepKernels;

}  // namespace tw
#endif
