#if defined(__aarch64__)
#include <cstring>

#include "coders/rans.h"

namespace tw {
namespace {

// NEON has no gather: the states are stepped one by one, in registers' reach of each other.
const uint8_t* decode(const uint32_t table[kRansTotal], uint32_t states[kRansStates], const uint8_t* next,
                      const uint8_t* end, size_t num_groups, uint8_t* out) {
  uint32_t local[kRansStates];
  std::memcpy(local, states, sizeof local);
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kRansStates; ++i) out[i] = rans_decode_symbol(table, &local[i], &next);
  }
  std::memcpy(states, local, sizeof local);
  return next;
}

const uint8_t* decode_classes(const uint32_t* tables, const uint8_t* classes, uint32_t states[kRansStates],
                              const uint8_t* next, const uint8_t* end, size_t num_groups, uint8_t* out) {
  uint32_t local[kRansStates];
  std::memcpy(local, states, sizeof local);
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates, classes += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kRansStates; ++i) {
      out[i] = rans_decode_symbol(tables + classes[i] * kRansTotal, &local[i], &next);
    }
  }
  std::memcpy(states, local, sizeof local);
  return next;
}

}  // namespace

extern const RansKernels kRansNeon;
const RansKernels kRansNeon = {decode, nullptr, decode_classes, rans_encode_scalar};

}  // namespace tw
#endif
