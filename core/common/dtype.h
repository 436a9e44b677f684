// The dtype table of docs/format.md: the one place in the library that knows how words are split.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tw {

struct Dtype {
  const char* name;
  uint16_t bits;                 // per element; 0 in kOpaque
  uint8_t word_nbytes;           // the unit that is coded
  uint8_t exponent_bits;         // E; 0 where words are not split
  uint8_t mantissa_bits;         // M
  uint8_t sign_mantissa_nbytes;  // of the number that holds sign and mantissa; 0 where words are not split
  bool ordered;                  // floats, split or not: the column of the page
};

// A float dtype as a type, for kernels that are compiled for each.
template <unsigned E, unsigned M>
struct Float {
  template <unsigned BITS>
  using Unsigned = std::conditional_t<BITS <= 8, uint8_t, std::conditional_t<BITS <= 16, uint16_t, uint32_t>>;
  using Word = Unsigned<1 + E + M>;
  using SignMantissa = Unsigned<1 + M>;
  static constexpr unsigned kE = E, kM = M;

  static constexpr Dtype row(const char* name) {
    return {name, 1 + E + M, sizeof(Word), E, M, sizeof(SignMantissa), true};
  }
};
using Bf16 = Float<8, 7>;
using F16 = Float<5, 10>;
using F32 = Float<8, 23>;
using E4m3 = Float<4, 3>;
using E5m2 = Float<5, 2>;

// body(F{}) with the type of a float dtype; M tells them apart.
template <class Body>
static inline void with_float(const Dtype& dtype, Body&& body) {
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

// Words of one byte: what every dtype outside the table is.
extern const Dtype kOpaque;

// The table's row, or kOpaque.
const Dtype& find_dtype(const char* name);

}  // namespace tw
