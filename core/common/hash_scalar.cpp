#include "common/bits.h"
#include "common/hash.h"

namespace tw {
namespace {

void accumulate(uint64_t accumulators[8], const uint8_t* data, size_t num_stripes, const uint64_t* secret) {
  for (size_t stripe = 0; stripe < num_stripes; ++stripe, data += 64, ++secret) {
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t value = load<uint64_t>(data + 8 * i);
      const uint64_t key = value ^ secret[i];
      accumulators[i ^ 1] += value;
      accumulators[i] += (key & 0xffffffff) * (key >> 32);
    }
  }
}

}  // namespace

extern const HashKernels kHashScalar;
const HashKernels kHashScalar = {accumulate};

}  // namespace tw
