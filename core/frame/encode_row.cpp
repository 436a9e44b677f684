// Kind parts: a block that is a row of smaller ones, where that takes less.
#include <algorithm>
#include <cstring>

#include "frame/block_bits.h"
#include "frame/encode_block.h"
#include "frame/encode_parts.h"

namespace tw {
namespace {

// By the estimate a row must save this part of the bits.
constexpr uint64_t kWorthShare = 2048;

// Blocks one behind the other.
struct Row {
  size_t part_words, count, nbytes;
  size_t starts[kMaxParts + 1];

  size_t length(size_t i) const { return starts[i + 1] - starts[i]; }
  // A row of one is that block.
  size_t descriptor_nbytes() const {
    return count < 2 ? 0 : count * sizeof(uint16_t) + sizeof(uint16_t) + kExtendedNbytes + kTagNbytes;
  }
};

struct Source {
  const BlockSpec& spec;
  const uint8_t* words;
  size_t n;
  EncodeScratch* scratch;

  BlockSpec part(size_t first, uint8_t profile) const {
    BlockSpec part = spec.part(first);
    part.profile = profile;
    return part;
  }
};

// Whether the parts take less than `limit` bytes as profile fast codes them.
bool fast_is_below(const Source& source, size_t part_words, size_t limit, uint8_t* dst) {
  Row row = {part_words, 0, 0, {}};
  for (size_t first = 0; first < source.n; first += part_words) {
    const size_t count = std::min(part_words, source.n - first);
    const BlockSpec spec = source.part(first, kProfileFast);
    const uint8_t* const words = source.words + first * spec.dtype.word_nbytes;
    row.nbytes += plan_or_encode({spec, words, count, dst, stored_nbytes(spec, count), source.scratch});
    ++row.count;
    if (ceil_to(row.nbytes + row.descriptor_nbytes(), source.spec.align) >= limit) return false;
  }
  return true;
}

// The parts as `profile` codes them, to dst; false once they take `limit` bytes.
bool encode_row(const Source& source, uint8_t profile, size_t part_words, size_t limit, uint8_t* dst, Row* row) {
  *row = {part_words, 0, 0, {}};
  for (size_t first = 0; first < source.n; first += part_words) {
    const size_t count = std::min(part_words, source.n - first);
    const BlockSpec spec = source.part(first, profile);
    row->nbytes +=
        encode_whole(spec, source.words + first * spec.dtype.word_nbytes, count, dst + row->nbytes, source.scratch);
    row->starts[++row->count] = row->nbytes;
    if (ceil_to(row->nbytes + row->descriptor_nbytes(), source.spec.align) >= limit) return false;
  }
  return true;
}

// The smaller one of each two parts, to the place of `row`, whose parts are at `dst`.
void take_smaller(const Row& other, const uint8_t* others, Row* row, uint8_t* dst) {
  Row taken = *row;
  size_t end = 0;
  for (size_t i = 0; i < row->count; ++i) {
    const bool keeps = row->length(i) <= other.length(i);
    const size_t nbytes = keeps ? row->length(i) : other.length(i);
    std::memmove(dst + end, keeps ? dst + row->starts[i] : others + other.starts[i], nbytes);
    end += nbytes;
    taken.starts[i + 1] = end;
  }
  taken.nbytes = end;
  *row = taken;
}

// The part size, in words, that is likely to take less than one block, or 0.
size_t likely_part_words(const Source& source) {
  BlockBits blocks(source.spec.dtype, source.spec.align, source.spec.relative);
  const size_t width = source.spec.dtype.word_nbytes;
  for (size_t first = 0; first < source.n; first += kUnitWords) {
    const uint8_t* const base = source.spec.base == nullptr ? nullptr : source.spec.base + first * width;
    blocks.add(source.words + first * width, base, std::min(kUnitWords, source.n - first));
  }
  uint64_t bits = blocks.finish(kNumSizes - 1);
  size_t best = 0;
  for (unsigned size = kNumSizes - 1; size-- > 0;) {
    const uint64_t smaller = blocks.finish(size);
    const size_t words = source.spec.part_words << size;
    if (words < source.n && smaller + smaller / kWorthShare < bits) best = words, bits = smaller;
  }
  return best;
}

// The descriptor behind the parts. Returns the block's length.
size_t finish_row(const Source& source, const Row& row, uint8_t* dst) {
  uint8_t descriptor[kMaxParts * sizeof(uint16_t) + 4];
  for (size_t i = 0; i < row.count; ++i) {
    const size_t count = std::min(row.part_words, source.n - i * row.part_words);
    const bool stored = row.length(i) == stored_nbytes(source.spec.part(0), count);
    store(descriptor + i * sizeof(uint16_t),
          static_cast<uint16_t>(row.length(i) / kBlockAlign | (stored ? kPartStored : 0)));
  }
  uint8_t* end = descriptor + row.count * sizeof(uint16_t);
  store(end, static_cast<uint16_t>(row.part_words / kMinBlockWords));
  end[2] = kParts;
  end[3] = Tag{kExtended, kVerbatim, 0}.byte();
  return finish(dst, SIZE_MAX, source.spec.align, row.nbytes, descriptor, row.descriptor_nbytes());
}

}  // namespace

size_t encode_block(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch) {
  const size_t whole = encode_whole(spec, words, n, dst, scratch);
  if (whole == 0 || spec.part_words == 0) return whole;
  const Source source = {spec, words, n, scratch};
  scratch->upcoming = {};
  Row fast, row;
  // What profile fast takes is a bound.
  const bool beaten = fast_is_below(source, spec.part_words, whole, scratch->fast_parts) &&
                      encode_row(source, kProfileFast, spec.part_words, whole, scratch->fast_parts, &fast);
  if (beaten && fast.count == 1) {
    std::memcpy(dst, scratch->fast_parts, fast.nbytes);
    return fast.nbytes;
  }
  const size_t likely = beaten ? spec.part_words : n > spec.part_words ? likely_part_words(source) : 0;
  if (likely == 0) return whole;
  const bool smaller = encode_row(source, kProfileCompact, likely, beaten ? SIZE_MAX : whole, scratch->parts, &row);
  if (beaten) take_smaller(fast, scratch->fast_parts, &row, scratch->parts);
  if (!beaten && !smaller) return whole;
  std::memcpy(dst, scratch->parts, row.nbytes);
  return finish_row(source, row, dst);
}

}  // namespace tw
