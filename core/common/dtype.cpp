#include "common/dtype.h"

#include <cstring>

namespace tw {
namespace {

constexpr Dtype kDtypes[] = {
    {"BF16", 16, 2, 8, 7},   {"F16", 16, 2, 5, 10}, {"F32", 32, 4, 8, 23}, {"F8_E4M3", 8, 1, 4, 3},
    {"F8_E5M2", 8, 1, 5, 2}, {"F64", 64, 8, 0, 0},  {"I64", 64, 8, 0, 0},  {"U64", 64, 8, 0, 0},
    {"I32", 32, 4, 0, 0},    {"U32", 32, 4, 0, 0},  {"I16", 16, 2, 0, 0},  {"U16", 16, 2, 0, 0},
    {"I8", 8, 1, 0, 0},      {"U8", 8, 1, 0, 0},    {"BOOL", 8, 1, 0, 0},
};

}  // namespace

const Dtype kOpaque = {"", 0, 1, 0, 0};

const Dtype& find_dtype(const char* name) {
  for (const Dtype& dtype : kDtypes) {
    if (std::strcmp(dtype.name, name) == 0) return dtype;
  }
  return kOpaque;
}

}  // namespace tw
