// A number's size as its type. Local to the including source, as the kernels of each target are.
#pragma once
#include <cstdint>

namespace tw {
namespace {

// body(T{}) with the unsigned T of 1, 2, 4 or 8 bytes.
template <class Body>
inline auto with_number(unsigned nbytes, Body&& body) {
  switch (nbytes) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

}  // namespace
}  // namespace tw
