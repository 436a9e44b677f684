// Bytes spread over the set bytes of a vector, and gathered from them, by shuffles. Everything is local to the
// including source, which is built for AVX2.
#pragma once
#include <cstring>

#include "coders/byte_select.h"
#include "common/cpu.h"
#include "common/x86_bytes.h"

namespace tw {
namespace {

// For each byte of a 16-byte half, how many up to it are set, less one: the rank of a set one.
inline __m256i ranks_of(__m256i set) {
  __m256i sums = _mm256_add_epi8(set, _mm256_slli_si256(set, 1));
  sums = _mm256_add_epi8(sums, _mm256_slli_si256(sums, 2));
  sums = _mm256_add_epi8(sums, _mm256_slli_si256(sums, 4));
  sums = _mm256_add_epi8(sums, _mm256_slli_si256(sums, 8));
  return _mm256_xor_si256(sums, bytes(0xff));  // a set byte counts as -1, so this is -sums - 1
}

// 32 numbers: the named ones, and where `escapes` has the upper bit the next. `ranks` says which of those in its half.
inline __m256i expand32(__m256i named, __m256i escapes, __m256i ranks, const uint8_t** next) {
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(escapes));
  const uint8_t* const low = *next;
  const uint8_t* const high = low + _mm_popcnt_u32(mask & 0xffff);
  const __m256i exponents =
      _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high), reinterpret_cast<const __m128i*>(low));
  *next = low + _mm_popcnt_u32(mask);
  return _mm256_blendv_epi8(named, _mm256_shuffle_epi8(exponents, ranks), escapes);
}

// The bytes at the set bits of the mask, of 8; writes 8. `select` is kByteSelect.compress.
inline uint8_t* compress8(const uint64_t* select, unsigned mask, __m128i eight, uint8_t* next) {
  const __m128i control = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(select + mask));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(next), _mm_shuffle_epi8(eight, control));
  return next + _mm_popcnt_u32(mask);
}

// The same of 32 bytes; writes up to 8 behind the last one.
inline uint8_t* compress32(const uint64_t* select, unsigned mask, __m256i x, uint8_t* next) {
  const __m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
  next = compress8(select, mask & 255, low, next);
  next = compress8(select, mask >> 8 & 255, _mm_srli_si128(low, 8), next);
  next = compress8(select, mask >> 16 & 255, high, next);
  return compress8(select, mask >> 24, _mm_srli_si128(high, 8), next);
}

// The same by PEXT, which takes whole bytes: all bits of a set one are set. `x` are the bytes in memory.
inline uint8_t* extract32(const uint8_t* x, __m256i set, uint8_t* next) {
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(set));
  uint64_t places[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(places), set);
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) {
    uint64_t eight;
    std::memcpy(&eight, x + 8 * i, sizeof eight);
    const uint64_t taken = _pext_u64(eight, places[i]);
    std::memcpy(next + _mm_popcnt_u32(_bzhi_u32(mask, 8 * i)), &taken, sizeof taken);
  }
  return next + _mm_popcnt_u32(mask);
}

// Whether that is faster. Asked once.
const bool kExtractsFast = cpu_deposits_fast();

}  // namespace
}  // namespace tw
