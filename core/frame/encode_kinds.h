// What the encoders of the kinds share: a block, and its streams and descriptor as they are written.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/mask.h"
#include "frame/encode_block.h"

namespace tw {

struct Block {
  const BlockSpec& spec;
  const uint8_t* words;
  size_t n;
  uint8_t* dst;
  size_t stored;
  EncodeScratch* scratch;

  const Layout& dtype() const { return spec.dtype; }
  // For a block that has no rest.
  size_t descriptor_nbytes(Kind kind, uint8_t extended = 0) const {
    return kind_params_nbytes(kind, extended, 0, dtype()) + kTagNbytes;
  }
  size_t descriptor_nbytes(Kind kind, const RestPlan& plan, uint8_t extended = 0) const {
    return plan.params_nbytes + descriptor_nbytes(kind, extended);
  }
};

struct Written {
  size_t streams;
  uint8_t descriptor[32];
  size_t descriptor_nbytes;

  void push(uint64_t value, size_t nbytes);
};

// Rest streams to the start of the block, their parameters to the start of the descriptor. False if they do not fit.
bool write_rests(const Block& block, const RestPlan& plan, const Rests& rests, const uint64_t* runs, Written* written);

// Put the descriptor at the end of the block at dst, zeros before it. Returns the block's length, or 0 if that is not
// below `stored`.
size_t finish(uint8_t* dst, size_t stored, size_t align, size_t streams, const uint8_t* descriptor,
              size_t descriptor_nbytes);

size_t store_block(const Block& block);

// Split words into exponents and sign_mantissas, and OR the runs of the latter, all in scratch. Returns the rests. All
// words have arrived then.
Rests split(const Block& block);
// Where split() puts them.
Rests rests_of(const Block& block);

// The smallest coding of the rests that the profile has.
RestPlan cascade_rests(const Block& block, const Rests& rests);
// The block with the tiers that were chosen for the exponents in scratch. Returns its length, or 0 if it gains nothing.
// `ahead`: rests and first tier are written.
size_t write_cascade(const Block& block, const Rests& rests, const RestPlan& plan, const CascadeParams& params,
                     bool ahead = false);

// Blocks of a tensor are alike. So profile fast writes verbatim rests and the first tier as the block before had them,
// in one pass over the words; it has counted most exponents then, and is right about both nearly always. What it writes
// to the block is overwritten otherwise. False if there is no such tier or the words are not whole runs. Else all words
// have arrived.
bool write_ahead(const Block& block);
// What the next block is to begin with, by the plan of this one.
FirstTier first_tier_of(const RestPlan& plan, const CascadeParams& params);

// Kind entropy, or kind cascade where that is smaller. Returns the block's length, or 0 if neither has room for what it
// escapes.
size_t encode_entropy(const Block& block);

// The smallest coding of a block of the words that kind zeros keeps. It may be stored.
size_t encode_kept(const Block& block);

// The length of a block of profile fast, which is found without writing it where that is possible.
size_t plan_or_encode(const Block& block);

// Kind zeros.
struct ZerosPlan {
  size_t kept, zeros;
  uint8_t signs;  // Signs
  MaskPlan mask;
  size_t nbytes;  // of all but the inner block
};

// What the zeros of a block take. False if kind zeros would gain nothing: the block has next to none.
bool plan_zeros(const Block& block, ZerosPlan* plan);
// Whether plan_zeros() would look at all words that are at `words`, of a block of so many.
bool sample_has_zero(const Layout& dtype, const uint8_t* words, size_t n);
// The block by the plan. Returns its length, or 0 if it gains nothing.
size_t write_zeros(const Block& block, const ZerosPlan& plan);

// Extended kind scaled. Whether encode_scaled() is worth a try, as far as the first words tell, which need not have
// arrived.
bool may_be_scaled(const Block& block);
// The block as codes and scales, if there are any. Returns its length, or 0. All words have arrived.
size_t encode_scaled(const Block& block);

// Extended kind modal, for the exponents in scratch that occur as the histogram there says.
struct ModalPlan {
  uint8_t mode;
  size_t num_others;
  MaskPlan mask;
  size_t nbytes;  // of its streams
};

// Kind modal is tried if at most one exponent in so many is another than the most frequent one.
constexpr size_t kOthersShare = 8;
// False if more are.
bool plan_modal(const Block& block, ModalPlan* plan);
size_t write_modal(const Block& block, const Rests& rests, const RestPlan& rest_plan, const ModalPlan& plan);

}  // namespace tw
