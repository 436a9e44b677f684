// What is made once of a frame: how much escapes before each run, whether that is what the descriptors say, and the
// list of escapes of tier shape (4). One compiled kernel serves all parameters; a thread takes a run.
//
// All: grid (blocks of the launch), THREADS_TO_OPEN threads, no dynamic shared memory. `frame` is all its bytes, `rows`
// the launch data of the launch. `before` has an entry for each run of each block of the frame, `before_later` one for
// each later run. Both are written before anything is known to be right. `wrong` tells the host: it begins as all bits
// set, and ends so if all counts are right, else with the smallest of
//     ordinal << 32 | tier << 24 | what was counted
// where tier is 0 for the high parts of enec. A frame for which it tells of an error must not be decoded.
#pragma once

#include "dev.h"
#include "frame.cuh"
#include "numbers.cuh"

#define THREADS_TO_OPEN 128

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
  for (u32 i = 0; i < THREADS_TO_OPEN / 32; i++) {
    if (i < warp) earlier += sums[i];
    total += sums[i];
  }
  __syncthreads();
  return earlier + sum - value;
}

DEV void report(u64* wrong, u32 ordinal, u32 tier, u32 counted) {
  atomicMin(wrong, (u64)ordinal << 32 | tier << 24 | counted);
}

// For each tier, the escapes before each of its runs. Grid: see above. `widths` has four bits for each tier, the bytes
// among them, and `rest_bits` is how many bits of a rest are stored.
GLOBAL void count_escapes(const u8* frame, const Row* rows, u16* before, u16* before_later, u64* wrong,
                          u32 runs_per_block, u32 rest_bits, u32 widths) {
  SHARED_ARRAY(u32, sums, THREADS_TO_OPEN / 32);
  Row row = row_of(rows, blockIdx.x);
  Cascade cascade = {(const u32*)block_of(frame, row), row, rest_bits, widths};
  for (u32 tier = 1; tier_width(cascade, tier) != 8; tier++) {
    u32 count = tier_count(cascade, tier), w = tier_width(cascade, tier), so_far = 0;
    const u32* field = tier_field(cascade, tier);
    u16* target = tier == 1 ? before + (u64)row.ordinal * runs_per_block : before_later + tier_first_run(cascade, tier);
    for (u32 start = 0; start * 256 < count; start += THREADS_TO_OPEN) {
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

// For each run of enec, how many groups that begin before it have their mask bit set; 4 << quads_log2 words are a
// group.
GLOBAL void count_mask(const u8* frame, const Row* rows, u16* before, u64* wrong, u32 runs_per_block, u32 rest_bits,
                       u32 m, u32 quads_log2) {
  SHARED_ARRAY(u32, sums, THREADS_TO_OPEN / 32);
  Row row = row_of(rows, blockIdx.x);
  const u32* mask = (const u32*)block_of(frame, row) + field_nwords(row.n, rest_bits) + field_nwords(row.n, m);
  u32 num_groups = (row.n + (4u << quads_log2) - 1) >> (2 + quads_log2), quads = 16 >> quads_log2, so_far = 0;
  for (u32 start = 0; start * 256 < row.n; start += THREADS_TO_OPEN) {
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

// The escapes of tier shape (4), in their order: the place in the block and the exponent of each. A block's part of the
// list begins at `later` of its launch data and has as many entries as its descriptor says, right or wrong. For each
// row of `columns` words that begins in the block, `begins` gets where its part of the list begins; no rows if that is
// 0.
GLOBAL void list_escapes(const u8* frame, const Row* rows, const u16* before, u16* places, u8* exponents, u32* begins,
                         u32 runs_per_block, u32 rest_bits, u32 columns) {
  Row row = row_of(rows, blockIdx.x);
  Cascade cascade = {(const u32*)block_of(frame, row), row, rest_bits, 0x84};
  const u32* digits = tier_field(cascade, 1);
  const u8* bytes = (const u8*)tier_field(cascade, 2);
  const u16* own = before + (u64)row.ordinal * runs_per_block;
  u32 listed = tier_count(cascade, 2);
  for (u32 run = threadIdx.x; run * 256 < row.n; run += THREADS_TO_OPEN) {
    u32 c = in_run(row.n, run), rank = own[run];
    for (u32 g = 0; g * 4 < c; g++) {
      u32 escapes = escapes_of_group(group_of_plane(digits, run, c, g, 2), 4, c - g * 4);
      if (!escapes) continue;
      for (u32 i = 0; i < 4; i++) {
        if (!(escapes >> 8 * i & 1) || rank >= listed) continue;
        places[row.later + rank] = (u16)(run * 256 + g * 4 + i);
        exponents[row.later + rank] = bytes[rank];
        rank++;
      }
    }
  }
  if (!columns) return;
  u64 first = (u64)row.ordinal * runs_per_block * 256;
  for (u64 r = (first + columns - 1) / columns + threadIdx.x; r * columns < first + row.n; r += THREADS_TO_OPEN) {
    u32 place = (u32)(r * columns - first), run = place >> 8;
    u32 rank = own[run] + escapes_in_run(digits, row.n, 4, run, place & 255);
    begins[r] = row.later + (rank < listed ? rank : listed);
  }
}
