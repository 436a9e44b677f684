// The kinds that only blocks of relative frames have: streams to words.
#pragma once
#include "frame/decode_block.h"
#include "frame/open_block.h"

namespace tw {

// Decode a block that open_coded() found to be of one of these kinds.
Fault decode_relative(const Coded& coded, const BlockOutput& output, RelativeDecodeScratch* scratch);

// Decode the symbols of two blocks that open_coded() found to be of kind dense, if both are valid.
void decode_dense_ahead(const Coded& a, const Coded& b, RelativeDecodeScratch* scratch);

}  // namespace tw
