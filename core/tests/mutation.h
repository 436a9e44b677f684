// Frames of every dtype, profile and kind, and damage to them that leaves their checksums right.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "form.h"
#include "frame/layout.h"
#include "include/tensorwire.h"
#include "tests/check.h"

namespace tests {

using Bytes = std::vector<uint8_t>;

constexpr uint64_t kMaxContent = 1u << 20;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t limit) { return next() % limit; }
  bool one_in(uint64_t n) { return next() % n == 0; }

 private:
  uint64_t state_;
};

// A frame, and what a decoder takes for its base: as many bytes as the frame says, these again and again.
struct Source {
  Bytes frame, base;
};

inline Bytes repeated(const Bytes& pattern, uint64_t nbytes) {
  Bytes bytes(nbytes);
  for (uint64_t i = 0; i < nbytes && !pattern.empty(); ++i) bytes[i] = pattern[i % pattern.size()];
  return bytes;
}

// Sources ------------------------------------------------------------------------------------------------------------

struct Type {
  const char* name;
  uint32_t bits;
  unsigned nbytes, exponent_bits, rest_bits;
};
constexpr Type kTypes[] = {{"BF16", 16, 2, 8, 7},   {"F16", 16, 2, 5, 10},   {"F32", 32, 4, 8, 23},
                           {"F8_E4M3", 8, 1, 4, 3}, {"F8_E5M2", 8, 1, 5, 2}, {"F64", 64, 8, 11, 52},
                           {"I8", 8, 1, 4, 3},      {"U8", 8, 1, 4, 4},      {"I64", 64, 8, 0, 63},
                           {"U16", 16, 2, 0, 16},   {"F4", 4, 1, 4, 4},      {"F8_E8M0", 8, 1, 8, 0},
                           {"C64", 64, 4, 8, 23},   {"QI4", 4, 1, 0, 8}};

enum Content { kWeights, kZeros, kNarrow, kModal, kConstant, kNoise, kNumContents };
enum Change { kNoBase, kFewSteps, kManySteps, kOneBlock, kNothing, kNumChanges };

// Three blocks, the last one shorter. Profile compact has larger ones, or kind entropy would not pay.
constexpr uint32_t block_words_of(uint32_t profile) { return profile == TW_COMPACT ? 1536 : 512; }
constexpr size_t num_words_of(uint32_t profile) { return 2 * block_words_of(profile) + 76; }

// Exponents fall off by half from a mode, signs and mantissas are noise.
inline uint64_t word(const Type& type, Content content, Random* random) {
  const uint64_t noise = random->next();
  const uint64_t top = (uint64_t{1} << type.exponent_bits) * 3 / 4;
  const uint64_t depth = static_cast<uint64_t>(__builtin_ctzll(random->next() | uint64_t{1} << 40));
  uint64_t exponent = depth < top ? top - depth : 0;
  uint64_t mantissa = noise & ((uint64_t{1} << type.rest_bits) - 1);
  switch (content) {
    case kZeros:
      if (!random->one_in(3)) exponent = mantissa = 0;
      break;
    case kNarrow:
      mantissa &= ~((uint64_t{1} << type.rest_bits * 2 / 3) - 1);
      break;
    case kModal:
      if (!random->one_in(40)) exponent = top;
      break;
    case kConstant:
      return 0x3f813f813f813f81;
    case kNoise:
      return noise;
    default:
      break;
  }
  return noise >> 63 << (8 * type.nbytes - 1) | exponent << type.rest_bits | mantissa;
}

inline Bytes make_content(const Type& type, uint32_t profile, Content content, Random* random) {
  Bytes bytes(num_words_of(profile) * type.nbytes);
  for (size_t i = 0; i < num_words_of(profile); ++i) {
    const uint64_t value = word(type, content, random);
    std::memcpy(&bytes[i * type.nbytes], &value, type.nbytes);
  }
  return bytes;
}

// Small steps of some words.
inline Bytes make_base(const Type& type, uint32_t profile, const Bytes& content, Change change, Random* random) {
  Bytes base = content;
  const size_t end = change == kNothing ? 0 : change == kOneBlock ? block_words_of(profile) : num_words_of(profile);
  for (size_t i = 0; i < end; ++i) {
    if (change != kManySteps && !random->one_in(30)) continue;
    uint64_t value = 0;
    std::memcpy(&value, &base[i * type.nbytes], type.nbytes);
    value += random->below(change == kManySteps ? 40 : 5) - 2;
    std::memcpy(&base[i * type.nbytes], &value, type.nbytes);
  }
  return base;
}

