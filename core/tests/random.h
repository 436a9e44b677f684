// Numbers for tests: the same on every machine (SplitMix64 of S. Vigna).
#pragma once
#include <cstdint>

namespace tests {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t limit) { return next() % limit; }
  bool one_in(uint64_t n) { return next() % n == 0; }

 private:
  uint64_t state_;
};

}  // namespace tests
