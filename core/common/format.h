// Constants of docs/format.md that both the encoder and the decoder need.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/bits.h"
#include "common/dtype.h"

namespace tw {

constexpr size_t kBlockAlign = 32;
constexpr size_t kFrameAlign = 64;
constexpr uint32_t kMaxBlockWords = 262144;
constexpr size_t kMaxWordNbytes = 8;

enum Kind : uint8_t { kStored = 0, kConstant = 1, kEnec = 2, kCascade = 3, kEntropy = 4, kPlain = 5, kZeroGroups = 6 };
enum Rest : uint8_t { kVerbatim = 0, kTrimmed = 1, kBytes = 2 };
enum Slice : uint8_t { kSliceVerbatim = 0, kSliceConstant = 1, kSliceEntropy = 2 };
enum Profile : uint8_t { kProfileEnec = 0, kProfileFast = 1, kProfileCompact = 2 };

constexpr size_t kTagNbytes = 1;
constexpr unsigned kMaxTiers = 5;  // of kind cascade
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
  const Dtype* dtype;
  uint8_t profile;
};

// Bytes of the parameters of a kind.
static inline constexpr size_t kind_params_nbytes(uint8_t kind, const Dtype& dtype) {
  switch (kind) {
    case kConstant:
      return dtype.word_nbytes;
    case kEnec:
    case kEntropy:
      return 4;
    case kCascade:
      return 3 + 2 * kMaxTiers;
    case kZeroGroups:
      return 6;
    default:
      return 0;
  }
}

// Bytes of the parameters of a coding of rests of `width` bits.
static inline constexpr size_t rest_params_nbytes(uint8_t rest, unsigned width) {
  return rest == kVerbatim ? 0 : rest == kTrimmed ? 2 : ceil_div(width, 8);
}

// Bits of slice s of rests of `width` bits.
static inline constexpr unsigned slice_bits(unsigned width, unsigned s) {
  return width - 8 * s < 8 ? width - 8 * s : 8;
}

static inline size_t stored_nbytes(const Dtype& dtype, size_t n) { return ceil_to(n * dtype.word_nbytes, kBlockAlign); }

}  // namespace tw
