// Kind parts: a block that is a row of smaller ones, where that takes less.
#include <algorithm>

#include "frame/encode_block.h"
#include "frame/encode_kinds.h"

namespace tw {
namespace {

// Blocks one behind the other.
struct PartLengths {
  size_t count, nbytes;
  size_t lengths[kMaxParts];

  void push(size_t length) {
    lengths[count++] = length;
    nbytes += length;
  }
  // A single one is that block.
  size_t descriptor_nbytes() const {
    return count < 2 ? 0 : count * sizeof(uint16_t) + sizeof(uint16_t) + kExtendedNbytes + kTagNbytes;
  }
};

struct Row {
  const BlockSpec& spec;
  const uint8_t* words;
  size_t n;
  EncodeScratch* scratch;

  // body(the part as `profile` has it, its words, their number) for each part, until it is false.
  template <class Body>
  bool each(uint8_t profile, Body&& body) const {
    for (size_t first = 0; first < n; first += spec.part_words) {
      BlockSpec part = spec.part(first);
      part.profile = profile;
      if (n <= spec.part_words) part.align = spec.align;  // then it is the block
      if (!body(part, words + first * spec.dtype.word_nbytes, std::min(spec.part_words, n - first))) return false;
    }
    return true;
  }
};

// Whether profile fast would take less than `limit` bytes, and what for each part.
bool fast_is_below(const Row& row, size_t limit, PartLengths* parts) {
  *parts = {};
  return row.each(kProfileFast, [&](const BlockSpec& part, const uint8_t* words, size_t n) {
    parts->push(plan_or_encode({part, words, n, row.scratch->part, stored_nbytes(part, n), row.scratch}));
    return ceil_to(parts->nbytes + parts->descriptor_nbytes(), row.spec.align) < limit;
  });
}

// Whether profile fast takes at least `limit` bytes, as can be told of the block that was encoded last before its parts
// are. What plain blocks take is planned below.
bool fast_is_surely_above(const Row& row, size_t limit) {
  RelativeEncodeScratch& relative = row.scratch->relative;
  if (!row.spec.relative || !relative.dense_alone) return false;
  size_t least = 0;
  row.each(kProfileFast, [&](const BlockSpec& part, const uint8_t* words, size_t n) {
    const size_t first = static_cast<size_t>(words - row.words) / part.dtype.word_nbytes;
    const size_t of_part = least_of_part(part, words, first, n, &relative);
    least += of_part;
    return of_part != 0 && least < limit;
  });
  return least >= limit;
}

// The smaller one of both profiles for each part.
PartLengths encode_parts(const Row& row, const PartLengths& fast, uint8_t* dst) {
  PartLengths parts = {};
  row.each(row.spec.profile, [&](BlockSpec part, const uint8_t* words, size_t n) {
    size_t length = encode_whole(part, words, n, dst + parts.nbytes, row.scratch);
    if (length > fast.lengths[parts.count]) {
      part.profile = kProfileFast;
      length = encode_whole(part, words, n, dst + parts.nbytes, row.scratch);
    }
    parts.push(length);
    return true;
  });
  return parts;
}

// The descriptor behind the parts. Returns the block's length.
size_t finish_parts(const Row& row, const PartLengths& parts, uint8_t* dst) {
  uint8_t descriptor[kMaxParts * sizeof(uint16_t) + 4];
  for (size_t i = 0; i < parts.count; ++i) {
    const size_t first = i * row.spec.part_words, n = std::min(row.spec.part_words, row.n - first);
    const bool stored = parts.lengths[i] == stored_nbytes(row.spec.part(first), n);
    store(descriptor + i * sizeof(uint16_t),
          static_cast<uint16_t>(parts.lengths[i] / kBlockAlign | (stored ? kPartStored : 0)));
  }
  uint8_t* end = descriptor + parts.count * sizeof(uint16_t);
  store(end, static_cast<uint16_t>(row.spec.part_words / kMinBlockWords));
  end[2] = kParts;
  end[3] = Tag{kExtended, kVerbatim, 0}.byte();
  return finish(dst, SIZE_MAX, row.spec.align, parts.nbytes, descriptor, parts.descriptor_nbytes());
}

}  // namespace

size_t encode_block(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch) {
  const size_t whole = encode_whole(spec, words, n, dst, scratch);
  if (whole == 0 || spec.part_words == 0) return whole;
  const Row row = {spec, words, n, scratch};
  scratch->upcoming = {};
  PartLengths fast;
  if (fast_is_surely_above(row, whole) || !fast_is_below(row, whole, &fast)) return whole;
  const PartLengths parts = encode_parts(row, fast, dst);
  return parts.count == 1 ? parts.nbytes : finish_parts(row, parts, dst);
}

}  // namespace tw
