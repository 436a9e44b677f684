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
  EntropyTables tables;  // of symbols, joined with their classes
  DenseBits bits;        // of signs and of low bits; as many signs as words changed
  size_t nbytes;         // about what the streams take
};

// Look at a block of n words, and leave in scratch what dense_encode() needs.
void dense_plan(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, const FetchPair& upcoming,
                unsigned max_classes, DensePlan* plan, DenseEncodeScratch* scratch);

// The same of n words of that block, from word `first` on, as if they were a block; their symbols are there, and get
// other classes. Nothing is encoded after that.
void dense_plan_part(const Layout& dtype, const uint8_t* base, size_t first, size_t n, unsigned max_classes,
                     DensePlan* plan, DenseEncodeScratch* scratch);

// Write the streams. Returns their bytes, 0 if they exceed the capacity.
size_t dense_encode(size_t n, const DensePlan& plan, uint8_t* dst, size_t capacity, DenseEncodeScratch* scratch);

// Words that are decoded at a time.
constexpr size_t kDenseTile = 2048;

// Decodes a block: first its symbols, then its words tile by tile. No input makes it read or write out of bounds.
class DenseDecoder {
 public:
  // Check what can be checked at once; src must outlive the decoding.
  bool open(const Layout& dtype, const uint8_t* src, size_t available, size_t n, const StepClasses& classes,
            size_t num_changed);
  // The symbols of all words, whose base is given; those of two blocks faster than one after the other.
  void decode_symbols(const uint8_t* base) { decode_symbols_from(0, base); }
  static void decode_symbols_of_two(DenseDecoder* a, const uint8_t* a_base, DenseDecoder* b, const uint8_t* b_base);
  // The next `count` words, kDenseTile of them but in the last tile. words may be base. False if the block is invalid.
  bool decode(const uint8_t* base, size_t count, uint8_t* words);
  // After the last tile: whether the streams ended as they must, and the bytes that they take.
  bool finish(size_t* nbytes);

 private:
  void classify(size_t first, size_t count, const uint8_t* base, uint8_t classes[kDenseTile]) const;
  void decode_symbols_from(size_t first, const uint8_t* base);

  Layout dtype_;
  StepClasses classes_;
  size_t num_words_, num_changed_;  // those whose step is not 0
  size_t num_decoded_;
  BitSource signs_, low_;
  size_t low_offset_;
  EntropyClassDecoder entropy_;
  uint8_t symbols_[kMaxBlockWords];
};

}  // namespace tw
