#include "common/dtype.h"

#include <cstring>

namespace tw {
namespace {

constexpr Dtype whole(uint8_t word_nbytes, bool ordered = false) { return {word_nbytes, 0, 0, Split::kNone, ordered}; }

constexpr NamedDtype kDtypes[] = {
    {"BF16", 16, Bf16::kLayout},   {"F16", 16, F16::kLayout},
    {"F32", 32, F32::kLayout},     {"C64", 64, F32::kLayout},
    {"F8_E4M3", 8, E4m3::kLayout}, {"F8_E4M3FNUZ", 8, E4m3::kLayout},
    {"F8_E5M2", 8, E5m2::kLayout}, {"F8_E5M2FNUZ", 8, E5m2::kLayout},
    {"F64", 64, whole(8, true)},   {"C128", 128, whole(8, true)},
    {"I8", 8, I8::kLayout},        {"U8", 8, U8::kLayout},
    {"F4", 4, U8::kLayout},        {"I64", 64, whole(8)},
    {"U64", 64, whole(8)},         {"I32", 32, whole(4)},
    {"U32", 32, whole(4)},         {"I16", 16, whole(2)},
    {"U16", 16, whole(2)},         {"BOOL", 8, whole(1)},
};

}  // namespace

bool valid_layout(const Dtype& dtype) {
  const unsigned width = dtype.word_nbytes, bits = dtype.exponent_bits;
  if (width != 1 && width != 2 && width != 4 && width != 8) return false;
  if (bits == 0) return dtype.rest_bits == 0 && dtype.split == Split::kNone;
  if (bits > 8 || dtype.rest_bits != 8 * width - bits) return false;
  return dtype.split == Split::kFloat ? dtype.rest_bits != 0
                                      : dtype.split == Split::kUnsigned || dtype.split == Split::kSigned;
}

const NamedDtype* find_dtype(const char* name) {
  for (const NamedDtype& dtype : kDtypes) {
    if (std::strcmp(dtype.name, name) == 0) return &dtype;
  }
  return nullptr;
}

}  // namespace tw
