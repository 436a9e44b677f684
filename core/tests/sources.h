// Frames of every layout, profile and kind, with and without a base, alignments, padding and extensions.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "frame/header.h"
#include "tests/frames.h"
#include "tests/layouts.h"
#include "tests/random.h"
#include "transforms/scaled.h"

namespace tests {

constexpr uint64_t kMaxContent = 1u << 20;

// A frame, and what a decoder takes for its base: as many bytes as the frame says, these again and again.
struct Source {
  Bytes frame, base;
};

inline Bytes repeated(const Bytes& pattern, uint64_t nbytes) {
  Bytes bytes(nbytes);
  for (uint64_t i = 0; i < nbytes && !pattern.empty(); ++i) bytes[i] = pattern[i % pattern.size()];
  return bytes;
}

// What words look like: bits of an exponent, and of what stands below it; with another layout than the name's, if it
// has a word_nbytes.
struct Type {
  const char* name;
  uint32_t bits;
  unsigned nbytes, exponent_bits, rest_bits;
  tw_layout layout = {};
};
constexpr Type kTypes[] = {{"BF16", 16, 2, 8, 7},   {"F16", 16, 2, 5, 10},   {"F32", 32, 4, 8, 23},
                           {"F8_E4M3", 8, 1, 4, 3}, {"F8_E5M2", 8, 1, 5, 2}, {"F64", 64, 8, 11, 52},
                           {"I8", 8, 1, 4, 3},      {"U8", 8, 1, 4, 4},      {"I64", 64, 8, 0, 63},
                           {"U16", 16, 2, 0, 16},   {"F4", 4, 1, 4, 4},      {"F8_E8M0", 8, 1, 8, 0},
                           {"C64", 64, 4, 8, 23},   {"QI4", 4, 1, 0, 8},     {"I32", 32, 4, 0, 32},
                           {"U32", 32, 4, 0, 32},   {"U64", 64, 8, 0, 63},   {"I16", 16, 2, 0, 16},
                           {"BOOL", 8, 1, 0, 8},    {"F6_E2M3", 6, 1, 0, 8}, {"MXINT_12", 12, 1, 0, 8}};

// The sources have those before kNumContents.
enum Content {
  kWeights,
  kZeros,
  kNarrow,
  kModal,
  kConstant,
  kNoise,
  kNumContents,
  kRows = kNumContents,
  kWide,
  kCounter
};
enum Change { kNoBase, kFewSteps, kManySteps, kOneBlock, kNothing, kNumChanges };

// Three blocks, the last one shorter. Profile compact has larger ones, or kind entropy would not pay.
constexpr uint32_t block_words_of(uint32_t profile) { return profile == TW_COMPACT ? 1536 : 512; }
constexpr size_t num_words_of(uint32_t profile) { return 2 * block_words_of(profile) + 76; }

// Word i of a tensor. Exponents fall off by half from a mode, signs and mantissas are noise.
inline uint64_t word(const Type& type, Content content, Random* random, size_t i = 0) {
  const uint64_t noise = random->next();
  const uint64_t top = (uint64_t{1} << type.exponent_bits) * 3 / 4;
  const uint64_t depth = static_cast<uint64_t>(__builtin_ctzll(random->next() | uint64_t{1} << 40));
  uint64_t exponent = depth < top ? top - depth : 0;
  uint64_t mantissa = noise & ((uint64_t{1} << type.rest_bits) - 1);
  if (type.exponent_bits == 0 && content != kNarrow) mantissa &= 0xffff;
  const bool has_sign = type.exponent_bits != 0 && type.exponent_bits + type.rest_bits < 8 * type.nbytes;
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
    case kRows:
      if (i / 300 % 3 == 0) mantissa &= ~((uint64_t{1} << type.rest_bits / 2) - 1);
      if (i / 1000 % 4 == 3) return 0;
      break;
    case kWide:
      exponent = random->next() & ((uint64_t{1} << type.exponent_bits) - 1) & random->next();
      break;
    case kCounter:
      return i;
    default:
      break;
  }
  return uint64_t{has_sign && noise >> 63 != 0} << (8 * type.nbytes - 1) | exponent << type.rest_bits | mantissa;
}

// As many of `count` words as make whole elements.
constexpr size_t whole_words(const Type& type, size_t count) {
  return count - count % (std::lcm(type.bits, 8 * type.nbytes) / (8 * type.nbytes));
}

