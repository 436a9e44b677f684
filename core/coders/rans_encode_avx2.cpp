#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/rans.h"

namespace tw {
namespace {

constexpr size_t kVectors = kRansStates / 8;

// For each set of lanes the shuffle that moves the 16-bit words of its members, in order, to the end of a vector.
struct alignas(64) WordShuffles {
  uint8_t bytes[256][16];
};

constexpr WordShuffles make_word_shuffles() {
  WordShuffles shuffles{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned to = 16;
    for (unsigned lane = 8; lane-- > 0;) {
      if ((mask >> lane & 1) == 0) continue;
      shuffles.bytes[mask][--to] = static_cast<uint8_t>(2 * lane + 1);
      shuffles.bytes[mask][--to] = static_cast<uint8_t>(2 * lane);
    }
  }
  return shuffles;
}
constexpr WordShuffles kWordShuffles = make_word_shuffles();

// The codes of 8 symbols: reciprocals of the even and of the odd lanes where products of these need them, and all
// frequencies and starts.
struct Codes {
  __m256i even_reciprocals, odd_reciprocals, frequencies, starts;
};

inline __m128i two(const RansCode* codes, const uint8_t* symbols) {
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + symbols[0]));
  return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), reinterpret_cast<const __m64*>(codes + symbols[2])));
}

// The codes of every other symbol.
inline __m256i four(const RansCode* codes, const uint8_t* symbols) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(two(codes, symbols)), two(codes, symbols + 4), 1);
}

inline Codes look_up(const RansCode* codes, const uint8_t* symbols) {
  const __m256i even = four(codes, symbols), odd = four(codes, symbols + 1);
  const __m256i places = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  return {even, odd, _mm256_blend_epi16(places, _mm256_setzero_si256(), 0xaa), _mm256_srli_epi32(places, 16)};
}

// Full lanes of x give their low words away.
inline uint16_t* give_words(const Codes& codes, __m256i* x, uint16_t* next) {
  const __m256i limits = _mm256_slli_epi32(codes.frequencies, 32 - kRansBits);
  const __m256i full = _mm256_cmpeq_epi32(_mm256_max_epu32(*x, limits), *x);
  const __m256i low = _mm256_shuffle_epi8(
      *x, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1)));
  const __m128i words = _mm256_castsi256_si128(_mm256_permute4x64_epi64(low, 0x08));
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(full)));
  const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i*>(kWordShuffles.bytes[mask]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(next - 8), _mm_shuffle_epi8(words, shuffle));
  *x = _mm256_srlv_epi32(*x, _mm256_and_si256(full, _mm256_set1_epi32(16)));  // a blend takes longer
  return next - _mm_popcnt_u32(mask);
}

// As in rans_encode_symbol().
inline __m256i encode(const Codes& codes, __m256i x) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, codes.even_reciprocals), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), codes.odd_reciprocals);
  const __m256i q = _mm256_blend_epi32(even, odd, 0xaa);
  const __m256i complements = _mm256_sub_epi32(_mm256_set1_epi32(kRansTotal), codes.frequencies);
  const __m256i sum = _mm256_add_epi32(x, _mm256_mullo_epi32(q, complements));
  const __m256i remainders = _mm256_sub_epi32(sum, _mm256_slli_epi32(q, kRansBits));
  const __m256i exact = _mm256_cmpgt_epi32(codes.frequencies, remainders);
  return _mm256_add_epi32(_mm256_add_epi32(sum, codes.starts), _mm256_andnot_si256(exact, complements));
}

}  // namespace

uint16_t* rans_encode_avx2(const RansCode codes[256], const uint8_t* symbols, size_t num_groups,
                           uint32_t states[kRansStates], uint16_t* next) {
  __m256i x[kVectors];
  for (size_t v = 0; v < kVectors; ++v) x[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + 8 * v));
  for (size_t g = num_groups; g-- > 0;) {
#pragma GCC unroll 4
    for (size_t v = kVectors; v-- > 0;) {
      const Codes eight = look_up(codes, symbols + g * kRansStates + 8 * v);
      next = give_words(eight, &x[v], next);
      x[v] = encode(eight, x[v]);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + 8 * v), x[v]);
  return next;
}

}  // namespace tw
#endif
