// One block to its words. Everything in the block is checked before it is used; no input reads or writes out of bounds,
// not even one that changes meanwhile (a mapped file): what bounds depend on is read once.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"
#include "coders/dense.h"
#include "coders/enec.h"
#include "coders/entropy.h"
#include "coders/rest.h"
#include "coders/sparse.h"
#include "common/format.h"
#include "common/prefetch.h"
#include "frame/content_hash.h"
#include "frame/open_block.h"
#include "transforms/words.h"

namespace tw {

static_assert(kRansSlack <= kSlack && kStepSlack <= kSlack, "what kernels may read behind a block");

// Symbols of a block of kind entropy that were decoded before its turn.
struct SymbolsAhead {
  const uint8_t* block = nullptr;  // whose they are
  EntropyDecoder entropy;          // at the end of the stream
  alignas(64) uint8_t symbols[kMaxBlockWords + kSlack];
};

// Likewise a block of kind dense.
struct DenseAhead {
  const uint8_t* block = nullptr;
  DenseDecoder decoder;
};

// For the kinds of relative frames.
struct RelativeDecodeScratch {
  SparseDecodeScratch sparse;
  DenseAhead dense[2];
  alignas(64) uint8_t tile[kSegment * kMaxWordNbytes];
};

struct DecodeScratch {
  alignas(64) uint8_t exponents[kMaxBlockWords + kSlack];
  alignas(64) uint8_t words[kSegment * kMaxWordNbytes];
  CascadeScratch cascade;
  EnecScratch enec;
  EntropyDecoder entropy;
  SymbolsAhead ahead[2];
  alignas(64) uint16_t escapes[kSegment + kSlack];
  RestDecodeScratch rest;
  RelativeDecodeScratch relative;
  MaskedScratch zeros, modal;  // a block of kind zeros may have an inner one of kind modal
  alignas(64) uint8_t others[kMaxBlockWords + kSlack];
  alignas(64) uint8_t inner[kMaxBlockWords * kMaxWordNbytes + kSlack];
};

// Uses words as soon as they are decoded.
struct Taker {
  void (*take)(Taker* taker, const uint8_t* words, size_t count);
  // For BF16, if there is one: all words of a block as runs of digits, with turned exponents, and rests of a byte each.
  void (*take_runs)(Taker* taker, CascadeDecoder* cascade, const uint8_t* rests, size_t count);
};

// Where the words go.
struct BlockOutput {
  uint8_t* words;
  bool stream;  // around the caches; words is a multiple of 64 then
  // Bytes that will be read next, fetched while this block is decoded.
  Fetch next;
  // Kinds that look at the base feed it their words. Only blocks of relative frames need it.
  LeafHasher* hasher = nullptr;
  // If there is one, it may get the words instead, in order, some at a time while they lie in the first-level cache.
  Taker* taker = nullptr;
};

// Decode the symbols of two blocks of kind entropy, or of kind dense, together, which is faster than one after the
// other: decode_block() of each then finds them done. Does nothing where their kinds are others, or one of them is not
// valid.
void decode_symbols_ahead(const BlockSpec& a_spec, const BlockBytes& a, const BlockSpec& b_spec, const BlockBytes& b,
                          DecodeScratch* scratch);

// What is in a block, for those who look without decoding.
struct BlockFacts {
  uint8_t kind, rest, variant, extended;
  // Sign and mantissa; exponents. Mantissa bits that are coded together with the exponent count as rest, a bit each.
  size_t rest_nbytes, kind_nbytes;
};

// Decode the words of a block. The output may be spec.base. Returns what is wrong, if anything.
Fault decode_block(const BlockSpec& spec, const BlockBytes& block, const BlockOutput& output, DecodeScratch* scratch);

// Where a block stands: in the frame, as a part of one, or as the inner block of kind zeros.
enum class Place : uint8_t { kFrame, kPart, kInner };

// The facts of the same block; the same checks of its descriptor.
Fault inspect_block(const BlockSpec& spec, const BlockBytes& block, BlockFacts* facts, DecodeScratch* scratch,
                    Place place = Place::kFrame);

}  // namespace tw
