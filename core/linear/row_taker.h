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

  // Whether this target is faster with rows one by one. `columns` is the length of a row.
  static bool is_faster(WeightFormat format, uint64_t columns);

  // An input for all takers of a product: `arranged` as arrange_input() made it, `for_runs` as DigitDotKernels has it,
  // for which there is as much room.
  struct Input {
    const float *arranged, *for_runs;
  };
  static Input make_input(WeightFormat format, uint64_t columns, const float* arranged, float* for_runs);

  // num_rows rows, at least one, behind `skip` words of rows of others.
  RowTaker(WeightFormat format, uint64_t columns, Input input, uint64_t skip, uint64_t num_rows, float* out);

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

  const WeightFormat format_;
  const uint64_t columns_;
  const Input input_;
  uint64_t skip_, num_rows_;
  float* out_;
  uint64_t column_ = 0, num_taken_ = 0;
  Fetch next_;
  // The last of these rows is being added up. A total takes long, and of several one goes beside the other.
  alignas(64) float sums_[kRowsAtOnce][kDotLanes] = {};
  size_t num_whole_ = 0;
  alignas(64) uint8_t skipped_[kSegment + kSlack];
};

}  // namespace tw
