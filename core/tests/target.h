// For tests that cmake/on_every_target.cmake runs once for each SIMD target.
#pragma once
#include <cstdlib>
#include <cstring>

#include "common/cpu.h"

namespace tests {

constexpr int kSkipped = 77;

// Whether the target that TENSORWIRE_CPU names is the one that runs; true if it names none.
inline bool forced_target_runs() {
  const char* forced = std::getenv("TENSORWIRE_CPU");
  return forced == nullptr || std::strcmp(forced, tw::target_name(tw::cpu_target())) == 0;
}

}  // namespace tests
