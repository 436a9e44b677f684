// Products of one input with rows whose words come block by block. Rows may begin and end amid blocks.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/prefetch.h"
#include "frame/decode_block.h"
#include "linear/dot.h"

namespace tw {

class RowTaker : public Taker {
 public:
  static constexpr size_t kRowsAtOnce = 16;

  // Whether rows of so many columns are faster one by one.
  static bool is_faster(const DotKernels& kernels, uint64_t columns) {
    return kernels.add_runs != nullptr && columns % kRun == 0;
  }

  // num_rows rows, at least one, behind `skip` words of rows of others, for an input that is arranged.
  RowTaker(const DotKernels& kernels, uint64_t columns, const float* input, uint64_t skip, uint64_t num_rows,
           float* out)
      : Taker{take_words, take_cascade},
        kernels_(kernels),
        columns_(columns),
        input_(input),
        skip_(skip),
        num_rows_(num_rows),
        out_(out) {}

  // Before each block: what to fetch meanwhile.
  void begin(Fetch next) { next_ = next, num_taken_ = 0; }
  // After it: whether the words have yet to be added, since the block's kind writes all at once.
  bool has_none() const { return num_taken_ == 0; }
  void add(const uint8_t* words, uint64_t count);

 private:
  static void take_words(Taker* taker, const uint8_t* words, size_t count);
  static void take_cascade(Taker* taker, CascadeDecoder* cascade, const uint8_t* rests, size_t count);
  void add_runs(CascadeDecoder* cascade, const uint8_t* rests, size_t count);
  void end_row();
  void put_totals();

  // skip(at, count) and add(at, count) with the pieces of `count` words that are of others, or of one row.
  template <class Skip, class Add>
  void cut(uint64_t count, Skip&& skip, Add&& add);

  const DotKernels& kernels_;
  const uint64_t columns_;
  const float* const input_;
  uint64_t skip_, num_rows_;
  float* out_;
  uint64_t column_ = 0, num_taken_ = 0;
  Fetch next_;
  // The last of these rows is being added up. A total takes long, and of several one goes beside the other.
  alignas(64) float sums_[kRowsAtOnce][kMostSums] = {};
  size_t num_whole_ = 0;
  alignas(64) uint8_t skipped_[kSegment + kSlack];
};

}  // namespace tw
