// What is made once of a frame. A compiled kernel serves all parameters: frames are opened once, so that few
// compilations count for more than instructions. A thread takes a run.
//
// count_escapes: of a cascade, the escapes before each run of each tier, and whether there are as many as a tier's
// count says.
//   frame          u8: all of a frame, at a multiple of 16 bytes
//   rows           Row: the launch data of blocks, at a multiple of 16 bytes
//   before         u16, for each run of tier 1 (ordinal * runs_per_block + run): escapes before it in its block
//   before_later   u16, for each later run: escapes before it in its tier
//   wrong          u64, all bits set before the first launch. It stays so if all counts of a frame are right, else it
//                  becomes the least of ordinal << 32 | tier << 24 | how many were counted: tiers from 1 on
//   runs_per_block u32: of a full block
//   rest_bits      u32: how many bits of a rest are stored
//   widths         u32: four bits for each tier, lowest first, the bytes behind the last one: 0x832112 for 2, 1, 1, 2,
//   3
// count_mask: of enec, the groups before each run whose mask bit is set, and whether there are as many high parts.
//   frame, rows, before, wrong (tier 0, and high parts), runs_per_block, rest_bits as above
//   m              u32: bits of a low part
//   quads_log2     u32: 4 << quads_log2 words are a group
// list_escapes: of tier shape (4), the escapes in their order. It may be launched before `wrong` is read.
//   frame, rows, before, runs_per_block, rest_bits as above; number 7 of the launch data is where the block's part of
//                  the list begins
//   list           u16: for each escape, its place in its block, which has at most 65,536 words
//   exponents      u32: 1 for a list of the place in its run << 8 | its exponent instead
//
// All: grid (blocks of the launch, 1, 1), kThreadsToOpen threads, no dynamic shared memory. What is written of a frame
// whose counts are wrong has no meaning, and no kernel may decode by it.
#pragma once

#include "dev.h"
#include "frame.cuh"
#include "numbers.cuh"

constexpr u32 kThreadsToOpen = 128;

// How many digits of a full run escape.
DEV u32 escapes_in_full_run(const u32* field, u32 count, u32 w, u32 run) {
  u32 escaped = 0;
  if (w == 1) {
    for (u32 j = 0; j < 8; j++) escaped += __popc(field[run * 8 + j]);
  } else if (w == 4) {
    for (u32 j = 0; j < 32; j++) {
      u32 pairs = field[run * 32 + j] & field[run * 32 + j] >> 1;
      escaped += __popc(pairs & pairs >> 2 & 0x11111111u);
    }
  } else {
    // The plane of one bit has rows of half as many bytes: word j of two bits goes with every second row of word j % 8.
    const u32* third = field + ((count * 2 + 31) >> 5) + run * 8;
    for (u32 j = 0; j < 16; j++) {
      u32 pairs = field[run * 16 + j] & field[run * 16 + j] >> 1 & 0x55555555u;
      if (w == 3) pairs &= third[j & 7] >> (j >> 3);
      escaped += __popc(pairs);
    }
  }
  return escaped;
}

// The sum of `value` over the threads before this one; `total` gets that over all. `sums` has a place for each warp.
DEV u32 sum_before(u32 value, u32* sums, u32& total) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = value;
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2) {
    u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  total = 0;
  u32 earlier = 0;
#pragma unroll
  for (u32 i = 0; i < kThreadsToOpen / 32; i++) {
    if (i < warp) earlier += sums[i];
    total += sums[i];
  }
  __syncthreads();
  return earlier + sum - value;
}

DEV void report(u64* wrong, u32 ordinal, u32 tier, u32 counted) {
  atomicMin(wrong, (u64)ordinal << 32 | tier << 24 | counted);
}

