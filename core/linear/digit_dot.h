// Products of one input with words of BF16 as a block has them, digits of exponents and rests: a word becomes a factor
// in registers, and is never put in memory. The order of summation is that of dot.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"
#include "common/prefetch.h"

namespace tw {

struct DigitDotKernels {
  // An input as add_runs() wants it, from one that arrange_input() made; columns are a multiple of kDotLanes. nullptr
  // where that is the same.
  void (*arrange)(const float* input, size_t columns, float* arranged);
  // DotKernels::add_terms of whole runs; exponents are turned, a rest has sign and mantissa. Returns how many of
  // runs.next were used. Reads up to kSlack past those and past the digits. A step of the prefetcher goes with each
  // run. nullptr where words are faster.
  size_t (*add_runs)(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, const float* input, float* sums,
                     Prefetcher<kSecondLevel>* prefetcher);
};

extern const DigitDotKernels& digit_dot_kernels;

}  // namespace tw
