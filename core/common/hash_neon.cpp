#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>

#include "common/hash_secret.h"

namespace tw {
namespace {

inline uint64x2_t load_pair(const uint8_t* p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }

void add(uint64x2_t acc[4], const uint8_t* stripe, const uint8_t* secret) {
  for (size_t i = 0; i < 4; ++i) {
    const uint64x2_t value = load_pair(stripe + 16 * i);
    const uint64x2_t key = veorq_u64(value, load_pair(secret + 16 * i));
    acc[i] = vaddq_u64(acc[i], vextq_u64(value, value, 1));
    acc[i] = vmlal_u32(acc[i], vmovn_u64(key), vshrn_n_u64(key, 32));
  }
}

void scramble(uint64x2_t acc[4]) {
  const uint32x2_t prime = vdup_n_u32(kHashPrime32[0]);
  for (size_t i = 0; i < 4; ++i) {
    uint64x2_t x = veorq_u64(acc[i], vshrq_n_u64(acc[i], 47));
    x = veorq_u64(x, load_pair(kHashSecret + kHashScrambleAt + 16 * i));
    const uint64x2_t high = vmull_u32(vshrn_n_u64(x, 32), prime);
    acc[i] = vmlal_u32(vshlq_n_u64(high, 32), vmovn_u64(x), prime);
  }
}

void accumulate(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase) {
  uint64x2_t lanes[4];
  for (size_t i = 0; i < 4; ++i) lanes[i] = vld1q_u64(acc + 2 * i);
  for (size_t n = 0; n < num_stripes; ++n) {
    add(lanes, data + n * kHashStripe, kHashSecret + 8 * phase);
    if (++phase < kHashBlockStripes) continue;
    phase = 0;
    scramble(lanes);
  }
  for (size_t i = 0; i < 4; ++i) vst1q_u64(acc + 2 * i, lanes[i]);
}

void copy(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  std::memcpy(copy, data, num_stripes * kHashStripe);
  accumulate(acc, copy, num_stripes, phase);
}

}  // namespace

extern const HashKernels kHashNeon;
const HashKernels kHashNeon = {accumulate, copy};

}  // namespace tw
#endif