GLOBAL void count_escapes(const u8* frame, const Row* rows, u16* before, u16* before_later, u64* wrong,
                          u32 runs_per_block, u32 rest_bits, u32 widths) {
  SHARED_ARRAY(u32, sums, kThreadsToOpen / 32);
  Row row = row_of(rows, blockIdx.x);
  CascadeBlock cascade = {(const u32*)block_of(frame, row), row, rest_bits, widths};
  for (u32 tier = 1; tier_width(cascade, tier) != 8; tier++) {
    u32 count = tier_count(cascade, tier), w = tier_width(cascade, tier), so_far = 0;
    const u32* field = tier_field(cascade, tier);
    u16* target = tier == 1 ? before + (u64)row.ordinal * runs_per_block : before_later + tier_first_run(cascade, tier);
    for (u32 start = 0; start * 256 < count; start += kThreadsToOpen) {
      u32 run = start + threadIdx.x, escaped = 0, total;
      bool exists = run * 256 < count;
      if (exists) {
        u32 c = in_run(count, run);
        escaped = c == 256 ? escapes_in_full_run(field, count, w, run) : escapes_in_run(field, count, w, run, c);
      }
      u32 earlier = so_far + sum_before(escaped, sums, total);
      if (exists) target[run] = (u16)earlier;
      so_far += total;
    }
    if (threadIdx.x == 0 && so_far != tier_count(cascade, tier + 1)) report(wrong, row.ordinal, tier, so_far);
  }
}

GLOBAL void count_mask(const u8* frame, const Row* rows, u16* before, u64* wrong, u32 runs_per_block, u32 rest_bits,
                       u32 m, u32 quads_log2) {
  SHARED_ARRAY(u32, sums, kThreadsToOpen / 32);
  Row row = row_of(rows, blockIdx.x);
  const u32* mask = (const u32*)block_of(frame, row) + field_nwords(row.n, rest_bits) + field_nwords(row.n, m);
  u32 num_groups = (row.n + (4u << quads_log2) - 1) >> (2 + quads_log2), quads = 16 >> quads_log2, so_far = 0;
  for (u32 start = 0; start * 256 < row.n; start += kThreadsToOpen) {
    u32 run = start + threadIdx.x, set = 0, total;
    bool exists = run * 256 < row.n;
    for (u32 k = 0; exists && k < quads; k++) set += __popc(mask_bits(mask, num_groups, run * quads + k));
    u32 earlier = so_far + sum_before(set, sums, total);
    if (exists) before[(u64)row.ordinal * runs_per_block + run] = (u16)earlier;
    so_far += total;
  }
  if (threadIdx.x != 0) return;
  u32 last = num_groups - 1, high = so_far << (2 + quads_log2);
  if (mask_bits(mask, num_groups, last >> 2) >> 8 * (last & 3) & 1) high -= (num_groups << (2 + quads_log2)) - row.n;
  if (high != row.n23) report(wrong, row.ordinal, 0, high);
}

GLOBAL void list_escapes(const u8* frame, const Row* rows, const u16* before, u16* list, u32 runs_per_block,
                         u32 rest_bits, u32 exponents) {
  Row row = row_of(rows, blockIdx.x);
  CascadeBlock cascade = {(const u32*)block_of(frame, row), row, rest_bits, 0x84};
  const u32* digits = tier_field(cascade, 1);
  const u8* bytes = (const u8*)tier_field(cascade, 2);
  const u16* own = before + (u64)row.ordinal * runs_per_block;
  u32 listed = tier_count(cascade, 2);  // entries that the list has for this block, whatever was counted
  for (u32 run = threadIdx.x; run * 256 < row.n; run += kThreadsToOpen) {
    u32 c = in_run(row.n, run), rank = own[run];
    for (u32 g = 0; g * 4 < c; g++) {
      u32 escapes = escapes_of_group(group_of_plane(digits, run, c, g, 2), 4, c - g * 4);
      if (!escapes) continue;
      for (u32 i = 0; i < 4; i++) {
        if (!(escapes >> 8 * i & 1) || rank >= listed) continue;
        u32 place = g * 4 + i;
        list[row.later + rank] = (u16)(exponents ? place << 8 | bytes[rank] : run * 256 + place);
        rank++;
      }
    }
  }
}
