// Words of BF16 from a block's digits and rests in one pass, without exponents in memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"

namespace tw {

struct DigitWordKernels {
  // Exponents are turned; a rest has sign and mantissa. Returns how many of runs.next were used. Reads up to kSlack
  // past those and past the digits. nullptr where two passes are faster.
  size_t (*weave_runs)(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, uint8_t* words);
};

extern const DigitWordKernels& digit_word_kernels;

}  // namespace tw
