#if defined(__x86_64__)
#include "common/avx512.h"
#include "transforms/expand_impl.h"

namespace tw {
namespace {

// Instructions by the width of a word; a vector has 64 / W words, a mask as many bits.
template <unsigned W>
struct Vector;

template <>
struct Vector<1> {
  static __m512i all(uint64_t word) { return _mm512_set1_epi8(static_cast<char>(word)); }
  static uint64_t test(__m512i v, __m512i bits) { return _mm512_test_epi8_mask(v, bits); }
  static __m512i compact(uint64_t mask, __m512i v) { return _mm512_maskz_compress_epi8(mask, v); }
  static __m512i expand(__m512i fill, uint64_t mask, __m512i v) { return _mm512_mask_expand_epi8(fill, mask, v); }
  static __m512i set(uint64_t mask, __m512i v, __m512i bits) {
    return _mm512_mask_mov_epi8(v, mask, _mm512_or_si512(v, bits));
  }
};
template <>
struct Vector<2> {
  static __m512i all(uint64_t word) { return _mm512_set1_epi16(static_cast<short>(word)); }
  static uint64_t test(__m512i v, __m512i bits) { return _mm512_test_epi16_mask(v, bits); }
  static __m512i compact(uint64_t mask, __m512i v) {
    return _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask), v);
  }
  static __m512i expand(__m512i fill, uint64_t mask, __m512i v) {
    return _mm512_mask_expand_epi16(fill, static_cast<__mmask32>(mask), v);
  }
  static __m512i set(uint64_t mask, __m512i v, __m512i bits) {
    return _mm512_mask_mov_epi16(v, static_cast<__mmask32>(mask), _mm512_or_si512(v, bits));
  }
};
template <>
struct Vector<4> {
  static __m512i all(uint64_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }
  static uint64_t test(__m512i v, __m512i bits) { return _mm512_test_epi32_mask(v, bits); }
  static __m512i compact(uint64_t mask, __m512i v) {
    return _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), v);
  }
  static __m512i expand(__m512i fill, uint64_t mask, __m512i v) {
    return _mm512_mask_expand_epi32(fill, static_cast<__mmask16>(mask), v);
  }
  static __m512i set(uint64_t mask, __m512i v, __m512i bits) {
    return _mm512_mask_or_epi32(v, static_cast<__mmask16>(mask), v, bits);
  }
};
template <>
struct Vector<8> {
  static __m512i all(uint64_t word) { return _mm512_set1_epi64(static_cast<long long>(word)); }
  static uint64_t test(__m512i v, __m512i bits) { return _mm512_test_epi64_mask(v, bits); }
  static __m512i compact(uint64_t mask, __m512i v) {
    return _mm512_maskz_compress_epi64(static_cast<__mmask8>(mask), v);
  }
  static __m512i expand(__m512i fill, uint64_t mask, __m512i v) {
    return _mm512_mask_expand_epi64(fill, static_cast<__mmask8>(mask), v);
  }
  static __m512i set(uint64_t mask, __m512i v, __m512i bits) {
    return _mm512_mask_or_epi64(v, static_cast<__mmask8>(mask), v, bits);
  }
};

template <unsigned W>
struct WordLanes {
  using V = Vector<W>;
  static constexpr unsigned kWords = 64 / W;  // of a vector
  static constexpr uint64_t kAll = kWords == 64 ? ~uint64_t{0} : (uint64_t{1} << (kWords & 63)) - 1;

  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const __m512i bits = V::all(magnitude), sign = V::all(sign_bit<W>());
    uint64_t mask = 0, negative = 0;
    for (unsigned v = 0; v < W; ++v) {
      const __m512i vector = _mm512_loadu_si512(words + 64 * v);
      mask |= V::test(vector, bits) << (v * kWords & 63);
      negative |= V::test(vector, sign) << (v * kWords & 63);
    }
    *minus = negative;
    return mask;
  }

  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned v = 0; v < W; ++v) {
      const uint64_t part = mask >> (v * kWords & 63) & kAll;
      _mm512_storeu_si512(out, V::compact(part, _mm512_loadu_si512(words + 64 * v)));
      out += W * static_cast<unsigned>(_mm_popcnt_u64(part));
    }
    return out;
  }

  template <bool SIGNS, bool>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    __m512i filler = V::all(fill);
    // Or GCC knows of a filler of zeros, and expands with a zeroing mask: then Zen 5 waits for the target's last value.
    asm("" : "+v"(filler));
    const __m512i sign = V::all(sign_bit<W>());
    for (unsigned v = 0; v < W; ++v) {
      const uint64_t part = mask >> (v * kWords & 63) & kAll;
      __m512i words = V::expand(filler, part, _mm512_loadu_si512(kept));
      if (SIGNS) words = V::set(minus >> (v * kWords & 63) & kAll, words, sign);
      _mm512_storeu_si512(out + 64 * v, words);
      kept += W * static_cast<unsigned>(_mm_popcnt_u64(part));
    }
  }
};

}  // namespace

extern const ExpandKernels kExpandAvx512;
const ExpandKernels kExpandAvx512 = {find, compact, expand};

}  // namespace tw
#endif
