#if defined(__x86_64__)
#include <immintrin.h>

#include "coders/rans_impl.h"

namespace tw {
namespace {

constexpr size_t kVectors = kRansStates / 8;

// The table entries of 8 slots in one instruction.
class Gather {
 public:
  Gather() { __asm__("" : "+x"(zero_), "+x"(all_)); }
  __m256i operator()(const uint32_t* table, __m256i slots) const {
    return _mm256_mask_i32gather_epi32(zero_, reinterpret_cast<const int*>(table), slots, all_, 4);
  }

 private:
  // Constants that compilers must not see through. They know a gather of all lanes to ignore what its target held, and
  // let it start from any register; the processor, which waits for that one, loses a third of the speed.
  __m256i zero_ = _mm256_setzero_si256(), all_ = _mm256_set1_epi32(-1);
};

// The same by 8 loads. Slots get to them through registers, which is faster than through memory.
struct Loads {
  __m256i operator()(const uint32_t* table, __m256i slots) const {
    const __m128i low = four(table, _mm256_castsi256_si128(slots));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), four(table, _mm256_extracti128_si256(slots, 1)), 1);
  }

 private:
  static __m128i four(const uint32_t* table, __m128i slots) {
    const uint64_t low = static_cast<uint64_t>(_mm_cvtsi128_si64(slots));
    const uint64_t high = static_cast<uint64_t>(_mm_extract_epi64(slots, 1));
    __m128i entries = _mm_cvtsi32_si128(static_cast<int>(table[static_cast<uint32_t>(low)]));
    entries = _mm_insert_epi32(entries, static_cast<int>(table[low >> 32]), 1);
    entries = _mm_insert_epi32(entries, static_cast<int>(table[static_cast<uint32_t>(high)]), 2);
    return _mm_insert_epi32(entries, static_cast<int>(table[high >> 32]), 3);
  }
};

// For each set of lanes the shuffle that gives the first 16-bit word to its first member, the second one to its second
// and so on; all other bits become zero.
struct alignas(64) WordShuffles {
  uint8_t bytes[256][32];
};

constexpr WordShuffles make_word_shuffles() {
  WordShuffles shuffles{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    uint8_t byte = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      const bool member = mask >> lane & 1;
      uint8_t* const shuffle = shuffles.bytes[mask] + 4 * lane;
      for (unsigned i = 0; i < 4; ++i) shuffle[i] = member && i < 2 ? byte++ : 0x80;
    }
  }
  return shuffles;
}
constexpr WordShuffles kWordShuffles = make_word_shuffles();

// 32 symbols of one stream, one of each lane. Every stage is done for all lanes before the next one begins, so that
// none of its instructions waits for the one before it: that is what fills the processor's queues.
template <class Lookup>
class Lanes {
 public:
  explicit Lanes(const RansStream& stream)
      : tables_(stream.tables), next_(reinterpret_cast<const uint16_t*>(stream.next)) {
    for (size_t v = 0; v < kVectors; ++v) {
      x_[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(stream.states + 8 * v));
    }
  }
  void store(RansStream* stream) const {
    for (size_t v = 0; v < kVectors; ++v) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(stream->states + 8 * v), x_[v]);
    }
    stream->next = next();
  }
  const uint8_t* next() const { return reinterpret_cast<const uint8_t*>(next_); }

  template <bool kClasses>
  void decode(const uint8_t* classes, uint8_t* out) {
    look_up<kClasses>(lookup_, classes);
    advance();
    store_symbols(out);
  }
  template <bool kClasses>
  static void decode_two(Lanes* a, const uint8_t* a_classes, uint8_t* a_out, Lanes* b, const uint8_t* b_classes,
                         uint8_t* b_out) {
    a->template look_up<kClasses>(a->lookup_, a_classes);
    b->template look_up<kClasses>(a->lookup_, b_classes);  // one for both, or registers run out
    a->advance();
    a->store_symbols(a_out);
    b->advance();
    b->store_symbols(b_out);
  }

 private:
  static __m256i slot_mask() { return _mm256_set1_epi32(kRansTotal - 1); }

  // Each lane in its table.
  template <bool kClasses>
  void look_up(const Lookup& lookup, const uint8_t* classes) {
    for (size_t v = 0; v < kVectors; ++v) {
      __m256i slots = _mm256_and_si256(x_[v], slot_mask());
      if constexpr (kClasses) {
        const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(classes + 8 * v)));
        slots = _mm256_or_si256(slots, _mm256_slli_epi32(bytes, kRansBits));
      }
      entries_[v] = lookup(tables_, slots);
    }
  }

  void advance() {
    unsigned masks[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const __m256i offsets = _mm256_and_si256(_mm256_srli_epi32(entries_[v], 8), slot_mask());
      const __m256i products =
          _mm256_mullo_epi32(_mm256_srli_epi32(entries_[v], 20), _mm256_srli_epi32(x_[v], kRansBits));
      const __m256i x = _mm256_add_epi32(products, offsets);
      const __m256i refill = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
      masks[v] = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(refill)));
      x_[v] = _mm256_sllv_epi32(x, _mm256_and_si256(refill, _mm256_set1_epi32(16)));  // a blend takes longer
    }
    for (size_t v = 0; v < kVectors; ++v) {
      const __m256i words = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next_)));
      const __m256i shuffle = _mm256_load_si256(reinterpret_cast<const __m256i*>(kWordShuffles.bytes[masks[v]]));
      x_[v] = _mm256_or_si256(x_[v], _mm256_shuffle_epi8(words, shuffle));
      next_ += static_cast<unsigned>(_mm_popcnt_u32(masks[v]));
    }
  }

  // The lowest bytes of the 32 entries, in order.
  void store_symbols(uint8_t* out) const {
    const __m256i low8 = _mm256_set1_epi32(255);
    const auto two = [&](size_t v) {
      return _mm256_packus_epi32(_mm256_and_si256(entries_[v], low8), _mm256_and_si256(entries_[v + 1], low8));
    };
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(two(0), two(2)), order));
  }

  const Lookup lookup_{};
  const uint32_t* tables_;
  const uint16_t* next_;
  __m256i x_[kVectors], entries_[kVectors];
};

}  // namespace

extern const RansKernels kRansAvx2, kRansAvx2Loads;
const RansKernels kRansAvx2 = {decode<Lanes<Gather>>, decode_two<Lanes<Gather>>, rans_encode_avx2};
const RansKernels kRansAvx2Loads = {decode<Lanes<Loads>>, decode_two<Lanes<Loads>>, rans_encode_avx2};

}  // namespace tw
#endif
