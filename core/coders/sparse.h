// The bit string of extended kind sparse: which words changed, class by class, and by how many steps.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/class_costs.h"
#include "coders/step_classes.h"
#include "common/format.h"
#include "transforms/steps.h"

namespace tw {

constexpr size_t kMaxMasks = kMaxBlockWords / kMaskWords;

struct SparseEncodeScratch {
  ClassWords divided[kMaxClasses * kMaxMasks];
  // The changed words, in order of the block.
  uint32_t places[kMaxBlockWords + kMaskWords];
  uint8_t exponents[kMaxBlockWords];  // of the base
  uint64_t steps[kMaxBlockWords];     // size << 1 | negative
  // The same class by class.
  uint32_t ranks[kMaxBlockWords];
  uint64_t sorted_steps[kMaxBlockWords];
  uint32_t members[kMaxBlockWords], gaps[kMaxBlockWords];  // of a set of sizes; of what is written
};

// What was found out about the words of a block that changed.
struct SparsePlan {
  Thresholds thresholds;
  size_t count;                               // changed words
  uint32_t counts[kMaxClasses][kSizeRanges];  // by class: those of which the step has at least such a size
  uint64_t nbits;                             // about what the bit string takes
};

// Look at the changed words of a block: the masks say which, and there is at least one. Returns false if a step is too
// large for the kind.
bool sparse_plan(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, const uint64_t* changed,
                 LineFetcher* fetcher, unsigned max_classes, SparsePlan* plan, SparseEncodeScratch* scratch);

// Write the bit string that was planned. Returns its bytes, 0 if they exceed the capacity.
size_t sparse_encode(const Layout& dtype, const uint8_t* base, size_t n, const SparsePlan& plan, LineFetcher* fetcher,
                     uint8_t* dst, size_t capacity, SparseEncodeScratch* scratch);

struct SparseDecodeScratch {
  uint64_t ranks[kMaxClasses][kMaxMasks + 2];
  uint32_t members[kMaxBlockWords];  // of the sets of sizes
  alignas(64) uint8_t steps[kMaxBlockWords * kMaxWordNbytes + kStepSlack];
};

// Decode the bit string of a block of n words to what step_kernels.apply_sparse() takes; sparse->classes is set. Reads
// nothing behind the `available` bytes; *nbytes receives those of the string. Returns false if it is invalid.
bool sparse_decode(const Layout& dtype, const uint8_t* src, size_t available, size_t n, SparseSteps* sparse,
                   size_t* nbytes, SparseDecodeScratch* scratch);

}  // namespace tw
