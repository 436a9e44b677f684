// About what classes of a block of kind sparse take, by the words and the steps that they have.
#pragma once
#include <cstdint>

#include "coders/step_classes.h"
#include "common/format.h"

namespace tw {

constexpr unsigned kRiceBits = 5, kGolombBits = 6;  // of a k, of an order
constexpr unsigned kCountOrder = 5;                 // of the golomb() of counts
constexpr unsigned kFirstLargeStep = 4;             // smaller sizes have sets
// Sizes of at least 1, 2, 3, 4.
constexpr unsigned kSizeRanges = kFirstLargeStep;

// What there is before each cut and in all: differences are those of classes. Steps are those of at least such a size.
struct CutSums {
  uint32_t words[kMaxCuts + 1], steps[kSizeRanges][kMaxCuts + 1];
};

// Kernels, one set per target.
struct ClassCostKernels {
  // Those of the classes [first, last) of cuts, for each first below `last`; others are undefined.
  void (*costs)(const CutSums& sums, unsigned last, uint64_t costs[kMaxCuts]);
};

extern const ClassCostKernels& class_cost_kernels;

}  // namespace tw
