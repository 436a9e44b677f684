#if defined(__x86_64__)
#include "common/avx512.h"
#include "transforms/dense_steps_avx2.h"
#include "transforms/steps_masks.h"

namespace tw {
namespace {

template <class T>
constexpr unsigned kLanes = 64 / sizeof(T);

// body(v) for each vector of 64 words; the bits that it returns for its words, put together.
template <class T, class Body>
inline uint64_t each_vector(Body&& body) {
  uint64_t mask = 0;
  for (unsigned v = 0; v < sizeof(T); ++v) mask |= static_cast<uint64_t>(body(v)) << (v * kLanes<T> % 64);
  return mask;
}

template <class T>
inline __m512i fill(T value) {
  if constexpr (sizeof(T) == 1) return _mm512_set1_epi8(static_cast<char>(value));
  if constexpr (sizeof(T) == 2) return _mm512_set1_epi16(static_cast<int16_t>(value));
  if constexpr (sizeof(T) == 4) return _mm512_set1_epi32(static_cast<int32_t>(value));
  return _mm512_set1_epi64(static_cast<int64_t>(value));
}

template <class T>
inline __m512i expand(uint64_t mask, __m512i values) {
  if constexpr (sizeof(T) == 1) return _mm512_maskz_expand_epi8(mask, values);
  if constexpr (sizeof(T) == 2) return _mm512_maskz_expand_epi16(static_cast<__mmask32>(mask), values);
  if constexpr (sizeof(T) == 4) return _mm512_maskz_expand_epi32(static_cast<__mmask16>(mask), values);
  return _mm512_maskz_expand_epi64(static_cast<__mmask8>(mask), values);
}

template <class T>
inline __m512i add(__m512i a, __m512i b) {
  if constexpr (sizeof(T) == 1) return _mm512_add_epi8(a, b);
  if constexpr (sizeof(T) == 2) return _mm512_add_epi16(a, b);
  if constexpr (sizeof(T) == 4) return _mm512_add_epi32(a, b);
  return _mm512_add_epi64(a, b);
}

// As order() in steps.h.
template <class T, bool kOrdered>
inline __m512i in_order(__m512i words) {
  if constexpr (!kOrdered) return words;
  const __m512i low = fill<T>(static_cast<T>(static_cast<T>(~T{0}) >> 1));
  if constexpr (sizeof(T) == 1) return _mm512_xor_si512(words, _mm512_maskz_mov_epi8(_mm512_movepi8_mask(words), low));
  if constexpr (sizeof(T) == 2) return _mm512_xor_si512(words, _mm512_and_si512(_mm512_srai_epi16(words, 15), low));
  if constexpr (sizeof(T) == 4) return _mm512_xor_si512(words, _mm512_and_si512(_mm512_srai_epi32(words, 31), low));
  return _mm512_xor_si512(words, _mm512_and_si512(_mm512_srai_epi64(words, 63), low));
}

alignas(64) constexpr uint8_t kNumbers[kMaskWords] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                      32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                      48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

struct Masks : PortableMasks {
  static uint64_t at_least(const uint8_t* bytes, uint8_t limit) {
    return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(bytes), fill<uint8_t>(limit));
  }
  template <class T>
  static uint64_t differ(const uint8_t* a, const uint8_t* b) {
    return each_vector<T>([&](unsigned v) -> uint64_t {
      const __m512i x = _mm512_loadu_si512(a + 64 * v), y = _mm512_loadu_si512(b + 64 * v);
      if constexpr (sizeof(T) == 1) return _mm512_cmpneq_epi8_mask(x, y);
      if constexpr (sizeof(T) == 2) return _mm512_cmpneq_epi16_mask(x, y);
      if constexpr (sizeof(T) == 4) return _mm512_cmpneq_epi32_mask(x, y);
      return _mm512_cmpneq_epi64_mask(x, y);
    });
  }
  template <class T>
  static uint64_t reach(const uint8_t* words, T limit) {
    const __m512i limits = fill<T>(limit), low = fill<T>(static_cast<T>(static_cast<T>(~T{0}) >> 1));
    return each_vector<T>([&](unsigned v) -> uint64_t {
      const __m512i magnitudes = _mm512_and_si512(_mm512_loadu_si512(words + 64 * v), low);
      if constexpr (sizeof(T) == 1) return _mm512_cmpge_epu8_mask(magnitudes, limits);
      if constexpr (sizeof(T) == 2) return _mm512_cmpge_epu16_mask(magnitudes, limits);
      if constexpr (sizeof(T) == 4) return _mm512_cmpge_epu32_mask(magnitudes, limits);
      return _mm512_cmpge_epu64_mask(magnitudes, limits);
    });
  }
  static uint64_t deposit(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }
  static uint64_t extract(uint64_t bits, uint64_t mask) { return _pext_u64(bits, mask); }
  template <class T>
  static constexpr bool kDense = sizeof(T) == 2;
  using Dense = Sixteens;
  static void list(uint64_t mask, unsigned bits, uint32_t first, uint32_t* places) {
    const __m512i numbers = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kNumbers));
    const __m512i firsts = fill<uint32_t>(first);
    const auto put = [&](unsigned i, __m128i some) {
      _mm512_storeu_si512(places + i, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(some)));
    };
    put(0, _mm512_castsi512_si128(numbers));
    if (bits <= 16) return;  // nearly always
    put(16, _mm512_extracti32x4_epi32(numbers, 1));
    put(32, _mm512_extracti32x4_epi32(numbers, 2));
    put(48, _mm512_extracti32x4_epi32(numbers, 3));
  }
  // The next steps of each class, spread over its changed words.
  static constexpr bool kAdds = true;
  template <class T, bool kOrdered, unsigned kClasses>
  static void add(const uint8_t* base, const Changed<kClasses>& changed, Cursor<kClasses>* at, uint8_t* words) {
#pragma GCC unroll 8
    for (unsigned v = 0; v < sizeof(T); ++v) {
      __m512i steps = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (unsigned c = 0; c < kClasses; ++c) {
        const uint64_t mask = changed.of[c] >> (v * kLanes<T> % 64) & low_bits(kLanes<T>);
        steps = _mm512_or_si512(steps, expand<T>(mask, _mm512_loadu_si512(at->steps[c])));
        at->steps[c] += count_bits(mask) * sizeof(T);
      }
      const __m512i old = _mm512_loadu_si512(base + 64 * v);
      const __m512i sums = tw::add<T>(in_order<T, kOrdered>(old), steps);
      _mm512_storeu_si512(words + 64 * v, in_order<T, kOrdered>(sums));
    }
  }
};

}  // namespace
}  // namespace tw

#include "transforms/steps_impl.h"  // behind Masks, which it uses

namespace tw {

extern const StepKernels kStepAvx512;
const StepKernels kStepAvx512 = kStepKernels;

}  // namespace tw
#endif
