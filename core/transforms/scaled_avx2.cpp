#if defined(__x86_64__)
#include <immintrin.h>

#include "transforms/scaled_impl.h"

namespace tw {
namespace {

// 16 codes at a time.
constexpr size_t kLanes = 16;

__m256i round_each(__m256 products) {
  const __m256i bits = _mm256_castps_si256(products);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

void store_words(__m256 low, __m256 high, uint8_t* words) {
  const __m256i mixed = _mm256_packus_epi32(round_each(low), round_each(high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_permute4x64_epi64(mixed, 0xd8));
}

__m128i load_codes(const uint8_t* numbers) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)); }

void multiply_i8(const uint8_t* numbers, size_t n, float scale, uint8_t* words) {
  const __m256 scales = _mm256_set1_ps(scale);
  for (size_t i = 0; i < n; i += kLanes) {
    const __m128i codes = load_codes(numbers + i);
    const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)));
    store_words(_mm256_mul_ps(low, scales), _mm256_mul_ps(high, scales), words + 2 * i);
  }
}

// As floats of 16 bits they have an exponent that is too small by 8; subnormal ones are none as floats of 32 bits,
// which that conversion makes of them whatever the thread does with others.
bool multiply_f8_e4m3(const uint8_t* numbers, size_t n, float scale, uint8_t* words) {
  const __m256 scales = _mm256_set1_ps(scale * 256);
  const __m256i magnitude = _mm256_set1_epi16(0x7f), sign = _mm256_set1_epi16(0x80);
  __m256i wrong = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += kLanes) {
    const __m256i codes = _mm256_cvtepu8_epi16(load_codes(numbers + i));
    const __m256i magnitudes = _mm256_and_si256(codes, magnitude);
    wrong = _mm256_or_si256(wrong, _mm256_cmpeq_epi16(magnitudes, magnitude));
    const __m256i halves =
        _mm256_or_si256(_mm256_slli_epi16(magnitudes, 7), _mm256_slli_epi16(_mm256_and_si256(codes, sign), 8));
    const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    store_words(_mm256_mul_ps(low, scales), _mm256_mul_ps(high, scales), words + 2 * i);
  }
  return _mm256_testz_si256(wrong, wrong) != 0;
}

bool multiply(Codes codes, const uint8_t* numbers, size_t n, float scale, uint8_t* words) {
  const size_t whole = n / kLanes * kLanes;
  bool sound = true;
  if (codes == Codes::kI8) {
    multiply_i8(numbers, whole, scale, words);
  } else {
    sound = multiply_f8_e4m3(numbers, whole, scale, words);
  }
  return multiply_portable(codes, numbers + whole, n - whole, scale, words + 2 * whole) && sound;
}

}  // namespace

extern const ScaledKernels kScaledAvx2;
const ScaledKernels kScaledAvx2 = {multiply};

}  // namespace tw
#endif
