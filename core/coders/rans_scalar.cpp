#include <cstring>

#include "coders/rans_impl.h"

namespace tw {
namespace {

// The states are stepped one by one, in registers' reach of each other.
class Lanes {
 public:
  Lanes(const uint32_t* table, const uint32_t states[kRansStates], const uint8_t* next) : table_(table), next_(next) {
    std::memcpy(states_, states, sizeof states_);
  }
  void store(uint32_t states[kRansStates]) const { std::memcpy(states, states_, sizeof states_); }
  const uint8_t* next() const { return next_; }

  void decode(uint8_t* out) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kRansStates; ++i) out[i] = rans_decode_symbol(table_, &states_[i], &next_);
  }
  void decode(const uint8_t* classes, uint8_t* out) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kRansStates; ++i) {
      out[i] = rans_decode_symbol(table_ + classes[i] * kRansTotal, &states_[i], &next_);
    }
  }

 private:
  const uint32_t* table_;
  const uint8_t* next_;
  uint32_t states_[kRansStates];
};

}  // namespace

uint16_t* rans_encode_scalar(const RansCode codes[256], const uint8_t* symbols, size_t num_groups,
                             uint32_t states[kRansStates], uint16_t* next) {
  for (size_t i = num_groups * kRansStates; i-- > 0;) {
    rans_encode_symbol(codes[symbols[i]], &states[i % kRansStates], &next);
  }
  return next;
}

extern const RansKernels kRansScalar;
const RansKernels kRansScalar = {decode<Lanes>, nullptr, decode_classes<Lanes>, rans_encode_scalar};

}  // namespace tw
