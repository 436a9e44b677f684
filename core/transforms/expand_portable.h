// Lanes of the expand kernels, word by word; for targets without better, and for widths that gain nothing.
#pragma once
#include "transforms/expand_impl.h"

namespace tw {
namespace {

template <unsigned W>
struct Portable {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    uint64_t mask = 0, negative = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, words + i * W, W);
      mask |= uint64_t{(word & magnitude) != 0} << i;
      negative |= (word >> (8 * W - 1) & 1) << i;
    }
    *minus = negative;
    return mask;
  }

  // No branches: each word is copied, and the next one over it where it is not kept.
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (size_t i = 0; i < kGroup; ++i) {
      std::memcpy(out, words + i * W, W);
      out += W * (mask >> i & 1);
    }
    return out;
  }

  template <bool SIGNS, bool>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    for (size_t i = 0; i < kGroup; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, kept, W);
      const uint64_t in_mask = mask >> i & 1;
      word = in_mask != 0 ? word : fill;
      if (SIGNS) word |= (minus >> i & 1) << (8 * W - 1);
      std::memcpy(out + i * W, &word, W);
      kept += W * in_mask;
    }
  }
};

}  // namespace
}  // namespace tw
