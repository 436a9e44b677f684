// Constants of docs/format.md that both the encoder and the decoder need.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/bits.h"
#include "common/dtype.h"

namespace tw {

constexpr size_t kBlockAlign = 32;        // the least alignment of blocks; that of a block within a block
constexpr size_t kStreamAlign = 4;        // of the streams in a block
constexpr uint32_t kMinBlockWords = 256;  // and what block_words is a multiple of
constexpr uint32_t kMaxBlockWords = 262144;
constexpr size_t kMaxWordNbytes = 8;

enum Kind : uint8_t {
  kStored = 0,
  kConstant = 1,
  kEnec = 2,
  kCascade = 3,
  kEntropy = 4,
  kPlain = 5,
  kZeros = 6,
  kExtended = 7,  // the byte before the tag is an ExtendedKind
};
enum ExtendedKind : uint8_t { kExtendedCascade = 1, kModal = 2, kSparse = 3, kDense = 4, kParts = 5, kScaled = 6 };
// What a block of a relative frame alone may be.
static inline constexpr bool is_relative_kind(uint8_t extended) { return extended == kSparse || extended == kDense; }
enum Rest : uint8_t { kVerbatim = 0, kTrimmed = 1, kBytes = 2 };
// Flags of kind zeros: the signs of the zeros, and whether the inner block is stored.
enum Signs : uint8_t { kSignsPlus = 0, kSignsMinus = 1, kSignsMixed = 2 };
constexpr uint8_t kSignsMask = 3, kInnerStored = 4;
enum Slice : uint8_t { kSliceVerbatim = 0, kSliceConstant = 1, kSliceEntropy = 2 };
enum Profile : uint8_t { kProfileEnec = 0, kProfileFast = 1, kProfileCompact = 2, kProfileResident = 3 };
enum Feature : uint32_t { kBaseRelative = 1 };  // bits of required_features

constexpr size_t kTagNbytes = 1;
constexpr size_t kMaxParts = 16;           // of a block of kind parts
constexpr unsigned kPartStored = 1 << 15;  // of the length of a part or of an inner block, in units of kBlockAlign
constexpr size_t kExtendedNbytes = 1;
constexpr unsigned kMaxTiers = 5;  // of a cascade
constexpr uint8_t kTrailPerRun = 255;
constexpr uint8_t kEscapeSymbol = 255;
constexpr unsigned kMaxExtraBits = 3;  // k of kind entropy

struct Tag {
  uint8_t kind, rest, variant;

  static constexpr Tag from(uint8_t byte) {
    return {static_cast<uint8_t>(byte & 7), static_cast<uint8_t>(byte >> 3 & 3), static_cast<uint8_t>(byte >> 5)};
  }
  constexpr uint8_t byte() const { return static_cast<uint8_t>(kind | rest << 3 | variant << 5); }
};

// What a block's coding depends on besides its content.
struct BlockSpec {
  Layout dtype;
  uint8_t profile;
  bool relative;
  // The block's words in the base; nullptr in a plain frame, and where nothing is decoded.
  const uint8_t* base;
  size_t align;           // bytes that a block has a multiple of
  size_t part_words = 0;  // of the blocks of profile fast that this one may take no more than; 0 where there are none
  size_t row_words = 0;   // of a row of the tensor; 0 where that is not known or not needed

  // That of a block of kept words within the block: it stands for words that have no place in the base.
  BlockSpec inner() const { return inner(dtype); }
  BlockSpec inner(const Layout& of) const { return {of, profile, false, nullptr, kBlockAlign, 0}; }
  // That of a part of the block, from word `first` on.
  BlockSpec part(size_t first) const {
    return {dtype,       profile, relative, base == nullptr ? nullptr : base + first * dtype.word_nbytes,
            kBlockAlign, 0,       row_words};
  }
};

// Bytes of the parameters of an extended kind; those of relative frames have a threshold for each class but one.
static inline constexpr size_t extended_params_nbytes(uint8_t extended, uint8_t variant) {
  switch (extended) {
    case kExtendedCascade:
      return 3 + 2 * kMaxTiers;
    case kModal:
      return 5;
    case kSparse:
      return variant;
    case kDense:
      return sizeof(uint32_t) + variant;
    case kParts:
      return sizeof(uint16_t);  // and the lengths before it
    case kScaled:
      return 2 * sizeof(uint32_t) + sizeof(uint16_t);
    default:
      return 0;
  }
}

// Bytes of the parameters of a kind; those of an extended kind with the byte that names it.
static inline constexpr size_t kind_params_nbytes(uint8_t kind, uint8_t extended, uint8_t variant,
                                                  const Layout& dtype) {
  switch (kind) {
    case kConstant:
      return dtype.word_nbytes;
    case kEnec:
    case kEntropy:
      return 4;
    case kCascade:
      return 3 + 2 * kMaxTiers;
    case kZeros:
      return 7;
    case kExtended:
      return extended_params_nbytes(extended, variant) + kExtendedNbytes;
    default:
      return 0;
  }
}

// The most extra bits of kind entropy: at least one bit of a rest stays behind.
static inline constexpr unsigned max_extra_bits(const Layout& dtype) {
  return dtype.rest_bits > kMaxExtraBits ? kMaxExtraBits : dtype.rest_bits == 0 ? 0 : dtype.rest_bits - 1u;
}

// The variant of extended kind cascade that the encoder gives all coded blocks of a dtype in profile resident.
static inline constexpr uint8_t resident_variant(const Layout& dtype) { return dtype.exponent_bits == 8 ? 0 : 1; }

// Bytes of the parameters of a coding of rests of `width` bits.
static inline constexpr size_t rest_params_nbytes(uint8_t rest, unsigned width) {
  return rest == kVerbatim ? 0 : rest == kTrimmed ? 2 : ceil_div(width, 8);
}

// Bits of slice s of rests of `width` bits.
static inline constexpr unsigned slice_bits(unsigned width, unsigned s) {
  return width - 8 * s < 8 ? width - 8 * s : 8;
}

static inline size_t stored_nbytes(const BlockSpec& spec, size_t n) {
  return ceil_to(n * spec.dtype.word_nbytes, spec.align);
}

}  // namespace tw
