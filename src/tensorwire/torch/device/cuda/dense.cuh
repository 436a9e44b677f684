// What those who read kind dense of docs/format.md and those who write it share: its numbers, and sixteen words of a
// thread.
#pragma once
#include "dev.h"

constexpr u32 kSlotsLog2 = 12, kSlots = 1 << kSlotsLog2;  // what the frequencies of a table add up to
constexpr u32 kLowestState = 1 << 16;
constexpr u32 kMostLength = 12, kMostTopBits = 3;              // of a frequency in a table
constexpr u32 kSymbolsLog2 = 5, kSymbols = 1 << kSymbolsLog2;  // words of 16 bits have all but the last one
constexpr u32 kLastPlain = 3;                                  // the last symbol that is a size
constexpr u32 kDenseParams = 6;  // bytes behind the streams, but for thresholds: num_changed, extended kind, tag

// How many low bits a size has, by its symbol.
DEV u32 low_bits_of(u32 symbol) { return (max(symbol, 2u) - 2) / 2; }

// Sixteen words of W bytes, 1 or 2; those behind the last one are zeros.
template <u32 W>
struct Sixteen {
  static constexpr u32 OF_REGISTER = 4 / W, ALL = (1u << 8 * W) - 1;
  u32 own[4 * W];

  METHOD u32 word(u32 i) const { return own[i / OF_REGISTER] >> i % OF_REGISTER * 8 * W & ALL; }
  METHOD void set(u32 i, u32 word) {
    u32 at = i % OF_REGISTER * 8 * W;
    own[i / OF_REGISTER] = bits_of(ALL << at, word << at, own[i / OF_REGISTER]);
  }
  METHOD void load(const u8* words, u32 count) {
#pragma unroll
    for (u32 j = 0; j < W; j++) {
      uint4 four = {0, 0, 0, 0};
      if (count == 16) four = ((const uint4*)words)[j];
      own[4 * j] = four.x, own[4 * j + 1] = four.y, own[4 * j + 2] = four.z, own[4 * j + 3] = four.w;
    }
    if (count == 16) return;
#pragma unroll
    for (u32 i = 0; i < 16; i++)
      if (i < count) set(i, W == 2 ? ((const u16*)words)[i] : words[i]);
  }
  METHOD void store(u8* words, u32 count) const {
    if (count == 16) {
#pragma unroll
      for (u32 j = 0; j < W; j++) ((uint4*)words)[j] = {own[4 * j], own[4 * j + 1], own[4 * j + 2], own[4 * j + 3]};
      return;
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++)
      if (i < count) {
        if (W == 2)
          ((u16*)words)[i] = (u16)word(i);
        else
          words[i] = (u8)word(i);
      }
  }
};
