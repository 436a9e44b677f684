// About what blocks of several sizes would take, by a sample of their words.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/entropy_table.h"
#include "common/dtype.h"
#include "common/format.h"

namespace tw {

// Words that are looked at together: a block of the smallest size. Larger ones are 2, 4 and 8 times as large.
constexpr unsigned kNumSizes = 4;
constexpr size_t kUnitWords = kMaxBlockWords >> (kNumSizes - 1);

// Of words in runs: one run of so many is looked at; which one changes, so that columns of a matrix all have their
// turn.
constexpr size_t kSampleRun = 64, kSampleShare = 8, kSampleGroup = kSampleRun * kSampleShare;

// What was counted in a unit.
struct UnitCounts {
  size_t words, sampled;
  // Whether all words are the same; and if so, which.
  bool constant;
  uint64_t word;
  // Symbols of each plane: the exponent and the sign of a float, each byte of any other word. They are not counted
  // where most words are those of the base: such blocks tell what differs.
  bool has_planes;
  uint32_t planes[kMaxWordNbytes][256];
  // The symbols of the steps from the base, joined with their classes; how many are not 0, and what these take beside.
  uint32_t steps[256];
  uint64_t changed, step_bits;
};

class BlockBits {
 public:
  BlockBits(const Dtype& dtype, uint64_t align, bool relative) : dtype_(dtype), align_(align), relative_(relative) {}

  // The next unit, of 1 to kUnitWords words; `base` has as many, or is nullptr.
  void add(const uint8_t* words, const uint8_t* base, size_t n);
  // Once all units are added: bits of all blocks of kUnitWords << size words.
  uint64_t finish(unsigned size) {
    end_block(&sizes_[size]);  // the second time there is none
    return sizes_[size].bits;
  }

 private:
  struct Size {
    UnitCounts block = {};  // the one that has begun
    uint64_t bits = 0;      // of those before
  };

  void count_planes(const uint8_t* words, size_t n, UnitCounts* unit) const;
  void count_steps(const uint8_t* words, const uint8_t* base, size_t n, UnitCounts* unit) const;
  uint64_t bits_alone(const UnitCounts& block) const;
  uint64_t bits_of_steps(const UnitCounts& block) const;
  void end_block(Size* size);

  const Dtype dtype_;
  const uint64_t align_;  // of blocks, in bytes
  const bool relative_;
  Size sizes_[kNumSizes];
  uint64_t num_units_ = 0;
};

}  // namespace tw
