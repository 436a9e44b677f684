// The accumulators' loop of AVX2 and of AVX-512, over a target's Accumulators:
//   Accumulators(acc), store(acc)
//   key(i), Keys: what is added with stripe i of a block; those of a whole block, by []
//   add(stripe, key, copy): what is loaded goes to `copy` too, unless that is nullptr
//   fold(), scramble()
//   kAhead: how far ahead bytes are fetched
// Each target's source includes this once; everything is local to it.
#pragma once
#include "common/hash_secret.h"
#include "common/prefetch.h"

namespace tw {
namespace {

template <bool kCopies>
inline void take(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  const uint8_t* const start = data;
  const auto place = [&](const uint8_t* stripe) { return kCopies ? copy + (stripe - start) : nullptr; };
  Accumulators lanes(acc);
  const Accumulators::Keys keys;
  while (num_stripes != 0) {
    if (phase == 0 && num_stripes >= kHashBlockStripes) {
#pragma GCC unroll 16
      for (size_t i = 0; i < kHashBlockStripes; ++i) {
        const uint8_t* const stripe = data + i * kHashStripe;
        prefetch(stripe + Accumulators::kAhead, stripe + Accumulators::kAhead + kHashStripe);
        lanes.add(stripe, keys[i], place(stripe));
      }
      data += kHashBlockStripes * kHashStripe;
      num_stripes -= kHashBlockStripes;
    } else {
      lanes.add(data, Accumulators::key(phase), place(data));
      data += kHashStripe;
      --num_stripes;
      if (++phase < kHashBlockStripes) continue;
      phase = 0;
    }
    lanes.fold();
    lanes.scramble();
  }
  lanes.fold();
  lanes.store(acc);
}

void accumulate(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase) {
  take<false>(acc, data, num_stripes, phase, nullptr);
}

void copy(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  take<true>(acc, data, num_stripes, phase, copy);
}

}  // namespace
}  // namespace tw
