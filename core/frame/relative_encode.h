// The kinds that only blocks of relative frames have (docs/format.md, "Kinds of relative frames"): words to streams.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/dense.h"
#include "coders/sparse.h"
#include "common/format.h"

namespace tw {

struct RelativeEncodeScratch {
  uint64_t changed[kMaxMasks];
  SparseEncodeScratch sparse;
  DenseEncodeScratch dense;
  bool dense_alone;  // the block that was encoded last changes so many words that no other kind was tried
  alignas(64) uint8_t block[kMaxBlockWords * kMaxWordNbytes];
};

struct RelativeBlock {
  size_t length;  // 0 for a block that is same; that of the block when stored if no kind is smaller
  bool settled;   // no other kind is worth trying
};

// Encode n words relative to those of spec.base, to dst, which has room for stored_nbytes(). Meanwhile fetches what
// will be read next, if that takes long enough.
RelativeBlock encode_relative(const BlockSpec& spec, const uint8_t* words, size_t n, const FetchPair& upcoming,
                              uint8_t* dst, RelativeEncodeScratch* scratch);
// A number of bytes that n words of that block, from word `first` on, take at least as a block of profile fast; 0 where
// that is not known before they are encoded. The block has scratch->dense_alone.
size_t least_of_part(const BlockSpec& part, const uint8_t* words, size_t first, size_t n,
                     RelativeEncodeScratch* scratch);

}  // namespace tw
