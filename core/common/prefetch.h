// Bytes that are read next come into the second-level cache while others are multiplied.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

struct Fetch {
  const uint8_t* bytes;
  size_t nbytes;
};

// Fetches a share with each step. All of it is inlined: the sources of several targets use it, and GCC drops calls of a
// function that only prefetches, because it sees no effect.
class Prefetcher {
 public:
  inline __attribute__((always_inline)) Prefetcher(Fetch next, size_t num_steps)
      : at_(next.bytes), end_(next.bytes + next.nbytes), share_((next.nbytes / num_steps + 63) / 64 * 64) {}

  inline __attribute__((always_inline)) void step() {
    const uint8_t* const stop = static_cast<size_t>(end_ - at_) < share_ ? end_ : at_ + share_;
    for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  size_t share_;
};

}  // namespace tw
