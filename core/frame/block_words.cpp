#include "frame/block_words.h"

#include <algorithm>
#include <numeric>

#include "frame/header.h"

namespace tw {

uint64_t row_words(const tw_frame& frame) {
  if (frame.ndim < 2) return 0;
  const uint64_t size = frame.shape[frame.ndim - 1];
  const uint64_t unit = 8 * uint64_t{frame.layout.word_nbytes};
  if (size > unit * kMaxBlockWords) return 0;  // more words than a block has, whatever the bits
  return size * frame.bits % unit == 0 ? size * frame.bits / unit : 0;
}

namespace {

// Words of a block that no row length changes. A relative frame has the same: blocks that do not look at the base cost
// no more than in a plain frame.
constexpr uint32_t kFastBlockWords = 32768;

// Whole rows, where some multiple of them is near `size`; else `size`.
uint32_t rows_near(const tw_frame& frame, uint64_t size) {
  const uint64_t row = row_words(frame);
  const uint64_t least = size / 2, most = std::min<uint64_t>(2 * size, kMaxBlockWords);
  const bool empty = std::find(frame.shape, frame.shape + frame.ndim, 0) != frame.shape + frame.ndim;
  if (row < 2 || row > most || empty) return static_cast<uint32_t>(size);
  const uint64_t unit = std::lcm(row, uint64_t{kMinBlockWords});
  const uint64_t below = size / unit * unit, above = below + unit;
  if (above <= most && (below < least || above - size < size - below)) return static_cast<uint32_t>(above);
  return static_cast<uint32_t>(below < least ? size : below);
}

// What a frame takes more, at most, if each of its blocks is a row of `count` parts instead of blocks of its own, of
// which there are num_parts: a block has a descriptor, and its parts share an entry of the index.
int64_t parts_excess(uint64_t num_parts, uint64_t count) {
  const auto excess = [](uint64_t parts) {
    if (parts < 2) return int64_t{0};
    return static_cast<int64_t>(ceil_to(2 * parts + 4, kBlockAlign)) - static_cast<int64_t>(8 * (parts - 1));
  };
  return static_cast<int64_t>(num_parts / count) * excess(count) + excess(num_parts % count);
}

// At most `most` parts that are whole rows together, unless those would be fewer than half as many; else `most`.
uint64_t parts_near(const tw_frame& frame, uint64_t most, uint64_t part_words) {
  const uint64_t row = row_words(frame);
  for (uint64_t count = most; row > 1 && 2 * count >= most && count > 0; --count) {
    if (count * part_words % row == 0) return count;
  }
  return most;
}

}  // namespace

uint32_t fast_block_words(const tw_frame& frame) { return rows_near(frame, kFastBlockWords); }

uint32_t usual_block_words(const tw_frame& frame) {
  const uint32_t fast = fast_block_words(frame);
  if (frame.profile != kProfileCompact) return fast;
  const uint64_t num_parts = ceil_div(frame.num_words, fast), count = parts_near(frame, kMaxBlockWords / fast, fast);
  return count < 2 || num_parts < 2 || parts_excess(num_parts, count) > 0 ? fast : static_cast<uint32_t>(count * fast);
}

size_t part_words(const tw_frame& frame) {
  return frame.profile == kProfileCompact ? std::min(fast_block_words(frame), frame.block_words) : 0;
}

}  // namespace tw
