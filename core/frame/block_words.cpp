#include "frame/block_words.h"

#include <algorithm>
#include <numeric>

#include "coders/entropy_table.h"
#include "common/split.h"
#include "frame/layout.h"
#include "transforms/histogram.h"
#include "transforms/with_number.h"

namespace tw {
namespace {

// Words of a block that no row length changes, by profile. A relative frame has the same: blocks that do not look at
// the base cost no more than in a plain frame.
constexpr uint32_t kUsualBlockWords[] = {32768, 32768, 262144, 32768};

// Sizes that compact chooses among: 2^15 to 2^18 words. Smaller blocks decode more slowly.
constexpr unsigned kNumSizes = 4;
constexpr uint32_t kLeastSize = kUsualBlockWords[kProfileCompact] >> (kNumSizes - 1);
// Nothing is known of content that the sample does not show: the smallest blocks would cost more if it is all alike.
constexpr unsigned kLeastOfUnseen = 1;

// Runs of words that are looked at, one of so many; which one changes, so that columns of a matrix all have their turn.
constexpr size_t kSampleRun = 64, kSampleShare = 8, kSampleGroup = kSampleRun * kSampleShare;
constexpr size_t kUnitSamples = kLeastSize / kSampleShare;

// Bits that a block takes besides its symbols: entry of the index, descriptor, padding; and for each stream of coded
// symbols its states, and about what a symbol takes in the table.
constexpr uint64_t kBlockBits = 400, kStreamBits = 800, kSymbolBits = 11;
// A smaller size must save this part of all bits; the smallest one costs a sixth of the decoder's speed.
constexpr uint64_t kWorthShare = 2048, kWorthShareOfLeast = 512;

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
  const uint32_t usual = usual_block_words(frame), words = rows_near(frame, uint64_t{kLeastSize} << index);
  const uint64_t row = row_words(frame);
  return row > 1 && usual % row == 0 && words % row != 0 ? usual : words;
}

unsigned least_size(const tw_frame& frame) { return frame.uncompressed_nbytes > TW_SAMPLE_NBYTES ? kLeastOfUnseen : 0; }

// The symbols that are counted, plane by plane: the exponent and the sign of a float, each byte of any other word.
constexpr unsigned kSignPlane = 1;
unsigned num_planes(const Dtype& dtype) { return dtype.split == Split::kFloat ? 2 : dtype.word_nbytes; }
unsigned symbol_bits(const Dtype& dtype, unsigned plane) {
  if (dtype.split != Split::kFloat) return 8;
  return plane == kSignPlane ? 1 : dtype.exponent_bits;
}

// Puts the samples of n words (1 to kLeastSize) into `samples`; returns their number, at most kUnitSamples.
template <class Symbol>
size_t take_samples(size_t n, uint8_t* samples, Symbol&& symbol) {
  size_t count = 0;
  for (size_t group = 0; group * kSampleGroup < n; ++group) {
    const bool whole = n - group * kSampleGroup >= kSampleGroup;
    const size_t run = whole ? (3 * group + group / kSampleShare) % kSampleShare : 0;
    const size_t start = group * kSampleGroup + run * kSampleRun, stop = std::min(start + kSampleRun, n);
    for (size_t i = start; i < stop; ++i) samples[count++] = symbol(i);
  }
  return count;
}

size_t take_samples(const Dtype& dtype, const uint8_t* words, size_t n, unsigned plane, uint8_t* samples) {
  size_t count = 0;
  if (dtype.split == Split::kFloat) {
    with_split(dtype, [&](auto format) {
      using F = decltype(format);
      using Word = typename F::Word;
      count = take_samples(n, samples, [&](size_t i) {
        const Word word = load<Word>(words + i * sizeof(Word));
        return plane == kSignPlane ? static_cast<uint8_t>(word >> (8 * sizeof(Word) - 1)) : format.exponent(word);
      });
    });
  } else {
    with_number(dtype.word_nbytes, [&](auto number) {
      using Word = decltype(number);
      count = take_samples(n, samples, [&](size_t i) {
        return static_cast<uint8_t>(load<Word>(words + i * sizeof(Word)) >> (8 * plane));
      });
    });
  }
  return count;
}

// What blocks of one size would take, added up block by block.
class Estimate {
 public:
  void add(const uint32_t (*unit)[256], unsigned planes, size_t words, size_t sampled) {
    for (unsigned p = 0; p < planes; ++p) {
      for (unsigned s = 0; s < 256; ++s) counts_[p][s] += unit[p][s];
    }
    words_ += words;
    sampled_ += sampled;
  }

