// Masks of docs/format.md: which of n words belong to a set, coded as levels of groups or as gaps.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/bit_string.h"
#include "common/format.h"

namespace tw {

constexpr unsigned kMaxMaskLevel = 5;  // variants 0 to 5 are levels
constexpr unsigned kMaskGaps = 6;      // this one is gaps
constexpr size_t kMaskNumbers = kMaxBlockWords / 64;

// In memory a mask is numbers of 64 bits: bit i mod 64 of number floor(i / 64) is word i, and bits from n on are zero.
static inline constexpr size_t mask_numbers(size_t n) { return ceil_div(n, 64); }
size_t count_mask(const uint64_t* mask, size_t n);

struct MaskEncodeScratch {
  uint64_t levels[kMaxMaskLevel + 1][kMaskNumbers];  // from level 1 on; those of level 0 are the mask's
  uint64_t where[kMaskNumbers];
};
struct MaskDecodeScratch {
  uint64_t above[kMaskNumbers], below[kMaskNumbers], where[kMaskNumbers];
};

struct MaskPlan {
  uint8_t variant;
  size_t nbytes;  // exact
  SetPlan set;    // of kMaskGaps
};

// The smallest variant, of equals the first; kMaskGaps only if `gaps`. The levels stay in scratch for write_mask().
MaskPlan plan_mask(const uint64_t* mask, size_t n, bool gaps, MaskEncodeScratch* scratch);
// Writes plan.nbytes.
void write_mask(const MaskPlan& plan, const uint64_t* mask, size_t n, uint8_t* dst, MaskEncodeScratch* scratch);
// Reads a mask of n words from at most `available` bytes, behind which kSlack are readable; *nbytes is what it takes.
// False if it is invalid.
bool read_mask(unsigned variant, const uint8_t* src, size_t available, size_t n, uint64_t* mask, size_t* nbytes,
               MaskDecodeScratch* scratch);

// A bit string with a bit for each word outside the mask, in order: in memory a mask of these words.
size_t write_outside(const uint64_t* mask, size_t n, const uint64_t* bits, uint8_t* dst, MaskEncodeScratch* scratch);
bool read_outside(const uint64_t* mask, size_t n, const uint8_t* src, size_t available, uint64_t* bits, size_t* nbytes,
                  MaskDecodeScratch* scratch);

struct MaskKernels {
  // Bit by bit from a string to the places that are set in `where`; other bits of `out` become zero. out may be where.
  // Reads up to kSlack behind the bits.
  void (*deposit)(const uint64_t* where, const uint8_t* bits, size_t numbers, uint64_t* out);
  // The places of a level of `numbers` numbers: the 4 bits below each bit of the level above.
  void (*spread)(const uint64_t* above, size_t numbers, uint64_t* where);
  // The level above one of `numbers` numbers: a bit for each 4 of which one is set.
  void (*collapse)(const uint64_t* below, size_t numbers, uint64_t* above);
  // How many bits are set.
  size_t (*count)(const uint64_t* mask, size_t numbers);
  // The bits of `mask` at these places to a string, zeros to a multiple of 4 bytes. Returns its bytes.
  size_t (*extract)(const uint64_t* where, const uint64_t* mask, size_t numbers, uint8_t* bits);
};

extern const MaskKernels& mask_kernels;

}  // namespace tw
