#if defined(__x86_64__)
#include "common/avx512.h"
#include "linear/dot.h"

namespace tw {
namespace {

struct Vec {
  using V = __m512;
  typedef uint32_t Words __attribute__((vector_size(64)));
  static constexpr size_t kPanel = 2048, kMostInputs = 4;
  static constexpr size_t rows(size_t inputs) { return inputs == 1 ? 2 : 8 / inputs; }
  static inline V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline float sum(V v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static inline V widen(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
};

}  // namespace
}  // namespace tw

#include "linear/sums_impl.h"

namespace tw {

extern const DotKernels kPairs512Avx512, kPairs1024Avx512, kGemvAvx512, kGemmAvx512;

namespace {

const DotKernels* find(tw_order order, WeightFormat format) {
  static const bool has_pairs = __builtin_cpu_supports("avx512bf16");
  if (order == TW_SUMS_64) return find_sums<64>(format);
  if (order == TW_SUMS_32 || format != WeightFormat::kBf16) return nullptr;
  if (order == TW_GEMV_16 || order == TW_GEMM_768) return order == TW_GEMV_16 ? &kGemvAvx512 : &kGemmAvx512;
  if (!has_pairs) return nullptr;
  return order == TW_PAIRS_512 ? &kPairs512Avx512 : &kPairs1024Avx512;
}

}  // namespace

extern const FindDot kFindDotAvx512;
const FindDot kFindDotAvx512 = find;

}  // namespace tw
#endif