  void end_block(const Dtype& dtype) {
    if (words_ == 0) return;
    bits_ += kBlockBits + (dtype.split == Split::kFloat ? words_ * dtype.exponent_shift() : 0);
    for (unsigned p = 0; p < num_planes(dtype); ++p) {
      const uint64_t distinct = static_cast<uint64_t>(256 - std::count(counts_[p], counts_[p] + 256, 0u));
      const uint64_t coded = entropy_bits(counts_[p], sampled_) * words_ / sampled_;
      const uint64_t stream = distinct == 1 ? 0 : coded + kStreamBits + distinct * kSymbolBits;
      bits_ += std::min(stream, words_ * symbol_bits(dtype, p));
      std::fill(counts_[p], counts_[p] + 256, 0u);
    }
    words_ = sampled_ = 0;
  }

  uint64_t bits() const { return bits_; }

 private:
  uint32_t counts_[kMaxWordNbytes][256] = {};
  uint64_t words_ = 0, sampled_ = 0, bits_ = 0;
};

// Estimates for all sizes in one pass over the sample.
class Sampler {
 public:
  explicit Sampler(const Dtype& dtype) : dtype_(dtype) {}

  void add(const uint8_t* words, const uint8_t* base, size_t n) {
    uint32_t unit[kMaxWordNbytes][256];
    uint8_t samples[kUnitSamples], of_base[kUnitSamples];
    size_t count = 0;
    for (unsigned p = 0; p < num_planes(dtype_); ++p) {
      count = take_samples(dtype_, words, n, p, samples);
      dtype_.split == Split::kFloat ? histogram_kernels.bytes(samples, count, unit[p])
                                    : byte_histogram(samples, count, unit[p]);
      if (base == nullptr || p != 0) continue;
      take_samples(dtype_, base, n, p, of_base);
      for (size_t i = 0; i < count; ++i) alike_ += samples[i] == of_base[i];
    }
    sampled_ += count;
    ++units_;
    for (unsigned size = 0; size < kNumSizes; ++size) {
      estimates_[size].add(unit, num_planes(dtype_), n, count);
      if (units_ % (uint64_t{1} << size) == 0) estimates_[size].end_block(dtype_);
    }
  }

  // Bits of the whole sample.
  uint64_t finish(unsigned size) {
    estimates_[size].end_block(dtype_);
    return estimates_[size].bits();
  }

  // Most words are like those of the base, so that blocks will tell what differs, and have no tables of their own.
  bool follows_base() const { return 2 * alike_ >= sampled_; }

 private:
  const Dtype dtype_;
  Estimate estimates_[kNumSizes];
  uint64_t units_ = 0, sampled_ = 0, alike_ = 0;
};

}  // namespace

uint32_t usual_block_words(const tw_frame& frame) { return rows_near(frame, kUsualBlockWords[frame.profile]); }

uint32_t least_block_words(const tw_frame& frame) {
  uint32_t least = usual_block_words(frame);
  if (frame.profile != kProfileCompact) return least;
  for (unsigned size = least_size(frame); size < kNumSizes; ++size) least = std::min(least, size_words(frame, size));
  return least;
}

uint32_t fitting_block_words(const tw_frame& frame, const uint8_t* content, const uint8_t* base) {
  const uint32_t usual = usual_block_words(frame);
  const size_t words = std::min<uint64_t>(frame.uncompressed_nbytes, TW_SAMPLE_NBYTES) / frame.layout.word_nbytes;
  const bool many = ceil_div(frame.num_words, least_block_words(frame)) > kMaxBlocks;
  if (frame.profile != kProfileCompact || words <= kLeastSize || many) return usual;
  Sampler sampler(layout_of(frame));
  for (size_t start = 0; start < words; start += kLeastSize) {
    const size_t at = start * frame.layout.word_nbytes;
    sampler.add(content + at, base == nullptr ? nullptr : base + at, std::min<size_t>(kLeastSize, words - start));
  }
  if (base != nullptr && sampler.follows_base()) return usual;
  unsigned best = kNumSizes - 1;
  uint64_t bits = sampler.finish(best);
  for (unsigned size = best; size-- > least_size(frame);) {
    const uint64_t smaller = sampler.finish(size);
    if (smaller + smaller / (size == 0 ? kWorthShareOfLeast : kWorthShare) < bits) best = size, bits = smaller;
  }
  return best == kNumSizes - 1 ? usual : size_words(frame, best);
}

}  // namespace tw
