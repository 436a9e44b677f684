// Words of enec.
//
// enec_words<L, REST, TRAIL, QUADS_LOG2, M, NB, WHOLE>
//   L            Bf16, F16, F32, F8E4M3 or F8E5M2
//   REST, TRAIL  how the rest is stored: verbatim L::REST_BITS, 0
//   QUADS_LOG2   4 << QUADS_LOG2 words are a group, which has one mask bit
//   M, NB        bits of a low part, and of a whole number
//   WHOLE        whether all runs of all blocks of the launch are full
//   frame        u8: all of a frame, at a multiple of 16 bytes
//   rows         Row: the launch data of blocks, at a multiple of 16 bytes
//   before       u16, for each run (ordinal * runs_per_block + run): groups before it whose mask bit is set
//   out          u8: the words of the blocks from `first_block` on, at a multiple of 16 bytes; nothing else is written
//   first_block, runs_per_block: u32
//   Grid (blocks of the launch, parts, 1), kThreadsOfEnec threads, no shared memory. The parts share a block's runs
//   out, and a warp takes one at a time; at most runs_per_block / 8 parts have work.
#pragma once

#include "dev.h"
#include "frame.cuh"
#include "numbers.cuh"

constexpr u32 kThreadsOfEnec = 256;

// Quad q of a field is its numbers 4 * q to 4 * q + 3, a byte each.
COLD u32 quad_of_short_run(const u32* field, u32 count, u32 w, u32 q) {
  return group_of_field(field, count, w, q >> 6, in_run(count, q >> 6), q & 63);
}

COLD bool is_set_in_short_run(const u32* mask, u32 num_groups, u32 number) {
  return mask_bits(mask, num_groups, number >> 2) >> 8 * (number & 3) & 1;
}

// A field of W bits, 1 to 7, whose planes are read by quads; `j` is as for Plane.
template <int W, bool WHOLE>
struct Quads {
  Plane planes[3];  // of 4, 2 and 1 bits

  METHOD void set(const u32* field, u32 count, u32 j) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
      int p = 4 >> i;
      if (!(W & p)) continue;
      planes[i].template set<WHOLE>(field, j, p, 4);
      field += (count * p + 31) >> 5;
    }
  }

  // The quads `j` and `j + 32` of a full run. Both stand in the same words, four bits apart.
  METHOD void load_both(u32* numbers, u32 run, u32 j) const {
    numbers[0] = numbers[1] = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
      int p = 4 >> i;
      if (!(W & p)) continue;
      u32 both = planes[i].lane[(u64)run * (8 * p)] >> j / (8 * p) * p;
#pragma unroll
      for (int k = 0; k < 2; k++) numbers[k] |= (both >> 4 * k & ((1u << p) - 1) * 0x01010101u) << (W & -2 * p);
    }
  }

  // Quad q of the field, of a full run; `j` is 0.
  METHOD u32 load(u32 q) const {
    u32 numbers = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
      int p = 4 >> i;
      if (!(W & p)) continue;
      u32 word = planes[i].lane[((q >> 6) * (8 * p)) | (q & (8 * p - 1))];
      numbers |= (word >> (q & 63) / (8 * p) * p & ((1u << p) - 1) * 0x01010101u) << (W & -2 * p);
    }
    return numbers;
  }
};

// Numbers of N bits, whose highest bit is a sign, subtracted from b: a byte each, modulo 256.
template <int N>
DEV u32 subtract_from(u32 b, u32 numbers) {
  constexpr u32 SIGN = 1u << (N - 1);
  // With its sign inverted a number is by SIGN too large, and so is b. No byte borrows from the next one.
  u32 y = numbers ^ SIGN * 0x01010101u, from = ((b + SIGN) & 255) * 0x01010101u;
  if (N < 8) return ((from | 0x80808080u) - y) ^ (~from & 0x80808080u);
  return ((from | 0x80808080u) - (y & 0x7F7F7F7Fu)) ^ ((from ^ ~y) & 0x80808080u);
}

