#if defined(__aarch64__)
#include <arm_neon.h>

#include "transforms/histogram.h"

namespace tw {
namespace {

typedef uint8_t Vector __attribute__((vector_size(16), may_alias));

// Values below 16 as they are; the upper bit is set for others.
inline Vector in_window(Vector values) { return values | reinterpret_cast<Vector>(values >= 16); }

inline bool any_high_bit(Vector index) { return vmaxvq_u8(index) >= 0x80; }

// A shuffle gives 0 for what is no index.
template <bool UPPER>
inline Vector one_hot(Vector index) {
  const uint8x8_t bits = vcreate_u8(0x8040201008040201), zeros = vdup_n_u8(0);
  return vqtbl1q_u8(UPPER ? vcombine_u8(zeros, bits) : vcombine_u8(bits, zeros), index);
}

}  // namespace
}  // namespace tw

#include "transforms/histogram_impl.h"

namespace tw {
extern const HistogramKernels kHistogramNeon;
const HistogramKernels kHistogramNeon = {byte_histogram_vector};
}  // namespace tw
#endif