inline Source make_source(const Type& type, uint32_t profile, Content content, Change change) {
  Random random(1000 * profile + 100 * content + change);
  const Bytes bytes = make_content(type, profile, content, &random);
  Source source = {{}, make_base(type, profile, bytes, change, &random)};
  uint8_t leaf[16], hash[16];
  tw_hash_leaves(source.base.data(), source.base.size(), leaf, 1);
  tw_hash_root(source.base.size(), leaf, hash);
  const uint64_t numel = 8 * bytes.size() / type.bits;
  tw_frame frame;
  tw_error error;
  CHECK(tw_frame_init(&frame, type.name, type.bits, &numel, 1, profile, tests::BlockWords(block_words_of(profile)),
                      change == kNoBase ? nullptr : hash, &error) == TW_OK);
  source.frame.resize(tw_frame_bound(&frame));
  CHECK(tw_compress(&frame, bytes.data(), bytes.size(), change == kNoBase ? nullptr : source.base.data(),
                    source.frame.data(), source.frame.size(), 1, 0, &error) == TW_OK);
  source.frame.resize(frame.frame_nbytes);
  return source;
}

inline std::vector<Source> make_sources() {
  std::vector<Source> sources;
  for (const Type& type : kTypes) {
    for (uint32_t profile = TW_ENEC; profile <= TW_RESIDENT; ++profile) {
      for (int content = 0; content < kNumContents; ++content) {
        sources.push_back(make_source(type, profile, static_cast<Content>(content), kNoBase));
      }
      for (int change = kFewSteps; change < kNumChanges && profile != TW_RESIDENT; ++change) {
        sources.push_back(make_source(type, profile, kWeights, static_cast<Change>(change)));
      }
    }
  }
  return sources;
}

// The kinds of all blocks, by number; extended ones as 7.1 and so on.
inline std::string kinds_of(const std::vector<Source>& sources) {
  std::set<std::string> kinds;
  for (const Source& source : sources) {
    tw_frame frame;
    tw_error error;
    CHECK(tw_decode_header(source.frame.data(), source.frame.size(), &frame, &error) == TW_OK);
    std::vector<tw_block_info> infos(frame.num_blocks);
    CHECK(tw_block_infos(&frame, source.frame.data(), source.frame.data() + frame.header_nbytes, 0, frame.data_nbytes,
                         0, infos.size(), infos.data(), &error) == TW_OK);
    for (const tw_block_info& info : infos) {
      const std::string kind = std::to_string(info.kind);
      kinds.insert(info.extended == 0 ? kind : kind + "." + std::to_string(info.extended));
    }
  }
  std::string list = "kinds";
  for (const std::string& kind : kinds) list += " " + kind;
  return list;
}

// Damage -------------------------------------------------------------------------------------------------------------

// A frame in its parts: the header with its shape, the index, the blocks.
struct Parts {
  Bytes fixed, data;
  std::vector<uint32_t> places;

  explicit Parts(const Bytes& frame) {
    tw_frame parsed;
    tw_error error;
    CHECK(tw_decode_header(frame.data(), frame.size(), &parsed, &error) == TW_OK);
    const size_t index = tw::index_offset(parsed);
    const auto blocks = frame.begin() + static_cast<ptrdiff_t>(parsed.header_nbytes);
    fixed.assign(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(index));
    data.assign(blocks, blocks + static_cast<ptrdiff_t>(parsed.data_nbytes));
    for (uint64_t i = 0; parsed.data_nbytes != 0 && i < parsed.num_blocks; ++i) {
      places.push_back(tw::load<uint32_t>(&frame[index + 8 * i]));
    }
  }

  // The extent of a block that lies in the data; nothing of others.
  std::pair<uint64_t, uint64_t> extent(size_t block) const {
    const uint64_t start = start_of(block), stop = block + 1 < places.size() ? start_of(block + 1) : data.size();
    return start <= stop && stop <= data.size() ? std::make_pair(start, stop) : std::make_pair(0ul, 0ul);
  }
  uint64_t start_of(size_t block) const { return 32ull * (places[block] & ~tw::kStoredBit); }

  // The frame, with the checksums of what it is now.
  Bytes assemble() const {
    Bytes frame = fixed;
    for (size_t block = 0; block < places.size(); ++block) {
      const auto [start, stop] = extent(block);
      const uint64_t hash = start == stop ? 0 : tw::hash128(data.data() + start, stop - start).low;
      const uint32_t entry[2] = {places[block], static_cast<uint32_t>(hash)};
      const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(entry);
      frame.insert(frame.end(), bytes, bytes + sizeof entry);
    }
    frame.resize(tw::ceil_to(frame.size(), 32));
    tw::store(&frame[tw::kAtHeader], uint64_t{frame.size()});
    tw::store(&frame[tw::kAtIndexChecksum], tw::hash128(&frame[fixed.size()], frame.size() - fixed.size()).low);
    tw::store(&frame[tw::kAtChecksum], uint64_t{0});
    tw::store(&frame[tw::kAtChecksum], tw::hash128(frame.data(), fixed.size()).low);
    frame.insert(frame.end(), data.begin(), data.end());
    return frame;
  }
};

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
      std::memset(bytes + at, kEdges[random->below(sizeof kEdges)], std::min<size_t>(left, 1 + random->below(8)));
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

