// The streams of extended kind dense: the symbol of each word's step, signs, low bits of the sizes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/bit_string.h"
#include "coders/entropy.h"
#include "coders/sparse.h"
#include "coders/step_classes.h"
#include "transforms/steps.h"

namespace tw {

struct DenseEncodeScratch {
  uint8_t symbols[kMaxBlockWords];
  uint8_t signs[kMaxBlockWords / 8 + kStepSlack], low[kMaxBlockWords * kMaxWordNbytes + kStepSlack];
  EntropyScratch entropy;
};

struct DensePlan {
  Thresholds thresholds;
  DenseBits bits;           // of signs and of low bits; as many signs as words changed
  uint32_t histogram[256];  // of symbols, joined with their classes
  size_t nbytes;            // about what the streams take
};

// Look at a block of n words, and leave in scratch what dense_encode() needs.
void dense_plan(const Dtype& dtype, const uint8_t* words, const uint8_t* base, size_t n, unsigned max_classes,
                DensePlan* plan, DenseEncodeScratch* scratch);

// Write the streams. Returns their bytes, 0 if they exceed the capacity.
size_t dense_encode(const Dtype& dtype, size_t n, const DensePlan& plan, uint8_t* dst, size_t capacity,
                    DenseEncodeScratch* scratch);

// Words that are decoded at a time.
constexpr size_t kDenseTile = 2048;

// Decodes a block tile by tile. No input makes it read or write out of bounds.
class DenseDecoder {
 public:
  // Check what can be checked at once; src must outlive the decoding.
  bool open(const Dtype& dtype, const uint8_t* src, size_t available, size_t n, const StepClasses& classes,
            size_t num_changed);
  // The next `count` words, kDenseTile of them but in the last tile. words may be base. False if the block is invalid.
  bool decode(const uint8_t* base, size_t count, uint8_t* words);
  // After the last tile: whether the streams ended as they must, and the bytes that they take.
  bool finish(size_t* nbytes);

 private:
  const Dtype* dtype_;
  StepClasses classes_;
  size_t num_changed_;  // words whose step is not 0
  BitSource signs_, low_;
  size_t low_offset_;
  EntropyClassDecoder entropy_;
  uint8_t tile_classes_[kDenseTile], symbols_[kDenseTile];
};

}  // namespace tw