inline Bytes make_words(const Type& type, Content content, size_t count, Random* random) {
  Bytes bytes(count * type.nbytes);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t value = word(type, content, random, i);
    std::memcpy(&bytes[i * type.nbytes], &value, type.nbytes);
  }
  return bytes;
}

inline Bytes make_content(const Type& type, uint32_t profile, Content content, Random* random) {
  return make_words(type, content, whole_words(type, num_words_of(profile)), random);
}

// Small steps of some words.
inline Bytes make_base(const Type& type, uint32_t profile, const Bytes& content, Change change, Random* random) {
  Bytes base = content;
  const size_t most = change == kNothing ? 0 : change == kOneBlock ? block_words_of(profile) : num_words_of(profile);
  const size_t end = std::min(most, content.size() / type.nbytes);
  for (size_t i = 0; i < end; ++i) {
    if (change != kManySteps && !random->one_in(30)) continue;
    uint64_t value = 0;
    std::memcpy(&value, &base[i * type.nbytes], type.nbytes);
    value += random->below(change == kManySteps ? 40 : 5) - 2;
    std::memcpy(&base[i * type.nbytes], &value, type.nbytes);
  }
  return base;
}

inline void add_extension(Bytes* records, uint32_t tag, uint32_t length, Random* random) {
  const uint32_t head[2] = {tag, length};
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(head);
  records->insert(records->end(), bytes, bytes + sizeof head);
  for (uint32_t i = 0; i < length; ++i) records->push_back(static_cast<uint8_t>(random->next()));
  records->resize(tw::ceil_to(records->size(), 8));
}

// The frame of bytes; of `base`, unless `change` is kNoBase.
inline Source encode_source(const Type& type, uint32_t profile, const Bytes& bytes, const Bytes& base, Change change,
                            tw_form form, const Bytes& extensions = {}) {
  Source source = {{}, base};
  uint8_t leaf[16];
  form.layout = type.layout;
  form.extensions_nbytes = extensions.size();
  const bool relative = change != kNoBase;
  tw_error error;
  tw_frame frame = new_frame(type.name, type.bits, {8 * bytes.size() / type.bits}, profile, &form,
                             relative ? hash_of(base).data() : nullptr);
  Bytes index(8 * frame.num_blocks), blocks(tw_data_bound(&frame, bytes.size()));
  tw_leaves leaves = {leaf, {}};
  uint64_t written = 0;
  CHECK(tw_encode_blocks(&frame, 0, bytes.data(), bytes.size(), relative ? base.data() : nullptr, 0, blocks.data(),
                         blocks.size(), &written, index.data(), &leaves, nullptr, 1, &error) == TW_OK);
  source.frame.resize(frame.header_nbytes);
  CHECK(tw_encode_header(&frame, written, index.data(), leaf, extensions.data(), source.frame.data(), &error) == TW_OK);
  source.frame.resize(frame.header_nbytes);
  source.frame.insert(source.frame.end(), blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(written));
  source.frame.resize(frame.frame_nbytes);
  return source;
}

inline Source make_source(const Type& type, uint32_t profile, Content content, Change change, tw_form form = {},
                          const Bytes& extensions = {}) {
  Random random(1000 * profile + 100 * content + change);
  const Bytes bytes = make_content(type, profile, content, &random);
  const Bytes base = make_base(type, profile, bytes, change, &random);
  form.block_words = block_words_of(profile);
  return encode_source(type, profile, bytes, base, change, form, extensions);
}

