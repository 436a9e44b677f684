// Orders of chains over pairs of columns: what inputs look like there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/bits.h"
#include "linear/dot.h"

namespace tw {

// Words of BF16, filled up with a zero to a whole pair. The input is of such words.
static inline void arrange_pairs(const float* input, size_t columns, float* arranged) {
  uint8_t* const words = reinterpret_cast<uint8_t*>(arranged);
  for (size_t c = 0; c < columns; ++c)
    store(words + c * kWeightNbytes, static_cast<uint16_t>(load<uint32_t>(input + c) >> 16));
  if (columns % 2 != 0) store(words + columns * kWeightNbytes, uint16_t{0});
}

// The input as it is, filled up likewise.
static inline void arrange_floats(const float* input, size_t columns, float* arranged) {
  std::memcpy(arranged, input, columns * sizeof(float));
  if (columns % 2 != 0) arranged[columns] = 0.0f;
}

// Columns of a block.
static inline size_t block_of(tw_order order, size_t columns) {
  if (order != TW_GEMM_768) return order == TW_PAIRS_512 ? 512 : 1024;
  constexpr size_t kOne = 384, kMost = 768;
  return columns <= kOne ? kOne : columns < 2 * kMost ? ceil_to(ceil_div(columns, 2), 2) : kMost;
}

}  // namespace tw
