#include "frame/block_words.h"

#include <algorithm>
#include <numeric>

#include "frame/block_bits.h"
#include "frame/layout.h"

namespace tw {
namespace {

// Words of a block that no row length changes, by profile. A relative frame has the same: blocks that do not look at
// the base cost no more than in a plain frame.
constexpr uint32_t kUsualBlockWords[] = {32768, 32768, 262144, 32768};

// A smaller size must save this part of all bits; more where most of the content is not in the sample.
constexpr uint64_t kWorthShare = 2048, kWorthShareOfUnseen = 256;
// Where the content changes on the way, blocks have the size of those of profile fast, unless that costs this part.
constexpr uint64_t kSmallestShare = 256;

// The words of a row, of the last dimension; 0 where it has no whole number of them, or there is one row alone.
uint64_t row_words(const tw_frame& frame) {
  if (frame.ndim < 2) return 0;
  const uint64_t size = frame.shape[frame.ndim - 1];
  const uint64_t unit = 8 * uint64_t{frame.layout.word_nbytes};
  if (size > unit * kMaxBlockWords) return 0;  // more words than a block has, whatever the bits
  return size * frame.bits % unit == 0 ? size * frame.bits / unit : 0;
}

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

// The words of a block of size `index`, counted from the smallest; the usual ones where others would cut rows.
uint32_t size_words(const tw_frame& frame, unsigned index) {
  const uint32_t usual = usual_block_words(frame), words = rows_near(frame, uint64_t{kUnitWords} << index);
  const uint64_t row = row_words(frame);
  return row > 1 && usual % row == 0 && words % row != 0 ? usual : words;
}

}  // namespace

uint32_t usual_block_words(const tw_frame& frame) { return rows_near(frame, kUsualBlockWords[frame.profile]); }

uint32_t least_block_words(const tw_frame& frame) {
  uint32_t least = usual_block_words(frame);
  if (frame.profile != kProfileCompact) return least;
  for (unsigned size = 0; size < kNumSizes; ++size) least = std::min(least, size_words(frame, size));
  return least;
}

uint32_t fitting_block_words(const tw_frame& frame, const uint8_t* content, const uint8_t* base) {
  const uint32_t usual = usual_block_words(frame);
  const size_t words = std::min<uint64_t>(frame.uncompressed_nbytes, TW_SAMPLE_NBYTES) / frame.layout.word_nbytes;
  const bool many = ceil_div(frame.num_words, least_block_words(frame)) > kMaxBlocks;
  if (frame.profile != kProfileCompact || words <= kUnitWords || many) return usual;
  BlockBits blocks(layout_of(frame), block_align(frame), base != nullptr);
  for (size_t start = 0; start < words; start += kUnitWords) {
    const size_t at = start * frame.layout.word_nbytes;
    blocks.add(content + at, base == nullptr ? nullptr : base + at, std::min<size_t>(kUnitWords, words - start));
  }
  const uint64_t share = frame.uncompressed_nbytes > TW_SAMPLE_NBYTES ? kWorthShareOfUnseen : kWorthShare;
  unsigned best = kNumSizes - 1;
  uint64_t bits = blocks.finish(best);
  for (unsigned size = best; size-- > 0;) {
    const uint64_t smaller = blocks.finish(size);
    if (smaller + smaller / share < bits) best = size, bits = smaller;
  }
  if (best == kNumSizes - 1) return usual;
  const uint64_t smallest = blocks.finish(0);
  return size_words(frame, smallest < bits + bits / kSmallestShare ? 0 : best);
}

}  // namespace tw
