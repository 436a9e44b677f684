// The layouts of docs/format.md, and its table of dtypes: the one place in the library that knows how words are split.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tw {

enum class Split : uint8_t { kNone, kFloat, kUnsigned, kSigned };  // as in the header

// How long words are and how they are split. The rest of a float has its sign above the mantissa.
struct Dtype {
  uint8_t word_nbytes;    // W
  uint8_t exponent_bits;  // E; 0 where words are not split
  uint8_t rest_bits;      // R; may be 0 where words are split, too
  Split split;
  bool ordered;

  // Bytes of the number that holds a rest in memory.
  constexpr unsigned rest_nbytes() const { return word_nbytes == 2 && rest_bits <= 8 ? 1 : word_nbytes; }
  // Bits of a word below its exponent.
  constexpr unsigned exponent_shift() const { return split == Split::kFloat ? rest_bits - 1u : rest_bits; }
};

static inline constexpr bool operator==(const Dtype& a, const Dtype& b) {
  return a.word_nbytes == b.word_nbytes && a.exponent_bits == b.exponent_bits && a.rest_bits == b.rest_bits &&
         a.split == b.split && a.ordered == b.ordered;
}

template <unsigned BITS>
using Unsigned = std::conditional_t<BITS <= 8, uint8_t, std::conditional_t<BITS <= 16, uint16_t, uint32_t>>;

// A layout that is split, as a type, for kernels that are compiled for each: a float. x is the exponent and, below it,
// the top k bits of what follows it in the word; the rest is then without these.
template <unsigned E, unsigned M>
struct Float {
  using Word = Unsigned<1 + E + M>;
  using Rest = Unsigned<1 + M>;
  static constexpr unsigned kE = E, kM = M;
  static constexpr Dtype kLayout = {sizeof(Word), E, 1 + M, Split::kFloat, true};

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
  static constexpr unsigned kE = 4, kM = 3;
  static constexpr unsigned kInverted = SIGNED ? 0x80 : 0;
  static constexpr Dtype kLayout = {1, kE, 8 - kE, SIGNED ? Split::kSigned : Split::kUnsigned, false};

  static constexpr uint8_t exponent(Word word) { return static_cast<uint8_t>((word ^ kInverted) >> 4); }
  static constexpr Rest rest(Word word) { return word & 15; }
  static constexpr unsigned top(Rest rest, unsigned k) {
    return static_cast<unsigned>(rest) >> (4 - k) & ((1u << k) - 1);
  }
  static constexpr Rest without_top(Rest rest, unsigned k) { return static_cast<Rest>(rest & ((1u << (4 - k)) - 1)); }
};
using I8 = Integer<true>;
using U8 = Integer<false>;

// body(F{}) with the type of a layout that is split.
template <class Body>
static inline void with_split(const Dtype& dtype, Body&& body) {
  if (dtype.split == Split::kSigned) return body(I8{});
  if (dtype.split == Split::kUnsigned) return body(U8{});
  switch (dtype.exponent_shift()) {
    case Bf16::kM:
      return body(Bf16{});
    case F16::kM:
      return body(F16{});
    case F32::kM:
      return body(F32{});
    case E4m3::kM:
      return body(E4m3{});
    default:
      return body(E5m2{});
  }
}

// The exponent of the word 0.
static inline constexpr unsigned zero_exponent(const Dtype& dtype) {
  return dtype.split == Split::kSigned ? 1u << (dtype.exponent_bits - 1) : 0;
}

// Whether the page allows the layout.
bool valid_layout(const Dtype& dtype);

// Words of one byte: what every dtype outside the table is.
constexpr Dtype kOpaque = {1, 0, 0, Split::kNone, false};

// A row of the page's table of dtypes.
struct NamedDtype {
  const char* name;
  uint16_t bits;  // per element
  Dtype layout;
};

// The table's row; nullptr for a name that it does not have.
const NamedDtype* find_dtype(const char* name);

}  // namespace tw