inline void damage_field(Parts* parts, Random* random) {
  struct Field {
    size_t at, nbytes;
  };
  constexpr Field kFields[] = {{tw::kAtProfile, 1},        {tw::kAtNdim, 1},           {tw::kAtFeatures, 1},
                               {tw::kAtBits, 2},           {tw::kAtBlockWords, 4},     {tw::kAtData, 8},
                               {tw::kAtHeader, 8},         {tw::kAtLayout, 1},         {tw::kAtLayout + 1, 1},
                               {tw::kAtLayout + 2, 1},     {tw::kAtLayout + 3, 1},     {tw::kAtLayout + 4, 1},
                               {tw::kAtBlockAlignment, 1}, {tw::kAtFrameAlignment, 1}, {tw::kAtPadding, 4},
                               {tw::kAtBaseHash, 1},       {tw::kAtUncompressed, 8},   {tw::kAtShape, 8}};
  constexpr uint64_t kValues[] = {0,
                                  1,
                                  2,
                                  3,
                                  31,
                                  32,
                                  256,
                                  1 << 18,
                                  uint64_t{1} << 32,
                                  uint64_t{1} << 37,
                                  uint64_t{1} << 53,
                                  uint64_t{1} << 62,
                                  uint64_t{1} << 63,
                                  ~uint64_t{0}};
  const Field field = kFields[random->below(sizeof kFields / sizeof kFields[0])];
  uint8_t* const at = &parts->fixed[field.at];
  uint64_t value = 0;
  std::memcpy(&value, at, field.nbytes);
  const uint64_t edge = kValues[random->below(sizeof kValues / sizeof kValues[0])];
  value = random->one_in(3) ? edge : random->one_in(2) ? value + edge : value ^ uint64_t{1} << random->below(64);
  std::memcpy(at, &value, field.nbytes);
}

// Another dtype, profile, size of blocks or number of elements, with sizes and counts that agree.
inline void reinterpret(Parts* parts, Random* random) {
  const Type& type = kTypes[random->below(sizeof kTypes / sizeof kTypes[0])];
  Bytes& fixed = parts->fixed;
  tw_frame frame = {};
  frame.ndim = 1;
  frame.shape[0] = tw::load<uint64_t>(&fixed[tw::kAtShape]);
  frame.block_words = tw::load<uint32_t>(&fixed[tw::kAtBlockWords]);
  frame.bits = tw::load<uint16_t>(&fixed[tw::kAtBits]);
  std::memcpy(frame.dtype, &fixed[tw::kAtDtype], tw::kMaxDtypeName);
  std::memcpy(&frame.layout, &fixed[tw::kAtLayout], sizeof frame.layout);
  switch (random->below(5)) {
    case 0:
      frame.bits = type.bits;
      frame.layout = tw::numbers_of(tw::find_dtype(type.name)->layout);
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
    default:
      frame.shape[0] += random->below(600) - 300;
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
  if (frame.num_blocks <= 64) parts->places.resize(frame.num_blocks, static_cast<uint32_t>(parts->data.size() / 32));
}

// Another length for a block: units of 32 bytes come or go, in front of the descriptor or behind it.
inline void stretch(Parts* parts, Random* random) {
  if (parts->places.empty()) return;
  const size_t block = random->below(parts->places.size());
  const auto [start, stop] = parts->extent(block);
  const bool longer = start == stop || random->one_in(2);
  const ptrdiff_t at = static_cast<ptrdiff_t>(random->one_in(2) ? start : stop - (longer || start == stop ? 0 : 32));
  const auto place = parts->data.begin() + at;
  if (longer) {
    parts->data.insert(place, 32, 0);
  } else {
    parts->data.erase(place, place + 32);
  }
  for (size_t i = block + 1; i < parts->places.size(); ++i) parts->places[i] += longer ? 1 : uint32_t(-1);
  tw::store(&parts->fixed[tw::kAtData], uint64_t{parts->data.size()});
}

// A case: up to four pieces of damage to a source; some borrow bytes of another one.
inline Source mutate(const std::vector<Source>& sources, size_t index, Random* random) {
  Source mutant = sources[index];
  Parts parts(mutant.frame);
  const Bytes& other = sources[random->below(sources.size())].frame;
  for (uint64_t times = 1 + random->below(4); times > 0; --times) {
    switch (random->below(16)) {
      case 0:
        damage_field(&parts, random);
        break;
      case 1:
        reinterpret(&parts, random);
        break;
      case 2:
        if (!parts.places.empty()) parts.places[random->below(parts.places.size())] += random->below(5) - 2;
        break;
      case 3:
        stretch(&parts, random);
        break;
      case 4:
        damage_bytes(mutant.base.data(), mutant.base.size(), other, random);
        break;
      default:
        if (!parts.places.empty()) {
          const auto [start, stop] = parts.extent(random->below(parts.places.size()));
          damage_bytes(parts.data.data() + start, stop - start, other, random);
        }
    }
  }
  mutant.frame = parts.assemble();
  if (random->one_in(50)) mutant.frame.resize(random->below(mutant.frame.size()));
  return mutant;
}

}  // namespace tests
