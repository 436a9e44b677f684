#include <cstring>

#include "coders/rans.h"

namespace tw {
namespace {

const uint8_t* decode(const uint32_t table[kRansTotal], uint32_t states[kRansStates], const uint8_t* next,
                      const uint8_t* end, size_t num_groups, uint8_t* out) {
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
    for (size_t i = 0; i < kRansStates; ++i) out[i] = rans_decode_symbol(table, &states[i], &next);
  }
  return next;
}

const uint8_t* decode_classes(const uint32_t* tables, const uint8_t* classes, uint32_t states[kRansStates],
                              const uint8_t* next, const uint8_t* end, size_t num_groups, uint8_t* out) {
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates, classes += kRansStates) {
    if (next > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
    for (size_t i = 0; i < kRansStates; ++i) {
      out[i] = rans_decode_symbol(tables + classes[i] * kRansTotal, &states[i], &next);
    }
  }
  return next;
}

}  // namespace

uint16_t* rans_encode_scalar(const RansCode codes[256], const uint8_t* symbols, size_t num_groups,
                             uint32_t states[kRansStates], uint16_t* next) {
  for (size_t i = num_groups * kRansStates; i-- > 0;) {
    rans_encode_symbol(codes[symbols[i]], &states[i % kRansStates], &next);
  }
  return next;
}

extern const RansKernels kRansScalar;
const RansKernels kRansScalar = {decode, nullptr, decode_classes, rans_encode_scalar};

}  // namespace tw
