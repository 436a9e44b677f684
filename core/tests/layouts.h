// The layouts of docs/format.md, all of them, and its sentences on how words are split, one word at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/dtype.h"

namespace tests {

// By the table of the fixed part.
inline std::vector<tw::Layout> all_layouts() {
  std::vector<tw::Layout> layouts;
  for (const uint8_t width : {1, 2, 4, 8}) {
    for (const bool ordered : {false, true}) {
      layouts.push_back({width, 0, 0, tw::Split::kNone, ordered});
      for (uint8_t exponent = 1; exponent <= 8; ++exponent) {
        const uint8_t rest = static_cast<uint8_t>(8 * width - exponent);
        if (rest >= 1) layouts.push_back({width, exponent, rest, tw::Split::kFloat, ordered});
        layouts.push_back({width, exponent, rest, tw::Split::kUnsigned, ordered});
        layouts.push_back({width, exponent, rest, tw::Split::kSigned, ordered});
      }
    }
  }
  return layouts;
}

inline std::vector<tw::Layout> split_layouts() {
  std::vector<tw::Layout> layouts;
  for (const tw::Layout& layout : all_layouts()) {
    if (layout.exponent_bits != 0) layouts.push_back(layout);
  }
  return layouts;
}

inline uint64_t low_bits(uint64_t number, unsigned count) {
  return count == 64 ? number : number & ((uint64_t{1} << count) - 1);
}

// A word with its bits in the order in which the page names them for a float: sign, x, rest below.
struct Parted {
  uint64_t x, rest;
};

// x is the exponent and the k bits below it.
inline Parted part(const tw::Layout& layout, uint64_t word, unsigned k = 0) {
  const unsigned bits = 8u * layout.word_nbytes, x_bits = layout.exponent_bits + k;
  if (layout.split == tw::Split::kFloat) {
    const unsigned below = bits - 1 - x_bits;
    return {low_bits(word >> below, x_bits), (word >> (bits - 1)) << below | low_bits(word, below)};
  }
  const uint64_t turned = layout.split == tw::Split::kSigned ? word ^ uint64_t{1} << (bits - 1) : word;
  return {turned >> (bits - x_bits), low_bits(turned, bits - x_bits)};
}

// A field as the page says: a plane for each bit set in the width, the largest first, which holds the lowest bits.
inline std::vector<uint8_t> field_of(const std::vector<uint64_t>& numbers, unsigned width) {
  std::vector<uint8_t> field;
  unsigned shift = 0;
  for (unsigned p = 64; p != 0; p /= 2) {
    if ((width & p) == 0) continue;
    const size_t start = field.size(), n = numbers.size();
    field.resize(start + (n * p + 31) / 32 * 4);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t number = low_bits(numbers[i] >> shift, p);
      if (p >= 8) {
        for (unsigned b = 0; b < p / 8; ++b) field[start + i * p / 8 + b] = static_cast<uint8_t>(number >> (8 * b));
      } else {
        const size_t run = i / 256, c = n - run * 256 < 256 ? n - run * 256 : 256, s = 4 * ((c * p + 31) / 32);
        const size_t at = start + run * 32 * p + i % 256 % s;
        field[at] = static_cast<uint8_t>(field[at] | number << (p * (i % 256 / s)));
      }
    }
    shift += p;
  }
  return field;
}

}  // namespace tests
