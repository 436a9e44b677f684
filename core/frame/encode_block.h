// One block of words to its streams and descriptor. Decisions are exact integers: the same bytes on every target.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"
#include "coders/enec.h"
#include "coders/entropy.h"
#include "coders/mask.h"
#include "coders/rest.h"
#include "common/format.h"
#include "common/prefetch.h"
#include "frame/once_reader.h"
#include "frame/relative_encode.h"
#include "transforms/histogram.h"

namespace tw {

// The first tier that the block before had, if it was one of two bits behind verbatim rests.
struct FirstTier {
  bool known = false;
  uint8_t lo = 0;

  bool operator==(const FirstTier& other) const { return known == other.known && lo == other.lo; }
};

struct EncodeScratch {
  alignas(64) uint8_t exponents[kMaxBlockWords + kSlack];
  alignas(64) uint8_t symbols[kMaxBlockWords + kSlack];
  alignas(64) uint8_t sign_mantissas[kMaxBlockWords * kMaxWordNbytes + kSlack];
  uint16_t escapes[kMaxBlockWords];
  uint64_t runs[kMaxRuns], narrow_runs[kMaxRuns];
  uint32_t histogram[256];  // of the exponents that were split last
  Kind fast_kind;           // what profile fast wrote last
  FirstTier first_tier;
  Arrival arrival;
  FetchPair upcoming;  // bytes that will be read next
  uint32_t wide_histogram[kMaxWideValues];
  CascadeScratch cascade;
  EnecScratch enec;
  RestScratch rest;
  // What the rests that were written last have.
  size_t rests_nbytes;
  uint8_t rest_mode;  // Rest
  // Kind zeros: the mask of the words that are kept, that of minus zeros, and these words. A block that is coded in two
  // ways, of which the smaller one stays.
  uint64_t kept[kMaskNumbers], minus[kMaskNumbers];
  alignas(64) uint8_t words[kMaxBlockWords * kMaxWordNbytes + kSlack];
  alignas(64) uint8_t other[kMaxBlockWords * kMaxWordNbytes];
  // Kind modal: the mask of the exponents that are another.
  uint64_t others[kMaskNumbers], where[kMaskNumbers];
  MaskEncodeScratch mask;
  // Kind scaled: the scales; the code of each magnitude. The codes are in `words`.
  float scales[kMaxBlockWords / 128 + 1];
  uint8_t codes_of[1 << 15];
  RelativeEncodeScratch relative;
  alignas(64) uint8_t part[kMaxBlockWords * kMaxWordNbytes];  // as profile fast codes it
};

// Encode n words (1 to kMaxBlockWords) to dst, which has room for stored_nbytes(). Returns the block's length: 0 where
// they are those of spec.base. The words are there once scratch->arrival has put them there; those of spec.base are.
size_t encode_block(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch);
// As one block, of any kind but parts.
size_t encode_whole(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch);

}  // namespace tw
