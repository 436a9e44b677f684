#include <cstring>

#include "coders/rans_impl.h"

namespace tw {
namespace {

// The states are stepped one by one, in registers' reach of each other.
class Lanes {
 public:
  explicit Lanes(const RansStream& stream) : tables_(stream.tables), next_(stream.next) {
    std::memcpy(states_, stream.states, sizeof states_);
  }
  void store(RansStream* stream) const {
    std::memcpy(stream->states, states_, sizeof states_);
    stream->next = next_;
  }
  const uint8_t* next() const { return next_; }

  template <bool kClasses>
  void decode(const uint8_t* classes, uint8_t* out) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kRansStates; ++i) {
      out[i] = rans_decode_symbol(tables_ + (kClasses ? classes[i] * kRansTotal : 0), &states_[i], &next_);
    }
  }

 private:
  const uint32_t* tables_;
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
const RansKernels kRansScalar = {decode<Lanes>, nullptr, rans_encode_scalar};

}  // namespace tw
