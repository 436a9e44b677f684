// Some of the cases of a test are enough for each change; `make test-slow` has TENSORWIRE_EVERY_CASE set.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace tests {

inline bool every_case() {
  static const bool every = std::getenv("TENSORWIRE_EVERY_CASE") != nullptr;
  return every;
}

// Whether a case runs: every `stride`-th does, by a number that cases side by side have next to each other.
inline bool runs(uint64_t number, uint64_t stride) { return every_case() || number % stride == 0; }

// How often something is drawn.
inline unsigned times(unsigned whole, unsigned quick) { return every_case() ? whole : quick; }

}  // namespace tests
