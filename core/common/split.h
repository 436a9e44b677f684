// Layouts as types, for kernels: how a word falls into exponent and rest. Local to the including source, as the kernels
// of each target are.
#pragma once
#include <cstdint>
#include <type_traits>

#include "common/dtype.h"

namespace tw {
namespace {

template <unsigned BITS>
using Unsigned = std::conditional_t<BITS <= 8, uint8_t, std::conditional_t<BITS <= 16, uint16_t, uint32_t>>;

// A float whose layout the compiler knows. x is the exponent and, below it, the top k bits of what follows it in the
// word; the rest is then without these.
template <unsigned E, unsigned M>
struct Float {
  using Word = Unsigned<1 + E + M>;
  using Rest = Unsigned<1 + M>;
  static constexpr bool kAny = false;

  static constexpr Layout layout() { return {sizeof(Word), E, 1 + M, Split::kFloat, true}; }
  static constexpr uint8_t exponent(Word word) { return static_cast<uint8_t>((word >> M) & ((1u << E) - 1)); }
  static constexpr Rest rest(Word word) {
    return static_cast<Rest>(((word >> (E + M)) << M) | (word & ((Word{1} << M) - 1)));
  }
  static constexpr unsigned top(Rest rest, unsigned k) {
    return static_cast<unsigned>(rest >> (M - k)) & ((1u << k) - 1);
  }
  static constexpr Rest without_top(Rest rest, unsigned k) {
    return static_cast<Rest>(((rest >> M) << (M - k)) | (rest & ((Rest{1} << (M - k)) - 1)));
  }
};
using Bf16 = Float<8, 7>;
using F16 = Float<5, 10>;
using F32 = Float<8, 23>;
using E4m3 = Float<4, 3>;
using E5m2 = Float<5, 2>;

// An integer of 8 bits: the upper half is the exponent, after the highest bit of a signed one was inverted.
template <bool SIGNED>
struct Integer {
  using Word = uint8_t;
  using Rest = uint8_t;
  static constexpr bool kAny = false;
  static constexpr unsigned kInverted = SIGNED ? 0x80 : 0;

  static constexpr Layout layout() { return {1, 4, 4, SIGNED ? Split::kSigned : Split::kUnsigned, false}; }
  static constexpr uint8_t exponent(Word word) { return static_cast<uint8_t>((word ^ kInverted) >> 4); }
  static constexpr Rest rest(Word word) { return word & 15; }
  static constexpr unsigned top(Rest rest, unsigned k) {
    return static_cast<unsigned>(rest) >> (4 - k) & ((1u << k) - 1);
  }
  static constexpr Rest without_top(Rest rest, unsigned k) { return static_cast<Rest>(rest & ((1u << (4 - k)) - 1)); }
};
using I8 = Integer<true>;
using U8 = Integer<false>;

// Any other layout: the compiler knows its types alone. Rests of integers have no bits above `below_`, so that what is
// said of a sign is 0 there.
template <class WordOf, class RestOf>
class AnySplit {
 public:
  using Word = WordOf;
  using Rest = RestOf;
  static constexpr bool kAny = true;

  explicit AnySplit(const Layout& layout)
      : layout_(layout),
        below_(layout.exponent_shift()),
        sign_(layout.split == Split::kFloat ? kHighest : Word{0}),
        inverted_(layout.split == Split::kSigned ? kHighest : Word{0}) {}

  Layout layout() const { return layout_; }
  uint8_t exponent(Word word) const {
    return static_cast<uint8_t>(static_cast<Word>(word ^ inverted_) >> below_ & ((1u << layout_.exponent_bits) - 1));
  }
  Rest rest(Word word) const {
    return static_cast<Rest>((word & sign_) >> layout_.exponent_bits | (word & low_bits(below_)));
  }
  unsigned top(Rest rest, unsigned k) const { return static_cast<unsigned>(rest >> (below_ - k)) & ((1u << k) - 1); }
  Rest without_top(Rest rest, unsigned k) const {
    return static_cast<Rest>(Word{rest} >> below_ << (below_ - k) | (rest & low_bits(below_ - k)));
  }
  // The way back, of x with k extra bits and the rest without them.
  Word word(Word x, Rest rest, unsigned k) const {
    const unsigned below = below_ - k;
    const Word sign = static_cast<Word>(Word{rest} >> below << (8 * sizeof(Word) - 1));
    return static_cast<Word>((sign | (rest & low_bits(below)) | static_cast<Word>(x << below)) ^ inverted_);
  }

 private:
  static constexpr Word kHighest = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  static Word low_bits(unsigned count) { return static_cast<Word>((Word{1} << count) - 1); }

  Layout layout_;
  unsigned below_;  // bits below the exponent
  Word sign_, inverted_;
};

constexpr unsigned split_key(const Layout& layout) {
  return layout.word_nbytes << 8 | layout.exponent_bits << 4 | static_cast<unsigned>(layout.split);
}

// body(F{}) with the type of a layout that is split. The layouts of the table of dtypes are compiled, but for those of
// F8_E8M0 and F64.
template <class Body>
inline void with_split(const Layout& layout, Body&& body) {
  switch (split_key(layout)) {
    case split_key(Bf16::layout()):
      return body(Bf16{});
    case split_key(F16::layout()):
      return body(F16{});
    case split_key(F32::layout()):
      return body(F32{});
    case split_key(E4m3::layout()):
      return body(E4m3{});
    case split_key(E5m2::layout()):
      return body(E5m2{});
    case split_key(I8::layout()):
      return body(I8{});
    case split_key(U8::layout()):
      return body(U8{});
    default:
      break;
  }
  switch (layout.word_nbytes) {
    case 1:
      return body(AnySplit<uint8_t, uint8_t>(layout));
    case 2:
      return layout.rest_nbytes() == 1 ? body(AnySplit<uint16_t, uint8_t>(layout))
                                       : body(AnySplit<uint16_t, uint16_t>(layout));
    case 4:
      return body(AnySplit<uint32_t, uint32_t>(layout));
    default:
      return body(AnySplit<uint64_t, uint64_t>(layout));
  }
}

}  // namespace
}  // namespace tw
