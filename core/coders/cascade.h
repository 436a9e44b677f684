// The escape cascade of docs/format.md: exponents as tiers of fixed-width digits, each with an escape to the next tier.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/two_bits.h"
#include "common/format.h"
#include "transforms/planes.h"

namespace tw {

// Shapes 0 to 7 are the variants of kind cascade; from kExtendedShapes on come those of extended kind cascade.
constexpr unsigned kExtendedShapes = 8, kNumTierShapes = 14;
// Widths of the coded tiers by shape; 0 where a tier does not exist.
extern const uint8_t kTierWidths[kNumTierShapes][kMaxTiers];

struct CascadeParams {
  uint8_t shape;
  uint8_t lo;
  uint8_t below[kMaxTiers];        // a_k; that of tier 1 is 0
  uint32_t counts[kMaxTiers + 1];  // numbers in each tier, the raw exponents behind the last coded tier
};

// Scratch of one block; each array has kSlack to spare.
struct CascadeScratch {
  alignas(64) uint8_t even[kMaxBlockWords + kSlack];
  alignas(64) uint8_t odd[kMaxBlockWords + kSlack];
};

// Choose among all shapes and intervals what takes the fewest bits for a histogram of n exponents.
// Each tier has a price on top; of equals the lower variant wins. False if a count does not fit its field.
bool cascade_choose(const uint32_t histogram[256], size_t n, unsigned exponent_bits, CascadeParams* params);

// Choose the intervals of one shape. False as above, and for a shape that names more exponents than there are.
bool cascade_fit(const uint32_t histogram[256], size_t n, unsigned exponent_bits, unsigned shape,
                 CascadeParams* params);

// Whether all exponents that the tiers name are below 2^exponent_bits.
bool cascade_in_range(const CascadeParams& params, unsigned exponent_bits);

size_t cascade_nbytes(const CascadeParams& params);

// Write cascade_nbytes() bytes. Exponents must be those of the histogram; up to kSlack are read past n.
void cascade_encode(const uint8_t* exponents, const CascadeParams& params, uint8_t* dst, CascadeScratch* scratch);

// A first tier of two bits alone, from exponent `lo` on, of whole runs. Exponents that it escapes go to `next`, which
// has kSlack to spare. Returns how many.
size_t cascade_encode_first(const uint8_t* exponents, size_t num_runs, uint8_t lo, uint8_t* field, uint8_t* next);
// The histogram of the exponents of such a tier, and of the num_escapes that it escapes.
void cascade_count(const uint8_t* field, size_t num_runs, uint8_t lo, const uint8_t* next, size_t num_escapes,
                   uint32_t histogram[256]);
// As cascade_encode(), if the first tier is written and scratch->even has what it escapes.
void cascade_encode_behind(const CascadeParams& params, uint8_t* dst, CascadeScratch* scratch);

// Whether the digits of the first tier are whole runs of one plane of 2 or 4 bits.
bool has_runs(const CascadeParams& params);

// Such runs, for who takes the digits himself.
struct DigitRuns {
  unsigned width;         // of a digit, 2 or 4
  const uint8_t* digits;  // a plane
  const DigitNames* names;
  const uint8_t* next;  // the exponents that they escape, in order; kSlack to spare
};

// A turned exponent is one of 8 bits, rotated right by one: its uppermost bit is the one that has its place in the
// lower byte of a word of BF16.
enum class ExponentForm : uint8_t { kPlain, kTurned };

// Decodes the exponents of a block in order, tile by tile.
class CascadeDecoder {
 public:
  // Decodes all tiers but the first. False if a count is not the number of escapes before it, or a raw
  // exponent is too wide. `src` holds cascade_nbytes(params) bytes and kSlack to spare; params.counts are at most
  // kMaxBlockWords and their widths are consistent. Only exponents of 8 bits are turned.
  bool open(const uint8_t* src, const CascadeParams& params, unsigned exponent_bits, CascadeScratch* scratch,
            ExponentForm form = ExponentForm::kPlain);
  // Exponents [first, first + count) to out, which has kSlack to spare; tiles in order, of whole runs but for the last.
  void decode(size_t first, size_t count, uint8_t* out);
  // Where has_runs(params): the digits from the first one of a run on, in place of decode(); and how many they escaped.
  DigitRuns runs(size_t first) const { return {width_, field_ + first * width_ / 8, &names_, next_ + used_}; }
  void took(size_t num_escapes) { used_ += num_escapes; }
  // After the last tile: whether there were as many escapes as announced.
  bool finish() const { return used_ == num_escapes_; }

 private:
  const uint8_t* field_;
  const uint8_t* next_;
  size_t n_, used_, num_escapes_;
  unsigned width_;
  DigitNames names_;
};

struct CascadeKernels {
  // out[i] = names[digit] for digit < escape, else the next of `next`; digits come in `out`. Returns how many of next
  // were used. Reads up to kSlack past out and next, writes up to kSlack past out.
  size_t (*expand)(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out);
  // Tier of exponents to digits: min(d, escape) where d = x - start, less `gap` if that is >= below; escaped ones go to
  // `next` in order. Returns their number. In place is fine (next == exponents). Slack as above.
  size_t (*split)(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
                  uint8_t* digits, uint8_t* next);
};

extern const CascadeKernels& cascade_kernels;

}  // namespace tw
