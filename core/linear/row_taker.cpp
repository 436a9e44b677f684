#include "linear/row_taker.h"

#include <algorithm>
#include <cstring>

namespace tw {
void RowTaker::end_row() {
  column_ = 0;
  if (--num_rows_ == 0) skip_ = UINT64_MAX;  // whatever else the last block has
  if (++num_whole_ == kRowsAtOnce || num_rows_ == 0) put_totals();
}

void RowTaker::put_totals() {
  for (size_t r = 0; r < num_whole_; ++r) *out_++ = kernels_.total(sums_[r]);
  std::memset(sums_, 0, sizeof sums_);
  num_whole_ = 0;
}

template <class Skip, class Add>
void RowTaker::cut(uint64_t count, Skip&& skip, Add&& add) {
  num_taken_ += count;
  for (uint64_t at = 0; at < count;) {
    const uint64_t piece = std::min(count - at, skip_ != 0 ? skip_ : columns_ - column_);
    if (skip_ != 0) {
      skip(at, piece);
      skip_ -= piece;
    } else {
      add(at, piece);
      column_ += piece;
      if (column_ == columns_) end_row();
    }
    at += piece;
  }
}

void RowTaker::add(const uint8_t* words, uint64_t count) {
  cut(
      count, [](uint64_t, uint64_t) {},
      [&](uint64_t at, uint64_t piece) {
        kernels_.add_terms(words + at * kWeightNbytes, piece, input_ + column_, sums_[num_whole_]);
      });
}

void RowTaker::add_runs(CascadeDecoder* cascade, const uint8_t* rests, size_t count) {
  Prefetcher<kSecondLevel> prefetcher(next_, count / kRun);
  cut(
      count,
      [&](uint64_t at, uint64_t piece) {
        for (uint64_t done = 0; done < piece; done += kSegment) {
          cascade->decode(at + done, std::min<uint64_t>(kSegment, piece - done), skipped_);
        }
      },
      [&](uint64_t at, uint64_t piece) {
        cascade->took(kernels_.add_runs(cascade->runs(at), rests + at, piece / kRun, input_ + column_,
                                        sums_[num_whole_], &prefetcher));
      });
}

void RowTaker::take_words(Taker* taker, const uint8_t* words, size_t count) {
  static_cast<RowTaker*>(taker)->add(words, count);
}

void RowTaker::take_cascade(Taker* taker, CascadeDecoder* cascade, const uint8_t* rests, size_t count) {
  static_cast<RowTaker*>(taker)->add_runs(cascade, rests, count);
}

}  // namespace tw
