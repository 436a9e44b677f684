// Bytes that are used next come into a cache while others are worked on.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/bits.h"

namespace tw {

struct Fetch {
  const uint8_t* bytes = nullptr;
  size_t nbytes = 0;
};

// Words and those of their base.
struct FetchPair {
  Fetch words, base;
};

// The cache that bytes come into, as __builtin_prefetch() numbers them.
enum CacheLevel : int { kFirstLevel = 3, kSecondLevel = 2 };
enum Access : int { kRead = 0, kWrite = 1 };

// All of it is inlined: the sources of several targets use it, and GCC drops calls of a function that only prefetches,
// because it sees no effect.
template <CacheLevel kLevel = kFirstLevel, Access kAccess = kRead>
inline __attribute__((always_inline)) void prefetch(const uint8_t* at, const uint8_t* stop) {
  for (; at < stop; at += 64) __builtin_prefetch(at, kAccess, kLevel);
}

// Fetches 64 bytes with each step, as long as there are some: of the words first. For loops that take a while for each
// step, so that nothing waits.
class LineFetcher {
 public:
  LineFetcher() = default;
  explicit LineFetcher(const FetchPair& next)
      : at_(next.words.bytes), end_(at_ + next.words.nbytes), base_(next.base) {}

  inline __attribute__((always_inline)) void step() {
    if (at_ >= end_) {
      if (base_.nbytes == 0) return;
      at_ = base_.bytes;
      end_ = at_ + base_.nbytes;
      base_.nbytes = 0;
    }
    __builtin_prefetch(at_, kRead, kSecondLevel);
    at_ += 64;
  }

 private:
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  Fetch base_;
};

// Fetches a share with each step.
template <CacheLevel kLevel>
class Prefetcher {
 public:
  inline __attribute__((always_inline)) Prefetcher(Fetch next, size_t num_steps)
      : at_(next.bytes), end_(next.bytes + next.nbytes), share_(ceil_to(ceil_div(next.nbytes, num_steps), 64)) {}

  inline __attribute__((always_inline)) void step() {
    const uint8_t* const stop = static_cast<size_t>(end_ - at_) < share_ ? end_ : at_ + share_;
    prefetch<kLevel>(at_, stop);
    at_ = stop;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  size_t share_;
};

}  // namespace tw
