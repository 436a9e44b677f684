// Orders of chains over pairs of columns: what inputs look like there.
#pragma once
#include <cstddef>
#include <cstdint>

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

static inline constexpr size_t block_of(tw_order order) { return order == TW_PAIRS_512 ? 512 : 1024; }

}  // namespace tw
