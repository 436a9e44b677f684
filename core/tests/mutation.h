// Damage to frames that leaves their checksums right.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "frame/header.h"
#include "tests/repair.h"
#include "tests/sources.h"

namespace tests {

// A frame in its parts: the fixed part with the shape, the index, the extensions, the blocks, the padding.
struct FrameParts {
  Bytes fixed, extensions, data, padding;
  std::vector<uint32_t> places;

  explicit FrameParts(const Bytes& frame) {
    const tw_frame parsed = frame_of(frame);
    const size_t index = tw::index_offset(parsed), blocks = parsed.header_nbytes;
    const auto bytes = [&](size_t start, size_t stop) { return Bytes(&frame[0] + start, &frame[0] + stop); };
    fixed = bytes(0, index);
    extensions = bytes(blocks - parsed.extensions_nbytes, blocks);
    while (!extensions.empty() && extensions.back() == 0) extensions.pop_back();
    data = bytes(blocks, blocks + parsed.data_nbytes);
    padding = bytes(blocks + parsed.data_nbytes, frame.size());
    for (uint64_t i = 0; parsed.data_nbytes != 0 && i < parsed.num_blocks; ++i) {
      places.push_back(tw::load<uint32_t>(&frame[index + 8 * i]));
    }
  }

  size_t unit() const { return size_t{1} << fixed[tw::kAtBlockAlignment]; }
  // The extent of a block that lies in the data; nothing of others.
  std::pair<uint64_t, uint64_t> extent(size_t block) const {
    const uint64_t start = start_of(block), stop = block + 1 < places.size() ? start_of(block + 1) : data.size();
    return start <= stop && stop <= data.size() ? std::make_pair(start, stop) : std::make_pair(0ul, 0ul);
  }
  uint64_t start_of(size_t block) const { return uint64_t{places[block] & ~tw::kStoredBit} * unit(); }

