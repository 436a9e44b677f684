#include "coders/enec.h"

namespace tw {
namespace {

size_t merge(const EnecMap& map, const uint8_t* quads, const uint8_t* high, size_t n, uint8_t* out) {
  const uint8_t* next = high;
  for (size_t i = 0; i < n; i += kQuad) {
    const bool flagged = quads[i / (8 * kQuad)] >> (i / kQuad % 8) & 1;
    for (size_t j = 0; j < kQuad; ++j) {
      const unsigned y = out[i + j] | (flagged ? unsigned{next[j]} << map.m : 0);
      out[i + j] = static_cast<uint8_t>((map.base - (y ^ map.sign)) & map.mask);
    }
    next += flagged ? kQuad : 0;
  }
  return static_cast<size_t>(next - high);
}

}  // namespace

extern const EnecKernels kEnecScalar;
const EnecKernels kEnecScalar = {merge};

}  // namespace tw
