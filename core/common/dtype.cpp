#include "common/dtype.h"

#include <cstring>

namespace tw {
namespace {

constexpr Layout whole(uint8_t word_nbytes) { return {word_nbytes, 0, 0, Split::kNone, false}; }
constexpr Layout split_float(uint8_t word_nbytes, uint8_t exponent_bits) {
  return {word_nbytes, exponent_bits, static_cast<uint8_t>(8 * word_nbytes - exponent_bits), Split::kFloat, true};
}
constexpr Layout kHalves = {1, 4, 4, Split::kUnsigned, false};

constexpr NamedDtype kDtypes[] = {
    {"BF16", 16, split_float(2, 8)},
    {"F16", 16, split_float(2, 5)},
    {"F32", 32, split_float(4, 8)},
    {"C64", 64, split_float(4, 8)},
    {"F8_E4M3", 8, split_float(1, 4)},
    {"F8_E4M3FNUZ", 8, split_float(1, 4)},
    {"F8_E5M2", 8, split_float(1, 5)},
    {"F8_E5M2FNUZ", 8, split_float(1, 5)},
    {"F8_E8M0", 8, {1, 8, 0, Split::kUnsigned, false}},
    {"F64", 64, split_float(8, 8)},  // its exponent has 11 bits, of which a layout takes the upper 8
    {"C128", 128, split_float(8, 8)},
    {"I8", 8, {1, 4, 4, Split::kSigned, false}},
    {"U8", 8, kHalves},
    {"F4", 4, kHalves},
    {"I64", 64, whole(8)},
    {"U64", 64, whole(8)},
    {"I32", 32, whole(4)},
    {"U32", 32, whole(4)},
    {"I16", 16, whole(2)},
    {"U16", 16, whole(2)},
    {"BOOL", 8, whole(1)},
};

}  // namespace

const char* broken_rule(const Layout& dtype) {
  const unsigned width = dtype.word_nbytes, bits = dtype.exponent_bits, rest = dtype.rest_bits;
  if (width != 1 && width != 2 && width != 4 && width != 8) return "1, 2, 4 or 8 bytes a word";
  if (bits > 8) return "0 to 8 exponent bits";
  if (dtype.split > Split::kSigned) return "split none, float, unsigned or signed";
  if (bits == 0 && dtype.split != Split::kNone) return "split none, since there are no exponent bits";
  if (bits == 0 && rest != 0) return "0 rest bits, since there are no exponent bits";
  if (bits != 0 && dtype.split == Split::kNone) return "split float, unsigned or signed, since there are exponent bits";
  if (bits != 0 && rest != 8 * width - bits) return "exponent bits and rest bits that together fill the word";
  if (dtype.split == Split::kFloat && rest == 0) return "1 rest bit or more for the sign of a float";
  return nullptr;
}

const NamedDtype* find_dtype(const char* name) {
  for (const NamedDtype& dtype : kDtypes) {
    if (std::strcmp(dtype.name, name) == 0) return &dtype;
  }
  return nullptr;
}

}  // namespace tw
