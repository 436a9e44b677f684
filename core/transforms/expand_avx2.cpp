#if defined(__x86_64__)
#include <immintrin.h>

#include "transforms/expand_portable.h"
#include "transforms/word_select.h"

namespace tw {
namespace {

inline __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m128i load64(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
inline void store128(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
inline unsigned count_of(unsigned mask) { return static_cast<unsigned>(_mm_popcnt_u32(mask)); }

// A mask from bytes of 0 or 255.
inline uint64_t mask_of(__m256i bytes) { return static_cast<uint32_t>(_mm256_movemask_epi8(bytes)); }

// The words of a mask in order, 8 at a time: `part` of it in turn, and where in the kept words those of the part begin.
template <unsigned W, class Body>
inline void for_eights(uint64_t mask, Body&& body) {
  // The set bits in each byte, then the sums of those before it: so no part waits for another.
  uint64_t counts = mask - (mask >> 1 & 0x5555555555555555);
  counts = (counts & 0x3333333333333333) + (counts >> 2 & 0x3333333333333333);
  counts = (counts + (counts >> 4)) & 0x0f0f0f0f0f0f0f0f;
  const uint64_t before = counts * 0x0101010101010100;
#pragma GCC unroll 8
  for (unsigned i = 0; i < kGroup; i += 8) {
    body(i, static_cast<uint8_t>(mask >> i), W * static_cast<uint8_t>(before >> i));
  }
}

// A shuffle leaves zeros where the control has its highest bit set.
template <bool FILLS>
inline __m128i filled(__m128i words, __m128i filler, __m128i control) {
  return FILLS ? _mm_blendv_epi8(words, filler, control) : words;
}

// The highest bits of 16-bit, 32-bit and 64-bit words in order, as those of bytes.
inline __m256i narrow16(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8); }
inline uint64_t mask32(__m256i v) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(v))); }
inline uint64_t mask64(__m256i v) { return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(v))); }

// Words of all ones for the bits that are set, zeros for others.
inline __m128i spread_bits8(uint64_t bits) {
  const __m128i one = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm_cmpeq_epi8(_mm_and_si128(_mm_set1_epi8(static_cast<char>(bits)), one), one);
}
// The same, of 8 bits from bit i on, as the highest bits of words.
inline __m128i signs16(__m128i bits, unsigned i) {
  const __m128i to_sign = _mm_setr_epi16(-32768, 1 << 14, 1 << 13, 1 << 12, 1 << 11, 1 << 10, 1 << 9, 1 << 8);
  const __m128i byte = _mm_shuffle_epi8(bits, _mm_set1_epi16(static_cast<short>(0x8000 | i / 8)));
  return _mm_and_si128(_mm_mullo_epi16(byte, to_sign), _mm_set1_epi16(-32768));
}
inline __m256i spread_bits32(uint64_t bits) {
  const __m256i one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), one), one);
}
inline __m256i spread_bits64(uint64_t bits) {
  const __m256i one = _mm256_setr_epi64x(1, 2, 4, 8);
  return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(static_cast<long long>(bits)), one), one);
}

template <unsigned W>
struct WordLanes;

template <>
struct WordLanes<1> : Portable<1> {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const __m256i bits = _mm256_set1_epi8(static_cast<char>(magnitude)), zero = _mm256_setzero_si256();
    const __m256i a = load256(words), b = load256(words + 32);
    *minus = mask_of(a) | mask_of(b) << 32;
    return ~(mask_of(_mm256_cmpeq_epi8(_mm256_and_si256(a, bits), zero)) |
             mask_of(_mm256_cmpeq_epi8(_mm256_and_si256(b, bits), zero)) << 32);
  }
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned i = 0; i < kGroup; i += 8) {
      const unsigned part = static_cast<uint8_t>(mask >> i);
      const __m128i bytes = _mm_shuffle_epi8(load64(words + i), load64(kSelect.compact[part]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), bytes);
      out += count_of(part);
    }
    return out;
  }
  template <bool SIGNS, bool FILLS>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    const __m128i filler = _mm_set1_epi8(static_cast<char>(fill));
    for_eights<1>(mask, [&](unsigned i, unsigned part, unsigned before) {
      const __m128i control = load64(kSelect.expand[part]);
      __m128i bytes = filled<FILLS>(_mm_shuffle_epi8(load64(kept + before), control), filler, control);
      if (SIGNS) bytes = _mm_or_si128(bytes, _mm_and_si128(spread_bits8(minus >> i), _mm_set1_epi8(-128)));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), bytes);
    });
  }
  static constexpr WordSelect<8, 1> kSelect = make_word_select<8, 1>();
};

