#include "common/dtype.h"

#include <cstring>

namespace tw {
namespace {

// A dtype whose words are not split.
constexpr Dtype whole(const char* name, uint8_t nbytes, bool ordered = false) {
  return {name, static_cast<uint16_t>(8 * nbytes), nbytes, 0, 0, 0, ordered, Split::kNone};
}

constexpr Dtype kDtypes[] = {
    Bf16::row("BF16"),     F16::row("F16"), F32::row("F32"), E4m3::row("F8_E4M3"), E5m2::row("F8_E5M2"),
    whole("F64", 8, true), whole("I64", 8), whole("U64", 8), whole("I32", 4),      whole("U32", 4),
    whole("I16", 2),       whole("U16", 2), I8::row("I8"),   U8::row("U8"),        whole("BOOL", 1),
};

}  // namespace

const Dtype kOpaque = {"", 0, 1, 0, 0, 0, false, Split::kNone};

const Dtype& find_dtype(const char* name) {
  for (const Dtype& dtype : kDtypes) {
    if (std::strcmp(dtype.name, name) == 0) return dtype;
  }
  return kOpaque;
}

}  // namespace tw