template <class L, int REST, int TRAIL, int QUADS_LOG2, int M, int NB, bool WHOLE>
GLOBAL void BOUNDS(kThreadsOfEnec, 4)
    enec_words(const u8* __restrict__ frame, const Row* __restrict__ rows, const u16* __restrict__ before,
               u8* __restrict__ out, u32 first_block, u32 runs_per_block) {
  constexpr int LEAD = 4;  // as if there were a plane of 4 bits: a lane has groups `lane` and `lane + 32` of a full run
  constexpr u32 IN_GROUP = (1u << QUADS_LOG2) - 1;
  Row row = row_of(rows, blockIdx.x);
  const u32* block = (const u32*)block_of(frame, row);
  const u32* low_field = block + field_nwords(row.n, REST);
  const u32* mask = low_field + field_nwords(row.n, M);
  u32 num_groups = (row.n + (4u << QUADS_LOG2) - 1) >> (2 + QUADS_LOG2), num_high = row.n23;
  const u32* high_field = mask + field_nwords(num_groups, 1);
  u32 lane = threadIdx.x & 31, step = gridDim.y * (kThreadsOfEnec / 32);
  u32 b = row.params & 255, full_runs = num_high >> 8;
  Rest<L, REST, TRAIL, WHOLE, 1> rests;
  Quads<M, WHOLE> low;
  Quads<NB - M, true> high;
  rests.set(block, row.n, lane, LEAD);
  low.set(low_field, row.n, lane);
  high.set(high_field, num_high, 0);
  const u16* before_runs = kept(before + (u64)row.ordinal * runs_per_block);
  out += (u64)(row.ordinal - first_block) * runs_per_block * (256 * L::NBYTES);
  const u32* mask_words = kept(mask);
  u8* words_of_lane = kept(out + lane * (4 * L::NBYTES));
  for (u32 run = blockIdx.y * (kThreadsOfEnec / 32) + (threadIdx.x >> 5); run < num_runs(row.n); run += step) {
    u32 c = WHOLE ? 256 : in_run(row.n, run), stride = stride_of<WHOLE>(c, LEAD), earlier = before_runs[run];
    u32 j = WHOLE ? lane : min(lane, stride - 1), numbers[2];
    u8* words = words_of_lane + (u64)run * (256 * L::NBYTES);
    bool exists[2], set[2];
    u32 number = (run * 64 + lane) >> QUADS_LOG2;  // of the group, if the run is full
#pragma unroll
    for (u32 k = 0; k < 2; k++) exists[k] = WHOLE || (lane < stride && (stride * k + lane) * 4 < c);
    if (WHOLE && number >> 8 < num_groups >> 8) {
      u32 at = (number >> 8) * 8 | (number >> 2 & 7), bit = (number & 3) * 8 | (number >> 5 & 7);
      u32 first = mask_words[at] >> bit, second = QUADS_LOG2 ? mask_words[at + (8 >> QUADS_LOG2)] >> bit : first >> 1;
      set[0] = first & 1;
      set[1] = second & 1;
    } else {
#pragma unroll
      for (u32 k = 0; k < 2; k++)
        set[k] = exists[k] && is_set_in_short_run(mask, num_groups, (run * 64 + stride * k + lane) >> QUADS_LOG2);
    }
    if (WHOLE)
      low.load_both(numbers, run, lane);
    else
      for (u32 k = 0; k < 2; k++)
        numbers[k] = exists[k] ? quad_of_short_run(low_field, row.n, M, run * 64 + stride * k + lane) : 0;
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
      u32 g = stride * k + lane;
      u32 begins = __ballot_sync(0xFFFFFFFFu, set[k] && (g & IN_GROUP) == 0);
      // A group that has its bit set begins in this lane or before it.
      u32 rank = earlier + __popc(begins << (31 - lane)) - 1, quad = (rank << QUADS_LOG2) + (g & IN_GROUP);
      earlier += __popc(begins);
      u32 rest[L::REST_NBYTES][1], y = numbers[k];
      rests.load(rest, run, c, j, k, LEAD);
      if (set[k]) {
        u32 upper = quad >> 6 < full_runs ? high.load(quad) : quad_of_short_run(high_field, num_high, NB - M, quad);
        y |= upper << M;
      }
      u32 x[1] = {subtract_from<NB>(b, y) & ((1u << L::EXPONENT_BITS) - 1) * 0x01010101u};
      if (exists[k]) store_group<L, WHOLE, 1>(words + stride * k * (4 * L::NBYTES), x, rest, c - g * 4);
    }
  }
}
