#if defined(__x86_64__)
#include "coders/rans_impl.h"
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

class Lanes {
 public:
  Lanes(const uint32_t* table, const uint32_t states[kRansStates], const uint8_t* next)
      : table_(table), next_(next), low_(_mm512_loadu_si512(states)), high_(_mm512_loadu_si512(states + 16)) {}
  void store(uint32_t states[kRansStates]) const {
    _mm512_storeu_si512(states, low_);
    _mm512_storeu_si512(states + 16, high_);
  }
  const uint8_t* next() const { return next_; }

  void decode(uint8_t* out) {
    const __m512i low = step(table_, low_, next_);
    const __m512i high = step(table_, high_, next_);
    store_symbols(out, low, high);
  }
  void decode(const uint8_t* classes, uint8_t* out) {
    const __m512i low = step(table_, starts_of(classes), low_, next_);
    const __m512i high = step(table_, starts_of(classes + 16), high_, next_);
    store_symbols(out, low, high);
  }
  static void decode_two(Lanes* a, uint8_t* a_out, Lanes* b, uint8_t* b_out) {
    const __m512i a_low = step(a->table_, a->low_, a->next_), b_low = step(b->table_, b->low_, b->next_);
    const __m512i a_high = step(a->table_, a->high_, a->next_), b_high = step(b->table_, b->high_, b->next_);
    store_symbols(a_out, a_low, a_high);
    store_symbols(b_out, b_low, b_high);
  }

 private:
  const uint32_t* table_;
  const uint8_t* next_;
  __m512i low_, high_;
};

}  // namespace

extern const RansKernels kRansAvx512;
const RansKernels kRansAvx512 = {decode<Lanes>, decode_two<Lanes>, decode_classes<Lanes>, rans_encode_avx2};

}  // namespace tw
#endif
