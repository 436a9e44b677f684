// The histogram of AVX2 and of AVX-512. Each target's source includes this once; everything is local to it.
#pragma once
#include "common/x86_bytes.h"

namespace tw {
namespace {

typedef uint8_t Vector __attribute__((vector_size(sizeof(Bytes)), may_alias));

// Values below 16 in the lower half of each byte; the upper bit is set for others.
inline Vector in_window(Vector values) {
  return reinterpret_cast<Vector>(add_saturated(reinterpret_cast<Bytes>(values), bytes(0x70)));
}

inline bool any_high_bit(Vector index) { return any(reinterpret_cast<Bytes>(index)); }

// A look-up gives 0 for a byte with the upper bit.
template <bool UPPER>
inline Vector one_hot(Vector index) {
  constexpr int64_t kBits = static_cast<int64_t>(0x8040201008040201);
  const Bytes bits = repeat(UPPER ? _mm_set_epi64x(kBits, 0) : _mm_set_epi64x(0, kBits));
  return reinterpret_cast<Vector>(look_up(bits, reinterpret_cast<Bytes>(index)));
}

}  // namespace
}  // namespace tw

#include "transforms/histogram_impl.h"
