#include "frame/block_bits.h"

#include <algorithm>
#include <cstring>

#include "common/split.h"
#include "transforms/histogram.h"
#include "transforms/steps.h"
#include "transforms/with_number.h"

namespace tw {
namespace {

constexpr size_t kUnitSamples = kUnitWords / kSampleShare;

// Bits that a block takes besides its symbols and its padding, which is half of the alignment: entry of the index,
// descriptor; for each stream of coded symbols its states; for each class of a relative kind its parameters; for each
// symbol what it takes in the table, and what the entropy of a sample lacks.
constexpr uint64_t kBlockBits = 272, kStreamBits = 800, kSymbolBits = 11;
constexpr uint64_t kStepBlockBits = 122, kClassBits = 40, kStepSymbolBits = 11;
constexpr uint64_t kIndexBits = 64;

// Whether exponents and signs are planes of their own, beside mantissas that are taken as they are; else each byte is a
// plane. Kind entropy has nearly all bits of a float of one byte together.
bool has_exponents(const Dtype& dtype) { return dtype.split == Split::kFloat && dtype.word_nbytes > 1; }

constexpr unsigned kSignPlane = 1;
unsigned num_planes(const Dtype& dtype) { return has_exponents(dtype) ? 2 : dtype.word_nbytes; }
unsigned plane_bits(const Dtype& dtype, unsigned plane) {
  if (!has_exponents(dtype)) return 8;
  return plane == kSignPlane ? 1 : dtype.exponent_bits;
}

// The symbols of the steps are counted by class, as kind dense does, but here the lowest bits of the exponent are the
// class: few words of a block have exponents that lie so far apart.
constexpr unsigned kStepBits = 5;

// body(start, stop) for each run of a unit that is looked at.
template <class Body>
void for_runs(size_t n, Body&& body) {
  for (size_t group = 0; group * kSampleGroup < n; ++group) {
    const bool whole = n - group * kSampleGroup >= kSampleGroup;
    const size_t run = whole ? (3 * group + group / kSampleShare) % kSampleShare : 0;
    const size_t start = group * kSampleGroup + run * kSampleRun;
    body(start, std::min(start + kSampleRun, n));
  }
}

// symbol(word) of each word that is looked at; returns their number.
template <class Word, class Symbol>
size_t take(const uint8_t* words, size_t n, uint8_t* samples, Symbol&& symbol) {
  size_t count = 0;
  for_runs(n, [&](size_t start, size_t stop) {
    for (size_t i = start; i < stop; ++i) samples[count++] = symbol(load<Word>(words + i * sizeof(Word)));
  });
  return count;
}

size_t take_plane(const Dtype& dtype, const uint8_t* words, size_t n, unsigned plane, uint8_t* samples) {
  size_t count = 0;
  if (has_exponents(dtype)) {
    with_split(dtype, [&](auto format) {
      using F = decltype(format);
      using Word = typename F::Word;
      count = take<Word>(words, n, samples, [&](Word word) {
        return plane == kSignPlane ? static_cast<uint8_t>(word >> (8 * sizeof(Word) - 1)) : format.exponent(word);
      });
    });
  } else {
    with_number(dtype.word_nbytes, [&](auto number) {
      using Word = decltype(number);
      count = take<Word>(words, n, samples, [&](Word word) { return static_cast<uint8_t>(word >> (8 * plane)); });
    });
  }
  return count;
}

// Puts the lowest bits of the exponents above the symbols, of which large ones come in pairs.
void join_classes(const Dtype& dtype, const uint8_t* base, size_t n, uint8_t* symbols) {
  with_split(dtype, [&](auto format) {
    using F = decltype(format);
    using Word = typename F::Word;
    for (size_t i = 0; i < n; ++i) {
      const uint8_t symbol = symbols[i], pair = static_cast<uint8_t>(4 + symbol / 2);
      const uint8_t joined = symbol < 8 ? symbol : pair < 31 ? pair : 31;
      symbols[i] = static_cast<uint8_t>(joined | format.exponent(load<Word>(base + i * sizeof(Word))) << kStepBits);
    }
  });
}

uint64_t distinct(const uint32_t counts[256]) {
  return static_cast<uint64_t>(256 - std::count(counts, counts + 256, 0u));
}

void add_counts(const uint32_t more[256], uint32_t counts[256]) {
  for (unsigned s = 0; s < 256; ++s) counts[s] += more[s];
}

}  // namespace

void BlockBits::count_planes(const uint8_t* words, size_t n, UnitCounts* unit) const {
  uint8_t samples[kUnitSamples];
  for (unsigned p = 0; p < num_planes(dtype_); ++p) {
    unit->sampled = take_plane(dtype_, words, n, p, samples);
    has_exponents(dtype_) ? histogram_kernels.bytes(samples, unit->sampled, unit->planes[p])
                          : byte_histogram(samples, unit->sampled, unit->planes[p]);
  }
}

void BlockBits::count_steps(const uint8_t* words, const uint8_t* base, size_t n, UnitCounts* unit) const {
  constexpr size_t kTileRuns = 8, kTile = kTileRuns * kSampleRun;
  const size_t width = dtype_.word_nbytes;
  uint8_t symbols[kUnitSamples + kSampleRun], tile[2][kTile * kMaxWordNbytes];
  uint8_t signs[kTile / 8 + kStepSlack], low[kTile * kMaxWordNbytes + kStepSlack];
  size_t taken = 0, in_tile = 0;
  const auto measure = [&] {
    const DenseBits bits = step_kernels.measure(dtype_, tile[0], tile[1], in_tile, {}, symbols + taken, signs, low);
    if (has_classes(dtype_)) join_classes(dtype_, tile[1], in_tile, symbols + taken);
    unit->changed += bits.signs;
    unit->step_bits += bits.signs + bits.low;
    taken += in_tile;
    in_tile = 0;
  };
  for_runs(n, [&](size_t start, size_t stop) {
    std::memcpy(tile[0] + in_tile * width, words + start * width, (stop - start) * width);
    std::memcpy(tile[1] + in_tile * width, base + start * width, (stop - start) * width);
    in_tile += stop - start;
    if (in_tile == kTile) measure();
  });
  if (in_tile != 0) measure();
  unit->sampled = taken;
  histogram_kernels.bytes(symbols, taken, unit->steps);
}

void BlockBits::add(const uint8_t* words, const uint8_t* base, size_t n) {
  UnitCounts unit{};
  const size_t width = dtype_.word_nbytes;
  unit.words = n;
  std::memcpy(&unit.word, words, width);
  unit.constant = std::memcmp(words, words + width, (n - 1) * width) == 0;
  if (base != nullptr && std::memcmp(words, base, n * width) == 0) {
    unit.steps[0] = static_cast<uint32_t>(unit.sampled = ceil_div(n, kSampleShare));
  } else if (base != nullptr) {
    count_steps(words, base, n, &unit);
  }
  unit.has_planes = base == nullptr || 8 * unit.changed > unit.sampled;
  if (unit.has_planes) count_planes(words, n, &unit);
  ++num_units_;
  for (unsigned s = 0; s < kNumSizes; ++s) {
    UnitCounts& block = sizes_[s].block;
    const bool first = block.words == 0;
    block.constant = unit.constant && (first || (block.constant && block.word == unit.word));
    block.word = unit.word;
    block.has_planes = unit.has_planes && (first || block.has_planes);
    block.words += unit.words;
    block.sampled += unit.sampled;
    block.changed += unit.changed;
    block.step_bits += unit.step_bits;
    if (unit.has_planes) {
      for (unsigned p = 0; p < num_planes(dtype_); ++p) add_counts(unit.planes[p], block.planes[p]);
    }
    if (base != nullptr) add_counts(unit.steps, block.steps);
    if (num_units_ % (uint64_t{1} << s) == 0) end_block(&sizes_[s]);
  }
}

uint64_t BlockBits::bits_alone(const UnitCounts& block) const {
  if (block.constant) return kIndexBits + 8 * align_;
  if (!block.has_planes) return UINT64_MAX;
  uint64_t bits = kBlockBits + 4 * align_ + (has_exponents(dtype_) ? block.words * dtype_.exponent_shift() : 0);
  for (unsigned p = 0; p < num_planes(dtype_); ++p) {
    const uint64_t symbols = distinct(block.planes[p]);
    const uint64_t coded = entropy_bits(block.planes[p], block.sampled) * block.words / block.sampled;
    const uint64_t stream = symbols == 1 ? 0 : coded + kStreamBits + symbols * kSymbolBits;
    bits += std::min(stream, uint64_t{block.words} * plane_bits(dtype_, p));
  }
  return bits;
}

uint64_t BlockBits::bits_of_steps(const UnitCounts& block) const {
  if (block.changed == 0) return kIndexBits;
  uint32_t classes[256] = {};
  for (unsigned s = 0; s < 256 && has_classes(dtype_); ++s) classes[s >> kStepBits] += block.steps[s];
  const uint64_t all = entropy_bits(block.steps, block.sampled);
  const uint64_t of_classes = has_classes(dtype_) ? entropy_bits(classes, block.sampled) : 0;
  const uint64_t coded = (all > of_classes ? all - of_classes : 0) + block.step_bits;
  const uint64_t beside =
      kStepBlockBits + 4 * align_ + distinct(classes) * kClassBits + distinct(block.steps) * kStepSymbolBits;
  return beside + coded * block.words / block.sampled;
}

void BlockBits::end_block(Size* size) {
  const UnitCounts& block = size->block;
  if (block.words != 0) {
    uint64_t bits = bits_alone(block);
    if (relative_) bits = std::min(bits, bits_of_steps(block));
    size->bits += std::min(bits, uint64_t{block.words} * dtype_.word_nbytes * 8 + kIndexBits);
  }
  size->block = UnitCounts{};
}

}  // namespace tw
