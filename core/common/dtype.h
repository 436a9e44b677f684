// The dtype table of docs/format.md: the one place in the library that knows how words are split.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tw {

enum class Split : uint8_t { kNone, kFloat, kSigned, kUnsigned };

struct Dtype {
  const char* name;
  uint16_t bits;                 // per element; 0 in kOpaque
  uint8_t word_nbytes;           // the unit that is coded
  uint8_t exponent_bits;         // E; 0 where words are not split
  uint8_t mantissa_bits;         // M; of integers R - 1, too
  uint8_t sign_mantissa_nbytes;  // of the number that holds the rest: sign and mantissa; 0 where words are not split
  bool ordered;                  // floats, split or not: the column of the page
  Split split;
};

template <unsigned BITS>
using Unsigned = std::conditional_t<BITS <= 8, uint8_t, std::conditional_t<BITS <= 16, uint16_t, uint32_t>>;

// A dtype that is split, as a type, for kernels that are compiled for each: a float dtype. x is the exponent and, below
// it, the top k bits of what follows it in the word; the rest is then without these.
template <unsigned E, unsigned M>
struct Float {
  using Word = Unsigned<1 + E + M>;
  using SignMantissa = Unsigned<1 + M>;
  static constexpr unsigned kE = E, kM = M;

  static constexpr Dtype row(const char* name) {
    return {name, 1 + E + M, sizeof(Word), E, M, sizeof(SignMantissa), true, Split::kFloat};
  }
  static constexpr uint8_t exponent(Word word) { return static_cast<uint8_t>((word >> M) & ((1u << E) - 1)); }
  static constexpr SignMantissa rest(Word word) {
    return static_cast<SignMantissa>(((word >> (E + M)) << M) | (word & ((Word{1} << M) - 1)));
  }
  static constexpr unsigned top(SignMantissa rest, unsigned k) {
    return static_cast<unsigned>(rest >> (M - k)) & ((1u << k) - 1);
  }
  static constexpr SignMantissa without_top(SignMantissa rest, unsigned k) {
    return static_cast<SignMantissa>(((rest >> M) << (M - k)) | (rest & ((SignMantissa{1} << (M - k)) - 1)));
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
  using SignMantissa = uint8_t;
  static constexpr unsigned kE = 4, kM = 3;
  static constexpr unsigned kInverted = SIGNED ? 0x80 : 0;

  static constexpr Dtype row(const char* name) {
    return {name, 8, 1, kE, kM, 1, false, SIGNED ? Split::kSigned : Split::kUnsigned};
  }
  static constexpr uint8_t exponent(Word word) { return static_cast<uint8_t>((word ^ kInverted) >> 4); }
  static constexpr SignMantissa rest(Word word) { return word & 15; }
  static constexpr unsigned top(SignMantissa rest, unsigned k) {
    return static_cast<unsigned>(rest) >> (4 - k) & ((1u << k) - 1);
  }
  static constexpr SignMantissa without_top(SignMantissa rest, unsigned k) {
    return static_cast<SignMantissa>(rest & ((1u << (4 - k)) - 1));
  }
};
using I8 = Integer<true>;
using U8 = Integer<false>;

// body(F{}) with the type of a dtype that is split; of floats M tells them apart.
template <class Body>
static inline void with_split(const Dtype& dtype, Body&& body) {
  if (dtype.split == Split::kSigned) return body(I8{});
  if (dtype.split == Split::kUnsigned) return body(U8{});
  switch (dtype.mantissa_bits) {
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
static inline constexpr unsigned zero_exponent(const Dtype& dtype) { return dtype.split == Split::kSigned ? 8 : 0; }

// Words of one byte: what every dtype outside the table is.
extern const Dtype kOpaque;

// The table's row, or kOpaque.
const Dtype& find_dtype(const char* name);

}  // namespace tw
