// One block of words to its streams and descriptor. Decisions are exact integers: the same bytes on every target.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"
#include "coders/enec.h"
#include "coders/entropy.h"
#include "coders/rest.h"
#include "common/format.h"
#include "transforms/histogram.h"

namespace tw {

struct EncodeScratch {
  alignas(64) uint8_t exponents[kMaxBlockWords + kSlack];
  alignas(64) uint8_t symbols[kMaxBlockWords + kSlack];
  alignas(64) uint8_t sign_mantissas[kMaxBlockWords * sizeof(uint32_t) + kSlack];
  uint16_t escapes[kMaxBlockWords];
  uint64_t runs[kMaxRuns], narrow_runs[kMaxRuns];
  uint32_t histogram[256];
  uint32_t wide_histogram[kMaxWideValues];
  CascadeScratch cascade;
  EnecScratch enec;
  RestScratch rest;
  // Zero groups: the words that stay, their block, and a flag per word or group.
  alignas(64) uint8_t words[kMaxBlockWords * kMaxWordNbytes + kSlack];
  alignas(64) uint8_t inner[kMaxBlockWords * kMaxWordNbytes + kSlack];
  alignas(64) uint8_t flags[kMaxBlockWords + kSlack];
};

// Encode n words (1 to kMaxBlockWords) to dst, which has room for stored_nbytes(). Returns the block's length: 0 where
// they are those of spec.base.
size_t encode_block(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch);

}  // namespace tw
