// Kind dense on 64 words of 16 bits, in vectors of 16; the sources of AVX2 and AVX-512 include it behind their headers
// of intrinsics. Bytes of 32 words are kept in the order in which packing leaves them and unpacking takes them: words
// 0 to 7, 16 to 23, 8 to 15, 24 to 31.
#pragma once
#include <limits>

#include "transforms/steps_masks.h"

namespace tw {
namespace {

// For each set of 8 lanes: the shuffles that move its members to the front, as bytes and as words; and the one that
// moves words from the front to its members, with zeros between them.
struct alignas(64) LaneShuffles {
  uint8_t bytes_together[256][8], words_together[256][16], words_apart[256][16];
};

constexpr LaneShuffles make_lane_shuffles() {
  LaneShuffles shuffles{};
  for (unsigned set = 0; set < 256; ++set) {
    unsigned rank = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      const bool member = set >> lane & 1;
      for (unsigned i = 0; i < 2; ++i) {
        if (member) shuffles.words_together[set][2 * rank + i] = static_cast<uint8_t>(2 * lane + i);
        shuffles.words_apart[set][2 * lane + i] = static_cast<uint8_t>(member ? 2 * rank + i : 0x80);
      }
      if (member) shuffles.bytes_together[set][rank++] = static_cast<uint8_t>(lane);
    }
  }
  return shuffles;
}
constexpr LaneShuffles kLaneShuffles = make_lane_shuffles();

class Sixteens {
 private:
  static constexpr size_t kVectors = kMaskWords / 16;
  static constexpr char kHighest = 30;  // the symbol of the largest size

  // What 16 sizes take, in lanes of 16 bits.
  struct Shape {
    __m256i symbols, widths, powers;  // widths of the low bits; 2 to the power of those

    __m256i mask() const { return _mm256_add_epi16(powers, _mm256_set1_epi16(-1)); }
    // The smallest size of the symbol: of 0 and 1 that itself, then (2 | its lowest bit) * 2^width.
    __m256i least() const {
      const __m256i lowest = _mm256_and_si256(symbols, _mm256_set1_epi16(1));
      const __m256i top = _mm256_min_epu16(symbols, _mm256_or_si256(lowest, _mm256_set1_epi16(2)));
      return _mm256_mullo_epi16(top, powers);
    }
    // Widths of the even lanes, of two and of four of them.
    __m256i evens() const { return _mm256_and_si256(widths, _mm256_set1_epi32(0xffff)); }
    __m256i pairs() const { return _mm256_madd_epi16(widths, _mm256_set1_epi16(1)); }
    __m256i even_pairs() const { return _mm256_and_si256(pairs(), _mm256_set1_epi64x(0xffffffff)); }
    __m256i sums() const { return _mm256_add_epi64(even_pairs(), _mm256_srli_epi64(pairs(), 32)); }
  };

  static __m256i load_words(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static void store_words(uint8_t* p, __m256i words) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words); }
  // A bit for each byte, its highest.
  static uint32_t bits_of(__m256i bytes) { return static_cast<uint32_t>(_mm256_movemask_epi8(bytes)); }
  // From the order of packing to that of the words, and back.
  static __m256i in_order(__m256i bytes) { return _mm256_permute4x64_epi64(bytes, 0xd8); }

  // As order() in steps.h.
  template <bool kOrdered>
  static __m256i ordered(__m256i words) {
    if (!kOrdered) return words;
    return _mm256_xor_si256(words, _mm256_srli_epi16(_mm256_srai_epi16(words, 15), 1));
  }

