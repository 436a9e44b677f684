#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/digit_words_avx2.h"
#include "linear/dot.h"

namespace tw {
namespace {

struct Vec {
  using V = __m256;
  typedef uint32_t Words __attribute__((vector_size(32)));
  static constexpr size_t kPanel = 2048, kMostInputs = 4;
  static constexpr size_t rows(size_t inputs) { return inputs == 2 ? 2 : 1; }
  static inline V multiply_add(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static inline __m128 half(V v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }
  static inline float sum(__m128 four) {
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static inline float sum(V v) { return sum(half(v)); }
  static inline V widen(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
};

}  // namespace
}  // namespace tw

#include "linear/sums_impl.h"

namespace tw {

extern const DotKernels kGemvAvx2;

namespace {

constexpr size_t kSums = 64;

// Words as digits become them: of each 32 columns a part has the first eight and the third, or the others.
struct InterleavedBf16 : Bf16 {
  static constexpr size_t kLeft = 4;
  static constexpr size_t column(size_t part, size_t i) {
    return part / 2 * 32 + part % 2 * 8 + i % 8 / 4 * 16 + i % 4 * 2 + i / 8;
  }
  static inline __attribute__((always_inline)) void load(const uint8_t* from, size_t part, V* w) {
    const uint8_t* const at = from + (part / 2 * 32 + part % 2 * 8) * kWeightNbytes;
    const __m256i words =
        _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(at + 32), reinterpret_cast<const __m128i*>(at));
    split(reinterpret_cast<Vec::Words>(words), w);
  }
  static inline __attribute__((always_inline)) float total(const V* sums) {
    const __m128 even = _mm_add_ps(Vec::half(sums[0]), Vec::half(sums[2]));
    const __m128 odd = _mm_add_ps(Vec::half(sums[1]), Vec::half(sums[3]));
    return Vec::sum(even) + Vec::sum(odd);
  }
};

struct Multiply : Sink<kSums / kWidth> {
  // Words of 32 columns, the first or the second ones of each 64.
  template <unsigned half>
  inline __attribute__((always_inline)) void take(__m256i first, __m256i second) {
    add<4 * half>(first);
    add<4 * half + 2>(second);
    if (half == 1) input += kSums;
  }
  template <unsigned at>
  inline __attribute__((always_inline)) void add(__m256i words) {
    V w[2];
    Bf16::split(reinterpret_cast<Vec::Words>(words), w);
    sums[at] = Vec::multiply_add(w[0], load_floats(input + 8 * at), sums[at]);
    sums[at + 1] = Vec::multiply_add(w[1], load_floats(input + 8 * at + 8), sums[at + 1]);
  }
};

const DotKernels* find(tw_order order, WeightFormat format) {
  using OfBf16 = Sums<InterleavedBf16, kSums>;
  static constexpr DotKernels kOfBf16 = {OfBf16::arrange,   OfBf16::dot,   1,
                                         OfBf16::add_terms, OfBf16::total, add_runs<Multiply>};
  if (order == TW_GEMV_16 && format == WeightFormat::kBf16) return &kGemvAvx2;
  if (order != TW_SUMS_64) return nullptr;
  return format == WeightFormat::kBf16 ? &kOfBf16 : &Sums<F16, kSums>::kTogether;
}

}  // namespace

extern const FindDot kFindDotAvx2;
const FindDot kFindDotAvx2 = find;

}  // namespace tw
#endif
