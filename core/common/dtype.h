// The layouts of docs/format.md, and its table of dtypes: the one place in the library that knows how words are split.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

enum class Split : uint8_t { kNone, kFloat, kUnsigned, kSigned };  // as in the header

// How long words are and how they are split. The rest of a float has its sign above the mantissa.
struct Layout {
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

static inline constexpr bool operator==(const Layout& a, const Layout& b) {
  return a.word_nbytes == b.word_nbytes && a.exponent_bits == b.exponent_bits && a.rest_bits == b.rest_bits &&
         a.split == b.split && a.ordered == b.ordered;
}

// The exponent of the word 0.
static inline constexpr unsigned zero_exponent(const Layout& dtype) {
  return dtype.split == Split::kSigned ? 1u << (dtype.exponent_bits - 1) : 0;
}

// What the page expects of a layout and this one breaks; nullptr for one that the page allows.
const char* broken_rule(const Layout& dtype);

// Words of one byte: what every dtype outside the table is.
constexpr Layout kOpaque = {1, 0, 0, Split::kNone, false};

// A row of the page's table of dtypes.
struct NamedDtype {
  const char* name;
  uint16_t bits;  // per element
  Layout layout;
};

// The table's row; nullptr for a name that it does not have.
const NamedDtype* find_dtype(const char* name);

}  // namespace tw