  // The symbols of 16 sizes, as in find_symbols_of() in dense_steps_impl.h.
  static __m256i symbols_of(__m256i sizes) {
    const auto half = [](__m128i eight) {
      const __m256 numbers = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(eight));
      return _mm256_srli_epi32(_mm256_castps_si256(numbers), 22);
    };
    const __m256i low = half(_mm256_castsi256_si128(sizes)), high = half(_mm256_extracti128_si256(sizes, 1));
    const __m256i tops = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    const __m256i small = _mm256_min_epu16(sizes, _mm256_set1_epi16(1));
    return _mm256_max_epi16(_mm256_sub_epi16(tops, _mm256_set1_epi16(254)), small);
  }
  // The symbols of 32 sizes, as bytes.
  static __m256i symbols_of(__m256i first, __m256i second) {
    return _mm256_packus_epi16(symbols_of(first), symbols_of(second));
  }

  // body(0 or 1, shape) for both halves of 32 symbols.
  template <class Body>
  static void each_sixteen(__m256i symbols, Body&& body) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i halves = _mm256_and_si256(_mm256_srli_epi16(symbols, 1), _mm256_set1_epi8(0x7f));
    const __m256i widths = _mm256_subs_epu8(halves, _mm256_set1_epi8(1));
    const __m256i low_powers =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i high_powers =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, -128));
    const __m256i low = _mm256_shuffle_epi8(low_powers, widths), high = _mm256_shuffle_epi8(high_powers, widths);
    body(size_t{0}, Shape{_mm256_unpacklo_epi8(symbols, zero), _mm256_unpacklo_epi8(widths, zero),
                          _mm256_unpacklo_epi8(low, high)});
    body(size_t{1}, Shape{_mm256_unpackhi_epi8(symbols, zero), _mm256_unpackhi_epi8(widths, zero),
                          _mm256_unpackhi_epi8(low, high)});
  }

  // Four fields, each at the start of its lane, one behind the other in 64 bits; and back, where what stands above a
  // field is not zero.
  static __m256i close_up(__m256i fields, const Shape& shape) {
    const __m256i odd = _mm256_sllv_epi32(_mm256_srli_epi32(fields, 16), shape.evens());
    const __m256i two = _mm256_or_si256(_mm256_and_si256(fields, _mm256_set1_epi32(0xffff)), odd);
    const __m256i upper = _mm256_sllv_epi64(_mm256_srli_epi64(two, 32), shape.even_pairs());
    return _mm256_or_si256(_mm256_and_si256(two, _mm256_set1_epi64x(0xffffffff)), upper);
  }
  static __m256i move_apart(__m256i bits, const Shape& shape) {
    const __m256i upper = _mm256_slli_epi64(_mm256_srlv_epi64(bits, shape.even_pairs()), 32);
    const __m256i two = _mm256_blend_epi32(bits, upper, 0xaa);
    const __m256i odd = _mm256_slli_epi32(_mm256_srlv_epi32(two, shape.evens()), 16);
    return _mm256_blend_epi16(two, odd, 0xaa);
  }

 public:
  // Sorts by the exponents, one in a byte: by a table of 16 from below the first threshold on, and where the thresholds
  // lie too far apart for that, one by one.
  class Classifier {
   public:
    Classifier(const Layout& dtype, const StepClasses& classes, unsigned shift)
        : classes_(classes), mantissa_(_mm_cvtsi32_si128(static_cast<int>(dtype.exponent_shift()))), shift_(shift) {
      const auto threshold = [&](unsigned c) { return static_cast<int>(classes.limits[c] >> dtype.exponent_shift()); };
      const int first = threshold(0);
      by_table_ = first > 0 && threshold(classes.count - 2) - first < 15;
      if (!by_table_) return;
      const __m128i numbers = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      __m128i counts = _mm_setzero_si128();
      for (unsigned c = 0; c + 1 < classes.count; ++c) {
        const __m128i below = _mm_set1_epi8(static_cast<char>(threshold(c) - first));
        counts = _mm_sub_epi8(counts, _mm_cmpgt_epi8(numbers, below));
      }
      below_first_ = _mm256_set1_epi8(static_cast<char>(first - 1));
      table_ = _mm256_broadcastsi128_si256(_mm_sll_epi16(counts, _mm_cvtsi32_si128(static_cast<int>(shift))));
    }

    void operator()(const uint8_t* group, uint8_t* out) const { by_table_ ? look_up(group, out) : compare(group, out); }

   private:
    void look_up(const uint8_t* group, uint8_t* out) const {
      const auto exponents = [&](size_t v) { return _mm256_srl_epi16(magnitudes(group, v), mantissa_); };
      for (size_t v = 0; v < kVectors; v += 2) {
        const __m256i above = _mm256_subs_epu8(_mm256_packus_epi16(exponents(v), exponents(v + 1)), below_first_);
        put(_mm256_shuffle_epi8(table_, _mm256_min_epu8(above, _mm256_set1_epi8(15))), out + 16 * v);
      }
    }
    void compare(const uint8_t* group, uint8_t* out) const {
      const auto classes = [&](size_t v) {
        __m256i counts = _mm256_setzero_si256();
        for (unsigned c = 0; c + 1 < classes_.count; ++c) {
          const __m256i below = _mm256_set1_epi16(static_cast<int16_t>(classes_.limits[c] - 1));
          counts = _mm256_sub_epi16(counts, _mm256_cmpgt_epi16(magnitudes(group, v), below));
        }
        return _mm256_sll_epi16(counts, _mm_cvtsi32_si128(static_cast<int>(shift_)));
      };
      for (size_t v = 0; v < kVectors; v += 2) put(_mm256_packus_epi16(classes(v), classes(v + 1)), out + 16 * v);
    }
    static __m256i magnitudes(const uint8_t* group, size_t v) {
      return _mm256_and_si256(load_words(group + 32 * v), _mm256_set1_epi16(0x7fff));
    }
    static void put(__m256i packed, uint8_t* out) {
      store_words(out, _mm256_or_si256(load_words(out), in_order(packed)));
    }

    const StepClasses& classes_;
    const __m128i mantissa_;
    const unsigned shift_;
    bool by_table_;
    __m256i below_first_, table_;
  };

  // Measures steps. Sizes over 3 are put together before their low bits are written: they are few.
  class Measurer {
   public:
    explicit Measurer(BitSink* low) : low_(low) {}
    // As measure() in dense_steps_impl.h.
    template <bool kOrdered>
    uint64_t measure(const uint8_t* words, const uint8_t* base, uint8_t symbols[kMaskWords]) {
      if (num_large_ > kMaxLarge - kMaskWords) write();
      uint16_t* end = large_ + num_large_;  // here, where no store can change it
      uint64_t negative = 0;
      for (size_t v = 0; v < kVectors; v += 2) {
        __m256i sizes[2], signs[2];
        for (size_t i = 0; i < 2; ++i) {
          const size_t at = 32 * (v + i);
          const __m256i step =
              _mm256_sub_epi16(ordered<kOrdered>(load_words(words + at)), ordered<kOrdered>(load_words(base + at)));
          signs[i] = _mm256_srai_epi16(step, 15);
          sizes[i] = _mm256_abs_epi16(step);
        }
        const __m256i found = in_order(symbols_of(sizes[0], sizes[1]));
        store_words(symbols + 16 * v, found);
        negative |= uint64_t{bits_of(in_order(_mm256_packs_epi16(signs[0], signs[1])))} << (16 * v);
        const uint32_t large = bits_of(_mm256_cmpgt_epi8(found, _mm256_set1_epi8(3)));
        end = put_members(_mm256_castsi256_si128(sizes[0]), large & 255, end);
        end = put_members(_mm256_extracti128_si256(sizes[0], 1), large >> 8 & 255, end);
        end = put_members(_mm256_castsi256_si128(sizes[1]), large >> 16 & 255, end);
        end = put_members(_mm256_extracti128_si256(sizes[1], 1), large >> 24, end);
      }
      num_large_ = static_cast<size_t>(end - large_);
      return negative;
    }
    // The low bits of all sizes so far.
    void write() {
      std::memset(large_ + num_large_, 0, 64);
      BitSink sink = *low_;  // a copy, which no store of bits can change
      for (size_t first = 0; first < num_large_; first += 32) {
        const uint8_t* const sizes = reinterpret_cast<const uint8_t*>(large_ + first);
        const __m256i halves[2] = {load_words(sizes), load_words(sizes + 32)};
        alignas(32) uint64_t fields[8], widths[8];
        each_sixteen(symbols_of(halves[0], halves[1]), [&](size_t i, const Shape& shape) {
          const __m256i bits = _mm256_and_si256(halves[i], shape.mask());
          _mm256_store_si256(reinterpret_cast<__m256i*>(fields + 4 * i), close_up(bits, shape));
          _mm256_store_si256(reinterpret_cast<__m256i*>(widths + 4 * i), shape.sums());
        });
        for (size_t i = 0; i < 8; ++i) sink.put(fields[i], static_cast<unsigned>(widths[i]));
      }
      *low_ = sink;
      num_large_ = 0;
    }

   private:
    static constexpr size_t kMaxLarge = 1024;

    // Keep the members of a set, of 8 sizes. Returns the end of what was written.
    static uint16_t* put_members(__m128i sizes, uint32_t members, uint16_t* to) {
      const __m128i shuffle = load_half(kLaneShuffles.words_together[members]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(sizes, shuffle));
      return to + _mm_popcnt_u32(members);
    }

    BitSink* const low_;
    size_t num_large_ = 0;
    uint16_t large_[kMaxLarge + 32];
  };

  // Moves words by steps. The sizes of those with low bits are read together before any word is moved: they are few.
  class Mover {
   public:
    static constexpr size_t kMaxWords = 1024;

    // Read the sizes of `count` words, whole groups of them and at most kMaxWords. False, and nothing is read, if there
    // is the symbol of the largest size or one above.
    bool read(const uint8_t* symbols, size_t count, BitSource* low) {
      uint8_t large_symbols[kMaxWords + 32];
      const size_t num_large = find_large(symbols, count, large_symbols);
      if (num_large > count) return false;
      std::memset(large_symbols + num_large, 0, 32);
      BitSource source = *low;  // a copy, which no store of sizes can change
      for (size_t first = 0; first < num_large; first += 32) {
        each_sixteen(in_order(load_words(large_symbols + first)), [&](size_t i, const Shape& shape) {
          const __m256i bits = move_apart(take_fields(shape, &source), shape);
          const __m256i size = _mm256_add_epi16(shape.least(), _mm256_and_si256(bits, shape.mask()));
          store_words(reinterpret_cast<uint8_t*>(sizes_ + first + 16 * i), size);
        });
      }
      *low = source;
      next_size_ = sizes_;
      next_large_ = large_;
      return true;
    }
    // The next 64 words.
    template <bool kOrdered>
    void move(const uint8_t* base, const uint8_t* symbols, uint64_t negative, uint8_t* words) {
      const __m256i lanes = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
                                              std::numeric_limits<int16_t>::min());
      const uint64_t large = *next_large_++;
      const uint16_t* next = next_size_;  // here, where no store can change it
      const auto next_eight = [&](size_t first) {
        const uint64_t members = large >> first & 255;
        const __m128i sizes = load_half(next);
        next += _mm_popcnt_u64(members);
        return _mm_shuffle_epi8(sizes, load_half(kLaneShuffles.words_apart[members]));
      };
      for (size_t v = 0; v < kVectors; ++v) {
        const __m128i first = next_eight(16 * v), second = next_eight(16 * v + 8);
        const __m256i of_symbols = _mm256_cvtepu8_epi16(load_half(symbols + 16 * v));
        // No size is below its symbol.
        const __m256i size =
            _mm256_max_epu16(of_symbols, _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
        const __m256i some = _mm256_set1_epi16(static_cast<int16_t>(negative >> (16 * v)));
        const __m256i sign = _mm256_cmpeq_epi16(_mm256_and_si256(some, lanes), lanes);
        const __m256i step = _mm256_sub_epi16(_mm256_xor_si256(size, sign), sign);
        const __m256i sum = _mm256_add_epi16(ordered<kOrdered>(load_words(base + 32 * v)), step);
        store_words(words + 32 * v, ordered<kOrdered>(sum));
      }
      next_size_ = next;
    }

   private:
    // The words with symbols over 3, and these symbols one behind the other. Returns how many they are; more than
    // `count` if some are too large.
    size_t find_large(const uint8_t* symbols, size_t count, uint8_t* large_symbols) {
      __m256i most = _mm256_setzero_si256();
      size_t num_large = 0;
      for (size_t first = 0; first < count; first += kMaskWords) {
        const __m256i low = load_words(symbols + first), high = load_words(symbols + first + 32);
        most = _mm256_max_epu8(most, _mm256_max_epu8(low, high));
        const __m256i three = _mm256_set1_epi8(3);
        const uint64_t large =
            bits_of(_mm256_cmpgt_epi8(low, three)) | uint64_t{bits_of(_mm256_cmpgt_epi8(high, three))} << 32;
        large_[first / kMaskWords] = large;
        for (size_t i = 0; i < kMaskWords; i += 8) {
          const uint64_t members = large >> i & 255;
          const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols + first + i));
          const __m128i shuffle =
              _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLaneShuffles.bytes_together[members]));
          _mm_storel_epi64(reinterpret_cast<__m128i*>(large_symbols + num_large), _mm_shuffle_epi8(eight, shuffle));
          num_large += static_cast<size_t>(_mm_popcnt_u64(members));
        }
      }
      const __m256i limit = _mm256_set1_epi8(kHighest);
      return bits_of(_mm256_cmpeq_epi8(_mm256_max_epu8(most, limit), most)) == 0 ? num_large : SIZE_MAX;
    }
    // Four fields in each lane of 64 bits.
    static __m256i take_fields(const Shape& shape, BitSource* low) {
      alignas(32) uint64_t widths[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(widths), shape.sums());
      constexpr size_t kNbytes = 40;
      uint8_t copy[kNbytes];
      const uint8_t* const bytes = next_bytes<kNbytes>(*low, copy);
      uint64_t at = low->at % 8;
      const uint64_t start = at;
      const auto window = [&](size_t i) {
        const uint64_t bits = load<uint64_t>(bytes + at / 8) >> at % 8;
        at += widths[i];
        return static_cast<int64_t>(bits);
      };
      const int64_t first = window(0), second = window(1), third = window(2), fourth = window(3);
      low->at += at - start;
      return _mm256_set_epi64x(fourth, third, second, first);
    }
    const uint64_t* next_large_;
    const uint16_t* next_size_;
    uint64_t large_[kMaxWords / kMaskWords];
    uint16_t sizes_[kMaxWords + 32];
  };
};

}  // namespace
}  // namespace tw