  // The frame, with the sizes and checksums of what it is now.
  Bytes assemble() const {
    const uint64_t alignment = uint64_t{1} << fixed[tw::kAtFrameAlignment];
    Bytes frame = fixed;
    frame.resize(fixed.size() + sizeof(tw::IndexEntry) * places.size());
    for (size_t block = 0; block < places.size(); ++block) {
      tw::store(&frame[fixed.size() + sizeof(tw::IndexEntry) * block], places[block]);
    }
    frame.insert(frame.end(), extensions.begin(), extensions.end());
    frame.resize(tw::ceil_to(frame.size(), alignment));
    tw::store(&frame[tw::kAtHeader], uint64_t{frame.size()});
    tw::store(&frame[tw::kAtData], uint64_t{data.size()});
    frame.insert(frame.end(), data.begin(), data.end());
    const size_t end = frame.size();
    frame.insert(frame.end(), padding.begin(), padding.end());
    frame.resize(tw::ceil_to(frame.size(), alignment));
    tw::store(&frame[tw::kAtPadding], static_cast<uint32_t>(frame.size() - end));
    repair(&frame);
    return frame;
  }
};

template <class T, size_t N>
const T& one_of(const T (&all)[N], Random* random) {
  return all[random->below(N)];
}

// Where damage goes: the whole range, or its last bytes, where descriptors are.
inline void damage_bytes(uint8_t* bytes, size_t nbytes, const Bytes& other, Random* random) {
  if (nbytes == 0) return;
  const size_t tail = random->one_in(2) && nbytes > 24 ? nbytes - 24 : 0;
  const size_t at = tail + random->below(nbytes - tail), left = nbytes - at;
  constexpr uint8_t kEdges[] = {0, 1, 2, 0x7f, 0x80, 0xfe, 0xff};
  switch (random->below(6)) {
    case 0:
    case 1:
      bytes[at] ^= static_cast<uint8_t>(1u << random->below(8));
      break;
    case 2:
      bytes[at] = static_cast<uint8_t>(random->next());
      break;
    case 3:
      std::memset(bytes + at, one_of(kEdges, random), std::min<size_t>(left, 1 + random->below(8)));
      break;
    case 4:
      bytes[at] = static_cast<uint8_t>(bytes[at] + random->below(5) - 2);
      break;
    default:  // from elsewhere
      if (!other.empty()) {
        const size_t from = random->below(other.size());
        std::memcpy(bytes + at, &other[from], std::min<size_t>({left, other.size() - from, 1 + random->below(64)}));
      }
  }
}

// Any field of the fixed part but the checksums, and the first size of the shape.
inline void damage_field(Bytes* frame, Random* random) {
  struct Field {
    size_t at, nbytes;
  };
  constexpr Field kFields[] = {{0, 8},
                               {tw::kAtVersion, 1},
                               {tw::kAtProfile, 1},
                               {tw::kAtOrder, 1},
                               {tw::kAtNdim, 1},
                               {tw::kAtFeatures, 4},
                               {tw::kAtFeatures + 4, 4},  // the optional ones
                               {tw::kAtHashAlgorithm, 1},
                               {tw::kAtBlockAlignment, 1},
                               {tw::kAtFrameAlignment, 1},
                               {tw::kAtReserved1, 1},
                               {tw::kAtLayout, 1},
                               {tw::kAtLayout + 1, 1},
                               {tw::kAtLayout + 2, 1},
                               {tw::kAtLayout + 3, 1},
                               {tw::kAtLayout + 4, 1},
                               {tw::kAtReserved2, 1},
                               {tw::kAtBits, 2},
                               {tw::kAtDtype, 1},
                               {tw::kAtDtype + 4, 8},
                               {tw::kAtUncompressed, 8},
                               {tw::kAtHeader, 8},
                               {tw::kAtData, 8},
                               {tw::kAtBlockWords, 4},
                               {tw::kAtPadding, 4},
                               {tw::kAtContentHash, 8},
                               {tw::kAtBaseHash, 8},
                               {tw::kAtShape, 8}};
  constexpr uint64_t kValues[] = {
      0,       1,          2,          3,          5,          8,          31,         32,         48,        65,
      95,      ~0ull,      ~0ull - 31, 64,         80,         128,        256,        4096,       1 << 18,   1 << 21,
      1 << 22, 1ull << 31, 1ull << 32, 1ull << 36, 1ull << 37, 1ull << 53, 1ull << 56, 1ull << 62, 1ull << 63};
  const Field field = one_of(kFields, random);
  uint8_t* const at = frame->data() + field.at;
  uint64_t value = 0;
  std::memcpy(&value, at, field.nbytes);
  const uint64_t edge = one_of(kValues, random);
  value = random->one_in(3)   ? edge
          : random->one_in(2) ? value + edge
                              : value ^ uint64_t{1} << random->below(8 * field.nbytes);
  std::memcpy(at, &value, field.nbytes);
}

// Another layout of as much content; of as long words more often than not, since then all blocks keep their sizes.
inline void change_layout(tw_frame* frame, Random* random) {
  const unsigned old = frame->layout.word_nbytes, width = random->one_in(3) ? 1u << random->below(4) : old;
  const auto exponent_bits = static_cast<uint8_t>(random->below(9));
  const uint64_t bits = frame->shape[0] * frame->bits;
  frame->layout = {static_cast<uint8_t>(width), exponent_bits,
                   static_cast<uint8_t>(exponent_bits == 0 ? 0 : 8 * width - exponent_bits),
                   static_cast<uint8_t>(exponent_bits == 0 ? 0 : 1 + random->below(3)),
                   static_cast<uint8_t>(random->below(2))};
  frame->bits = static_cast<uint32_t>(8 * width * (1 + random->below(2)));
  frame->shape[0] = bits / frame->bits;
}

// Another alignment of blocks, a smaller one more often than not, since then all blocks begin where they did; or of the
// frame.
inline void change_alignment(FrameParts* parts, Random* random) {
  uint8_t &block = parts->fixed[tw::kAtBlockAlignment], &frame = parts->fixed[tw::kAtFrameAlignment];
  const unsigned old = block, least = tw::kLeastAlignment;
  if (random->one_in(2)) {
    const unsigned most = random->one_in(3) ? unsigned{tw::kMaxBlockAlignment} : old;
    block = static_cast<uint8_t>(least + random->below(most + 1 - least));
  }
  frame = std::max(block, random->one_in(2) ? frame : static_cast<uint8_t>(least + random->below(10)));
  for (uint32_t& place : parts->places) {
    const uint64_t start = uint64_t{place & ~tw::kStoredBit} << old >> block;
    place = static_cast<uint32_t>(start) | (place & tw::kStoredBit);
  }
  parts->data.resize(tw::ceil_to(parts->data.size(), parts->unit()));
}

// Another dtype, layout, profile, alignment, size of blocks or number of elements, with sizes and counts that agree.
inline void reinterpret(FrameParts* parts, Random* random) {
  const Type& type = one_of(kTypes, random);
  const tw::NamedDtype* const known = tw::find_dtype(type.name);
  Bytes& fixed = parts->fixed;
  tw_frame frame = {};
  frame.ndim = 1;
  frame.shape[0] = tw::load<uint64_t>(&fixed[tw::kAtShape]);
  frame.block_words = tw::load<uint32_t>(&fixed[tw::kAtBlockWords]);
  frame.bits = tw::load<uint16_t>(&fixed[tw::kAtBits]);
  std::memcpy(frame.dtype, &fixed[tw::kAtDtype], tw::kMaxDtypeName);
  std::memcpy(&frame.layout, &fixed[tw::kAtLayout], sizeof frame.layout);
  switch (random->below(8)) {
    case 0:
      frame.bits = type.bits;
      frame.layout = tw::numbers_of(known == nullptr ? tw::kOpaque : known->layout);
      std::memset(frame.dtype, 0, sizeof frame.dtype);
      std::memcpy(frame.dtype, type.name, std::strlen(type.name));
      break;
    case 1:
      fixed[tw::kAtProfile] = static_cast<uint8_t>(random->below(4));
      break;
    case 2:
      fixed[tw::kAtFeatures] ^= 1;
      std::memset(&fixed[tw::kAtBaseHash], fixed[tw::kAtFeatures], 16);
      break;
    case 3:
      frame.block_words = 256u << random->below(11);
      break;
    case 4:
      frame.shape[0] += random->below(600) - 300;
      break;
    case 5:
      change_alignment(parts, random);
      break;
    default:
      change_layout(&frame, random);
  }
  tw_error error;
  if (fixed.size() != tw::kAtShape + 8 || !tw::valid_block_words(frame.block_words)) return;
  if (tw::check_layout(frame, &error) != TW_OK || tw::complete_frame(&frame, &error) != TW_OK) return;
  std::memcpy(&fixed[tw::kAtDtype], frame.dtype, tw::kMaxDtypeName);
  tw::store(&fixed[tw::kAtBits], static_cast<uint16_t>(frame.bits));
  tw::store(&fixed[tw::kAtBlockWords], frame.block_words);
  tw::store(&fixed[tw::kAtUncompressed], frame.uncompressed_nbytes);
  std::memcpy(&fixed[tw::kAtLayout], &frame.layout, sizeof frame.layout);
  tw::store(&fixed[tw::kAtShape], frame.shape[0]);
  const bool has_index = fixed[tw::kAtFeatures] == 0 || !parts->data.empty();
  const uint64_t num_blocks = has_index ? frame.num_blocks : 0;
  if (num_blocks <= 64) parts->places.resize(num_blocks, static_cast<uint32_t>(parts->data.size() / parts->unit()));
}

// Another length for a block: a unit comes or goes, in front of the descriptor or behind it.
inline void stretch(FrameParts* parts, Random* random) {
  if (parts->places.empty()) return;
  const size_t block = random->below(parts->places.size()), unit = parts->unit();
  const auto [start, stop] = parts->extent(block);
  const bool longer = start == stop || random->one_in(2);
  const size_t at = random->one_in(2) ? start : stop - (longer ? 0 : unit);
  const auto place = parts->data.begin() + static_cast<ptrdiff_t>(at);
  if (longer) {
    parts->data.insert(place, unit, 0);
  } else {
    parts->data.erase(place, place + static_cast<ptrdiff_t>(unit));
  }
  for (size_t i = block + 1; i < parts->places.size(); ++i) parts->places[i] += longer ? 1 : uint32_t(-1);
}

// Another start for a block, or another word on whether it is stored.
inline void displace(FrameParts* parts, Random* random) {
  if (parts->places.empty()) return;
  uint32_t* const place = &parts->places[random->below(parts->places.size())];
  *place = random->one_in(2) ? *place ^ tw::kStoredBit : *place + static_cast<uint32_t>(random->below(5)) - 2;
}

// A record more, some records less, or others.
inline void damage_extensions(Bytes* records, const Bytes& other, Random* random) {
  constexpr uint32_t kTags[] = {0, 1, 1, 2, 3, 5, 77, 78, 0x80000005, 0xffffffff};
  constexpr uint32_t kLengths[] = {1u << 16, 1u << 31, ~0u - 7, ~0u};
  const size_t at = 8 * random->below(records->size() / 8 + 1);
  switch (random->below(3)) {
    case 0: {
      const uint32_t tag = one_of(kTags, random), length = static_cast<uint32_t>(random->below(12));
      Bytes record;
      add_extension(&record, tag, length, random);
      if (random->one_in(4)) tw::store(&record[4], one_of(kLengths, random));
      records->insert(records->begin() + static_cast<ptrdiff_t>(at), record.begin(), record.end());
      break;
    }
    case 1:
      records->resize(at);
      break;
    default:
      damage_bytes(records->data(), records->size(), other, random);
  }
}

inline void damage_padding(Bytes* padding, const Bytes& other, Random* random) {
  if (random->one_in(2)) {
    padding->resize(random->below(3000));
  } else {
    damage_bytes(padding->data(), padding->size(), other, random);
  }
}

// A case: up to four pieces of damage to a source; some borrow bytes of another one.
inline Source mutate(const std::vector<Source>& sources, size_t index, Random* random) {
  Source mutant = sources[index];
  FrameParts parts(mutant.frame);
  const Bytes& other = sources[random->below(sources.size())].frame;
  uint64_t fields = 0;
  for (uint64_t times = 1 + random->below(4); times > 0; --times) {
    switch (random->below(20)) {
      case 0:
      case 1:
        ++fields;
        break;
      case 2:
      case 3:
        reinterpret(&parts, random);
        break;
      case 4:
        displace(&parts, random);
        break;
      case 5:
        stretch(&parts, random);
        break;
      case 6:
        damage_bytes(mutant.base.data(), mutant.base.size(), other, random);
        break;
      case 7:
        damage_extensions(&parts.extensions, other, random);
        break;
      case 8:
        damage_padding(&parts.padding, other, random);
        break;
      default:
        if (!parts.places.empty()) {
          const auto [start, stop] = parts.extent(random->below(parts.places.size()));
          damage_bytes(parts.data.data() + start, stop - start, other, random);
        }
    }
  }
  mutant.frame = parts.assemble();
  // Last, so that nothing makes these agree with the rest again.
  for (; fields > 0; --fields) damage_field(&mutant.frame, random);
  repair(&mutant.frame);
  if (random->one_in(50)) mutant.frame.resize(random->below(mutant.frame.size()));
  return mutant;
}

}  // namespace tests
