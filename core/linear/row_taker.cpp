#include "linear/row_taker.h"

#include <algorithm>
#include <cstring>

#include "linear/digit_dot.h"

namespace tw {
namespace {

// Whether blocks may be taken as digits.
bool takes_runs(WeightFormat format, uint64_t columns) {
  return format == WeightFormat::kBf16 && columns % kRun == 0 && digit_dot_kernels.add_runs != nullptr;
}

}  // namespace

bool RowTaker::is_faster(WeightFormat format, uint64_t columns) {
  return takes_runs(format, columns) || (dot_kernels.prefers_single_rows && columns % kDotLanes == 0);
}

RowTaker::Input RowTaker::make_input(WeightFormat format, uint64_t columns, const float* arranged, float* for_runs) {
  if (!takes_runs(format, columns) || digit_dot_kernels.arrange == nullptr) return {arranged, arranged};
  digit_dot_kernels.arrange(arranged, columns, for_runs);
  return {arranged, for_runs};
}

RowTaker::RowTaker(WeightFormat format, uint64_t columns, Input input, uint64_t skip, uint64_t num_rows, float* out)
    : Taker{take_words, takes_runs(format, columns) ? take_cascade : nullptr},
      format_(format),
      columns_(columns),
      input_(input),
      skip_(skip),
      num_rows_(num_rows),
      out_(out) {}

void RowTaker::end_row() {
  column_ = 0;
  if (--num_rows_ == 0) skip_ = UINT64_MAX;  // whatever else the last block has
  if (++num_whole_ == kRowsAtOnce || num_rows_ == 0) put_totals();
}

void RowTaker::put_totals() {
  for (size_t r = 0; r < num_whole_; ++r) *out_++ = dot_kernels.total(sums_[r]);
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
        dot_kernels.add_terms(format_, words + at * weight_nbytes(format_), piece, input_.arranged + column_,
                              sums_[num_whole_]);
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
        cascade->took(digit_dot_kernels.add_runs(cascade->runs(at), rests + at, piece / kRun, input_.for_runs + column_,
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