// A block that takes less as a row of parts, which have 2^15 words; of few symbols, so that the frame stays small.
inline Source make_row_source(Change change) {
  constexpr Type kType = {"U8", 8, 1, 4, 4};
  constexpr size_t kPart = 32768;
  Random random(7);
  Bytes bytes(2 * kPart + 76, 9);
  for (size_t i = kPart; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(random.below(5) == 0);
  Bytes base = bytes;
  for (size_t i = kPart; i < bytes.size(); i += 20) base[i] ^= 1;
  tw_form form = {};
  form.block_words = static_cast<uint32_t>(tw::ceil_to(bytes.size(), tw::kMinBlockWords));
  return encode_source(kType, TW_COMPACT, bytes, base, change, form);
}

// Words that are products of scales and codes, each scale of 128 words.
inline Source make_scaled_source(tw::Codes codes) {
  constexpr Type kType = {"BF16", 16, 2, 8, 7};
  constexpr size_t kWords = 1100, kWidth = 128;
  Random random(9);
  Bytes numbers(kWords), words(2 * kWords);
  for (uint8_t& number : numbers) {
    const unsigned magnitude = static_cast<unsigned>(random.below(40) + random.below(40) + random.below(40));
    const bool minus = random.one_in(2) && magnitude != 0;
    number =
        static_cast<uint8_t>(codes == tw::Codes::kI8 ? (minus ? 256 - magnitude : magnitude) : magnitude | minus << 7);
  }
  for (size_t first = 0; first < kWords; first += kWidth) {
    // Integers share one scale: others are found where rows are known.
    const float scale = codes == tw::Codes::kI8 ? 0.01f : 0.01f * static_cast<float>(1 + random.below(5));
    tw::scaled_kernels.multiply(codes, &numbers[first], std::min(kWidth, kWords - first), scale, &words[2 * first]);
  }
  tw_form form = {};
  form.block_words = static_cast<uint32_t>(tw::ceil_to(kWords, tw::kMinBlockWords));
  return encode_source(kType, TW_COMPACT, words, words, kNoBase, form);
}

// A dtype of this layout, of one word an element or of two, that the format's table does not have.
inline Type odd_type(const tw::Layout& layout) {
  const unsigned bits = 8u * layout.word_nbytes;
  const unsigned below = layout.exponent_bits == 0 ? bits - 1 : layout.exponent_shift();
  const uint32_t words = layout.exponent_bits % 2 == 0 ? 2 : 1;
  return {"ODD_1", bits * words, layout.word_nbytes, layout.exponent_bits, below, tw::numbers_of(layout)};
}

// Alignments, padding, extensions, content and base by chance.
inline Source make_odd_source(const Type& type, uint32_t profile, uint64_t seed) {
  Random random(seed);
  tw_form form = {};
  form.block_alignment = static_cast<uint32_t>(random.one_in(2) ? 5 : random.one_in(2) ? 7 : 12);
  form.frame_alignment = static_cast<uint32_t>(form.block_alignment + (random.one_in(2) ? random.below(3) : 0));
  form.padding_nbytes = static_cast<uint32_t>(random.one_in(2) ? random.below(5000) : 0);
  constexpr uint32_t kEncoder = 1, kReserved = 3, kUnknown = 77, kPrivate = 0x80000005;
  Bytes extensions;
  if (random.one_in(3)) add_extension(&extensions, kEncoder, 4, &random);
  for (const uint32_t tag : {kReserved, kUnknown, kPrivate}) {
    if (random.one_in(4)) add_extension(&extensions, tag, static_cast<uint32_t>(random.below(40)), &random);
  }
  const auto content = static_cast<Content>(random.below(kNumContents));
  const bool plain = profile == TW_RESIDENT || random.one_in(2);
  const auto change = plain ? kNoBase : static_cast<Change>(kFewSteps + random.below(kNumChanges - kFewSteps));
  return make_source(type, profile, content, change, form, extensions);
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
  for (const Change change : {kNoBase, kFewSteps}) sources.push_back(make_row_source(change));
  for (const tw::Layout& layout : all_layouts()) {
    for (uint32_t profile = TW_ENEC; profile <= TW_RESIDENT; ++profile) {
      sources.push_back(make_odd_source(odd_type(layout), profile, sources.size()));
    }
  }
  for (const tw::Codes codes : {tw::Codes::kF8E4M3, tw::Codes::kI8}) sources.push_back(make_scaled_source(codes));
  return sources;
}

// The kinds of all blocks, by number; extended ones as 7.1 and so on.
inline std::string kinds_of(const std::vector<Source>& sources) {
  std::set<std::string> kinds;
  for (const Source& source : sources) {
    for (const tw_block_info& info : infos_of(frame_of(source.frame), source.frame)) {
      const std::string kind = std::to_string(info.kind);
      kinds.insert(info.extended == 0 ? kind : kind + "." + std::to_string(info.extended));
    }
  }
  std::string list = "kinds";
  for (const std::string& kind : kinds) list += " " + kind;
  return list;
}

}  // namespace tests