template <>
struct WordLanes<2> : Portable<2> {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const __m256i bits = _mm256_set1_epi16(static_cast<short>(magnitude)), zero = _mm256_setzero_si256();
    uint64_t zeros = 0, negative = 0;
    for (unsigned i = 0; i < kGroup; i += 32) {
      const __m256i a = load256(words + 2 * i), b = load256(words + 2 * i + 32);
      negative |= mask_of(narrow16(a, b)) << i;
      zeros |= mask_of(narrow16(_mm256_cmpeq_epi16(_mm256_and_si256(a, bits), zero),
                                _mm256_cmpeq_epi16(_mm256_and_si256(b, bits), zero)))
               << i;
    }
    *minus = negative;
    return ~zeros;
  }
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned i = 0; i < kGroup; i += 8) {
      const unsigned part = static_cast<uint8_t>(mask >> i);
      store128(out, _mm_shuffle_epi8(load128(words + 2 * i), load128(kSelect.compact[part])));
      out += 2 * count_of(part);
    }
    return out;
  }
  template <bool SIGNS, bool FILLS>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    const __m128i filler = _mm_set1_epi16(static_cast<short>(fill));
    const __m128i negative = _mm_cvtsi64_si128(static_cast<long long>(minus));
    for_eights<2>(mask, [&](unsigned i, unsigned part, unsigned before) {
      const __m128i control = load128(kSelect.expand[part]);
      __m128i words = filled<FILLS>(_mm_shuffle_epi8(load128(kept + before), control), filler, control);
      if (SIGNS) words = _mm_or_si128(words, signs16(negative, i));
      store128(out + 2 * i, words);
    });
  }
  static constexpr WordSelect<8, 2> kSelect = make_word_select<8, 2>();
};

// The control of 8 words of 4 bytes, or 4 of 8 bytes as 8 halves: indices with the sign set where nothing belongs.
inline __m256i widen(const uint8_t* control) { return _mm256_cvtepi8_epi32(load64(control)); }
inline __m256i spread(__m256i fill, const uint8_t* kept, __m256i control) {
  const __m256i words = _mm256_permutevar8x32_epi32(load256(kept), control);
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(words), _mm256_castsi256_ps(fill), _mm256_castsi256_ps(control)));
}
inline void gather(const uint8_t* words, __m256i control, uint8_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(load256(words), control));
}

template <>
struct WordLanes<4> : Portable<4> {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const __m256i bits = _mm256_set1_epi32(static_cast<int>(magnitude)), zero = _mm256_setzero_si256();
    uint64_t zeros = 0, negative = 0;
    for (unsigned i = 0; i < kGroup; i += 8) {
      const __m256i v = load256(words + 4 * i);
      negative |= mask32(v) << i;
      zeros |= mask32(_mm256_cmpeq_epi32(_mm256_and_si256(v, bits), zero)) << i;
    }
    *minus = negative;
    return ~zeros;
  }
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned i = 0; i < kGroup; i += 8) {
      const unsigned part = static_cast<uint8_t>(mask >> i);
      gather(words + 4 * i, widen(kSelect.compact[part]), out);
      out += 4 * count_of(part);
    }
    return out;
  }
  template <bool SIGNS, bool>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    const __m256i filler = _mm256_set1_epi32(static_cast<int>(fill));
    for_eights<4>(mask, [&](unsigned i, unsigned part, unsigned before) {
      __m256i words = spread(filler, kept + before, widen(kSelect.expand[part]));
      if (SIGNS) words = _mm256_or_si256(words, _mm256_slli_epi32(spread_bits32(minus >> i), 31));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * i), words);
    });
  }
  static constexpr WordSelect<8, 1> kSelect = make_word_select<8, 1>();  // indices of words
};

template <>
struct WordLanes<8> : Portable<8> {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const __m256i bits = _mm256_set1_epi64x(static_cast<long long>(magnitude)), zero = _mm256_setzero_si256();
    uint64_t zeros = 0, negative = 0;
    for (unsigned i = 0; i < kGroup; i += 4) {
      const __m256i v = load256(words + 8 * i);
      negative |= mask64(v) << i;
      zeros |= mask64(_mm256_cmpeq_epi64(_mm256_and_si256(v, bits), zero)) << i;
    }
    *minus = negative;
    return ~zeros;
  }
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned i = 0; i < kGroup; i += 4) {
      const unsigned part = mask >> i & 15;
      gather(words + 8 * i, widen(kSelect.compact[part]), out);
      out += 8 * count_of(part);
    }
    return out;
  }
  template <bool SIGNS, bool>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    const __m256i filler = _mm256_set1_epi64x(static_cast<long long>(fill));
    for (unsigned i = 0; i < kGroup; i += 4) {
      const unsigned part = mask >> i & 15;
      const __m256i control = widen(kSelect.expand[part]);
      __m256i words = spread(filler, kept, control);
      if (SIGNS) words = _mm256_or_si256(words, _mm256_slli_epi64(spread_bits64(minus >> i), 63));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * i), words);
      kept += 8 * count_of(part);
    }
  }
  static constexpr WordSelect<4, 2> kSelect = make_word_select<4, 2>();  // indices of halves
};

}  // namespace

extern const ExpandKernels kExpandAvx2;
const ExpandKernels kExpandAvx2 = {find, compact, expand};

}  // namespace tw
#endif
