// What write_blocks.cuh needs to write blocks of profile fast. The shape of their tiers is the same for all blocks of a
// layout: it takes next to 1 % more than the best of all shapes does, where exponents are about those of weights.
#pragma once
#include "encode_tiers.cuh"
#include "write_blocks.cuh"

template <class L>
struct Fast {
  static constexpr u32 WORD_NBYTES = L::NBYTES, AT_ONCE = 2;
  static constexpr u32 WIDTHS = L::NBYTES == 1 ? 0x83222 : 0x8322;

  template <bool WHOLE>
  DEV Encoded encode(const u8* words, u32 n, u8* out, u32 capacity, u8* shared) {
    TiersRoom room = tiers_room_for(shared);
    Tiers<WIDTHS> tiers = sample_tiers<L, WIDTHS>(words, n, room);
    return encode_tiers<L, WIDTHS, WHOLE>(words, n, tiers, kAlignment, out, capacity, room);
  }
};
