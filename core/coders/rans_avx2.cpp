#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "coders/rans.h"

namespace tw {
namespace {

// For each set of lanes the word that each of its members takes: the first member the first one, and so on.
struct WordOrder {
  uint64_t lanes[256];
};

constexpr WordOrder make_word_order() {
  WordOrder order{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    uint64_t word = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if (mask >> lane & 1) order.lanes[mask] |= word++ << (8 * lane);
    }
  }
  return order;
}
alignas(64) constexpr WordOrder kWordOrder = make_word_order();

// Constants that compilers must not see through. They know a gather of all lanes to ignore what its target held, and
// let it start from any register; the processor, which waits for that one, loses a third of the speed.
struct GatherFrom {
  __m256i zero = _mm256_setzero_si256(), all = _mm256_set1_epi32(-1);
  GatherFrom() { __asm__("" : "+x"(zero), "+x"(all)); }
};

// One symbol of each lane of x; returns their table entries.
inline __m256i step(const GatherFrom& from, const uint32_t* table, __m256i& x, const uint8_t*& next) {
  const __m256i slot_mask = _mm256_set1_epi32(kRansTotal - 1);
  const __m256i entries = _mm256_mask_i32gather_epi32(from.zero, reinterpret_cast<const int*>(table),
                                                      _mm256_and_si256(x, slot_mask), from.all, 4);
  const __m256i offsets = _mm256_and_si256(_mm256_srli_epi32(entries, 8), slot_mask);
  x = _mm256_mullo_epi32(_mm256_srli_epi32(entries, 20), _mm256_srli_epi32(x, kRansBits));
  x = _mm256_add_epi32(x, offsets);
  const __m256i refill = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(refill)));
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next)));
  const __m256i order =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kWordOrder.lanes[mask])));
  next += 2 * _mm_popcnt_u32(mask);
  const __m256i refilled = _mm256_or_si256(_mm256_slli_epi32(x, 16), _mm256_permutevar8x32_epi32(words, order));
  x = _mm256_blendv_epi8(x, refilled, refill);
  return entries;
}

// The lowest bytes of the 32 lanes, in order.
inline __m256i symbols(const __m256i entries[4]) {
  const __m256i low8 = _mm256_set1_epi32(255);
  const __m256i a = _mm256_packus_epi32(_mm256_and_si256(entries[0], low8), _mm256_and_si256(entries[1], low8));
  const __m256i b = _mm256_packus_epi32(_mm256_and_si256(entries[2], low8), _mm256_and_si256(entries[3], low8));
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

const uint8_t* decode(const uint32_t table[kRansTotal], uint32_t states[kRansStates], const uint8_t* next,
                      const uint8_t* end, size_t num_groups, uint8_t* out) {
  const GatherFrom from;
  __m256i lanes[4];
  for (size_t v = 0; v < 4; ++v) lanes[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + 8 * v));
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
    __m256i entries[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < 4; ++v) entries[v] = step(from, table, lanes[v], next);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), symbols(entries));
  }
  for (size_t v = 0; v < 4; ++v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + 8 * v), lanes[v]);
  return next;
}

size_t decode_two(RansStream* a, RansStream* b, size_t num_groups) {
  const GatherFrom from;
  __m256i a_lanes[4], b_lanes[4];
  for (size_t v = 0; v < 4; ++v) {
    a_lanes[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a->states + 8 * v));
    b_lanes[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b->states + 8 * v));
  }
  const uint8_t *a_next = a->next, *b_next = b->next;
  size_t g = 0;
  for (; g < num_groups && a_next <= a->end && b_next <= b->end; ++g) {
    __m256i a_entries[4], b_entries[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < 4; ++v) {
      a_entries[v] = step(from, a->table, a_lanes[v], a_next);
      b_entries[v] = step(from, b->table, b_lanes[v], b_next);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(a->out + g * kRansStates), symbols(a_entries));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(b->out + g * kRansStates), symbols(b_entries));
  }
  for (size_t v = 0; v < 4; ++v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(a->states + 8 * v), a_lanes[v]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(b->states + 8 * v), b_lanes[v]);
  }
  a->next = a_next, b->next = b_next;
  a->out += g * kRansStates, b->out += g * kRansStates;
  return g;
}

}  // namespace

extern const RansKernels kRansAvx2;
const RansKernels kRansAvx2 = {decode, decode_two};

}  // namespace tw
#endif
