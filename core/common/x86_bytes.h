// A vector of bytes, as wide as the target has it: what sources for AVX2 and for AVX-512 do alike, they write once over
// these names. Everything is local to the including source.
#pragma once
#include <cstdint>

#include "common/avx512.h"

namespace tw {
namespace {

#if defined(__AVX512BW__)
using Bytes = __m512i;
inline Bytes load(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store(uint8_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
inline void stream(uint8_t* p, Bytes v) { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v); }  // around the caches
inline Bytes bytes(unsigned byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
inline Bytes repeat(__m128i sixteen) { return _mm512_broadcast_i32x4(sixteen); }
inline Bytes look_up(Bytes table, Bytes index) { return _mm512_shuffle_epi8(table, index); }
inline Bytes add(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
inline Bytes add_saturated(Bytes a, Bytes b) { return _mm512_adds_epu8(a, b); }
inline Bytes shift_down_4(Bytes v) { return _mm512_srli_epi16(v, 4); }
inline Bytes sum_eights(Bytes v) { return _mm512_sad_epu8(v, _mm512_setzero_si512()); }
inline __mmask64 equal(Bytes a, Bytes b) { return _mm512_cmpeq_epi8_mask(a, b); }
inline bool any(__mmask64 flags) { return flags != 0; }
inline bool any(Bytes flags) { return _mm512_movepi8_mask(flags) != 0; }
#elif defined(__AVX2__)
using Bytes = __m256i;
inline Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint8_t* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline void stream(uint8_t* p, Bytes v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v); }
inline Bytes bytes(unsigned byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
inline Bytes repeat(__m128i sixteen) { return _mm256_broadcastsi128_si256(sixteen); }
inline Bytes look_up(Bytes table, Bytes index) { return _mm256_shuffle_epi8(table, index); }
inline Bytes add(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
inline Bytes add_saturated(Bytes a, Bytes b) { return _mm256_adds_epu8(a, b); }
inline Bytes shift_down_4(Bytes v) { return _mm256_srli_epi16(v, 4); }
inline Bytes sum_eights(Bytes v) { return _mm256_sad_epu8(v, _mm256_setzero_si256()); }
inline Bytes equal(Bytes a, Bytes b) { return _mm256_cmpeq_epi8(a, b); }
inline bool any(Bytes flags) { return _mm256_movemask_epi8(flags) != 0; }
#endif

inline Bytes repeat(const uint8_t* sixteen) {
  return repeat(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
}
// Number 0 or 1 of 4 bits of each byte.
inline Bytes nibbles(Bytes v, unsigned which) { return (which == 0 ? v : shift_down_4(v)) & bytes(0x0f); }

}  // namespace
}  // namespace tw
