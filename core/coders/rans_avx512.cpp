#if defined(__x86_64__)
#include <cstring>

#include "coders/rans.h"
#include "common/avx512.h"

namespace tw {
namespace {

// One symbol of each lane of x, whose part of the table begins at `starts`; returns their table entries.
inline __m512i step(const uint32_t* table, __m512i starts, __m512i& x, const uint8_t*& next) {
  const __m512i slot_mask = _mm512_set1_epi32(kRansTotal - 1);
  const __m512i entries = _mm512_i32gather_epi32(_mm512_or_si512(_mm512_and_si512(x, slot_mask), starts), table, 4);
  const __m512i offsets = _mm512_and_si512(_mm512_srli_epi32(entries, 8), slot_mask);
  // frequency * (x >> 12) of even and of odd lanes: half the latency of the instruction that multiplies all.
  const __m512i even = _mm512_mul_epu32(_mm512_srli_epi32(entries, 20), _mm512_srli_epi32(x, kRansBits));
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(entries, 32 + 20), _mm512_srli_epi64(x, 32 + kRansBits));
  const __m512i products = _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, static_cast<_MM_PERM_ENUM>(0xa0));
  x = _mm512_add_epi32(products, offsets);
  const __mmask16 refill = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kRansLow));
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(next)));
  next += 2 * _mm_popcnt_u32(refill);
  x = _mm512_or_si512(_mm512_mask_slli_epi32(x, refill, x, 16), _mm512_maskz_expand_epi32(refill, words));
  return entries;
}

inline __m512i step(const uint32_t* table, __m512i& x, const uint8_t*& next) {
  return step(table, _mm512_setzero_si512(), x, next);
}

// Where the tables of 16 classes begin.
inline __m512i starts_of(const uint8_t* classes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(classes));
  return _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), kRansBits);
}

inline void store_symbols(uint8_t* out, __m512i low, __m512i high) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm512_cvtepi32_epi8(high));
}

const uint8_t* decode(const uint32_t table[kRansTotal], uint32_t states[kRansStates], const uint8_t* next,
                      const uint8_t* end, size_t num_groups, uint8_t* out) {
  __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 16);
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
    const __m512i low_entries = step(table, low, next);
    const __m512i high_entries = step(table, high, next);
    store_symbols(out, low_entries, high_entries);
  }
  _mm512_storeu_si512(states, low);
  _mm512_storeu_si512(states + 16, high);
  return next;
}

const uint8_t* decode_classes(const uint32_t* tables, const uint8_t* classes, uint32_t states[kRansStates],
                              const uint8_t* next, const uint8_t* end, size_t num_groups, uint8_t* out) {
  __m512i low = _mm512_loadu_si512(states), high = _mm512_loadu_si512(states + 16);
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates, classes += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
    const __m512i low_entries = step(tables, starts_of(classes), low, next);
    const __m512i high_entries = step(tables, starts_of(classes + 16), high, next);
    store_symbols(out, low_entries, high_entries);
  }
  _mm512_storeu_si512(states, low);
  _mm512_storeu_si512(states + 16, high);
  return next;
}

size_t decode_two(RansStream* a, RansStream* b, size_t num_groups) {
  __m512i a_low = _mm512_loadu_si512(a->states), a_high = _mm512_loadu_si512(a->states + 16);
  __m512i b_low = _mm512_loadu_si512(b->states), b_high = _mm512_loadu_si512(b->states + 16);
  const uint8_t *a_next = a->next, *b_next = b->next;
  size_t g = 0;
  for (; g < num_groups && a_next <= a->end && b_next <= b->end; ++g) {
    const __m512i a_first = step(a->table, a_low, a_next), b_first = step(b->table, b_low, b_next);
    const __m512i a_second = step(a->table, a_high, a_next), b_second = step(b->table, b_high, b_next);
    store_symbols(a->out + g * kRansStates, a_first, a_second);
    store_symbols(b->out + g * kRansStates, b_first, b_second);
  }
  _mm512_storeu_si512(a->states, a_low);
  _mm512_storeu_si512(a->states + 16, a_high);
  _mm512_storeu_si512(b->states, b_low);
  _mm512_storeu_si512(b->states + 16, b_high);
  a->next = a_next, b->next = b_next;
  a->out += g * kRansStates, b->out += g * kRansStates;
  return g;
}

}  // namespace

extern const RansKernels kRansAvx512;
const RansKernels kRansAvx512 = {decode, decode_two, decode_classes, rans_encode_avx2};

}  // namespace tw
#endif
