// Rows of a tensor by numbers that lie on the device: out[i] = tensor[ids[i]], whatever blocks the rows lie in.
//
// take_rows<Word>
//   Word         u8, u16, u32 or u64: as long as a word of the layout
//   frame        u8: all of a frame, at a multiple of 16 bytes
//   host_words   u8: the words of the blocks that the host has decoded, at a multiple of 16 bytes
//   rows         Row, for each block of the frame by its ordinal, at a multiple of 16 bytes
//   codings      Coding, for each block by its ordinal
//   before, before_later: u16, see open.cuh
//   ids          int64, or int32 if id_nbytes is 4: those below 0 count from the end
//   out          Word: the rows, one behind the other, at a multiple of a word. Where ids[i] is no row's number, all
//                bits of out[i] are set, which is NaN in every float
//   num_rows     u32: of the tensor
//   row_nwords   u32: words of a row; all rows together are at most the words of the frame
//   id_nbytes, block_nwords: u32
//   exponent_bits, rest_bits: u32, of the layout
//   Grid (number of ids, parts, 1), any multiple of 32 threads, no dynamic shared memory, and
//   kRoomOfRows bytes of fixed size.
//
// A CTA takes a row, or each `parts`-th piece of it: a piece lies in one block and within 16 runs. A warp decodes a run
// at a time, also where few of its words are of the row. Of a cascade the later tiers come first, from the last to the
// second: the runs that the tables name are resolved to bytes in shared memory.
#pragma once

#include "copy.cuh"
#include "dev.h"
#include "frame.cuh"
#include "numbers.cuh"

constexpr u32 kRunsOfPiece = 16;
// A tier's numbers that a piece needs begin and end within runs, so each tier may need a run more than the one before.
constexpr u32 kRoomOfRows = (17 + 18 + 19 + 20) * 256;

enum Kind { STORED, BY_HOST, ONE_WORD, CASCADE, ENEC };

// How a block is coded, for each block of the frame by its ordinal.
struct Coding {
  u32 kind_rest;  // Kind | rest bits that are stored << 8 | zeros below them << 16
  u32 numbers;    // cascade: as `widths` of open.cuh; enec: m | nb << 4 | quads_log2 << 8; else 0
};

// What is the same for all rows.
struct Tensor {
  const u8* frame;
  const u8* host_words;
  const Row* rows;
  const Coding* codings;
  const u16* before;
  const u16* before_later;
  u32 block_nwords, exponent_bits, rest_bits;
};

// A range of words of one block.
struct Piece {
  Row row;
  Coding coding;
  const u32* block;
  const u16* before;  // of the block
  u32 first, stop;
};

// Digits of the groups `lane` and `lane + 32` of a run of a tier, their escapes, and how many escape before them in it.
struct Digits {
  u32 digits[2], escapes[2], ranks[2];
};

DEV Digits digits_of_run(const u32* field, u32 count, u32 w, u32 run) {
  u32 c = in_run(count, run), lane = threadIdx.x & 31, counts[2];
  Digits d;
#pragma unroll
  for (u32 k = 0; k < 2; k++) {
    u32 g = lane + 32 * k;
    d.digits[k] = d.escapes[k] = 0;
    if (g * 4 < c) {
      d.digits[k] = group_of_field(field, count, w, run, c, g);
      d.escapes[k] = escapes_of_group(d.digits[k], w, c - g * 4);
    }
    counts[k] = __popc(d.escapes[k]);
  }
  u32 own = counts[0] | counts[1] << 16, sum = own;
#pragma unroll
  for (u32 i = 1; i < 32; i *= 2) {
    u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, i);
    if (lane >= i) sum += other;
  }
  u32 first_half = __shfl_sync(0xFFFFFFFFu, sum, 31) & 0xFFFF;
  d.ranks[0] = (sum - own) & 0xFFFF;
  d.ranks[1] = first_half + ((sum - own) >> 16);
  return d;
}

// The exponents that a tier names: digit d is `first + d`, and `jump` more from `below` on.
struct Interval {
  u32 first, below, jump;
};

DEV Interval interval_of(const CascadeBlock& cascade, u32 tier) {
  u32 begin = cascade.row.params & 255, end = begin;
  Interval interval = {begin, 0, 0};
  for (u32 t = 1; t <= tier; t++) {
    interval.below = t > 1 ? cascade.row.params >> 4 * t & 15 : 0;
    interval.jump = end - begin;
    begin -= interval.below;
    end = begin + interval.jump + (1u << tier_width(cascade, t)) - 1;
    interval.first = begin;
  }
  return interval;
}

// The exponents of a group, a byte each; those that escape are bytes of `following` from `rank` on.
DEV u32 exponents_of(u32 digits, u32 escapes, u32 rank, const Interval& interval, const u8* following) {
  u32 x = 0;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 digit = digits >> 8 * i & 255, own = interval.first + digit + (digit >= interval.below ? interval.jump : 0);
    if (escapes >> 8 * i & 1) own = following[rank++];
    x |= (own & 255) << 8 * i;
  }
  return x;
}

// The rests of a group: fields of up to 24 bits.
DEV void rests_of_group(const u32* field, u32 count, u32 bits, u32 run, u32 c, u32 g, u32* rests) {
  u32 shift = 0;
  rests[0] = rests[1] = rests[2] = rests[3] = 0;
  if (bits & 16) {
    const u32* at = field + run * 128 + g * 2;
    rests[0] = at[0] & 0xFFFF, rests[1] = at[0] >> 16;
    if (g * 4 + 2 < c) rests[2] = at[1] & 0xFFFF, rests[3] = at[1] >> 16;
    field += (count * 16 + 31) >> 5;
    shift = 16;
  }
  // What is left has at most 15 bits: bytes, and fewer than 8 bits above them.
  u32 low = 0, high_shift = shift;
  if (bits & 8) {
    low = group_of_plane(field, run, c, g, 3);
    field += (count * 8 + 31) >> 5;
    high_shift += 8;
  }
  u32 high = group_of_field(field, count, bits & 7, run, c, g);
#pragma unroll
  for (u32 i = 0; i < 4; i++) rests[i] |= (low >> 8 * i & 255) << shift | (high >> 8 * i & 255) << high_shift;
}

// Join the exponents of a group with their rests; the words of the piece among them go to `target`, its begin.
template <class Word>
DEV void store_part(const Tensor& tensor, const Piece& piece, u32 run, u32 g, u32 x, Word* target) {
  u32 first = run * 256 + g * 4;
  if (first + 4 <= piece.first || first >= piece.stop) return;
  u32 rest_bits = piece.coding.kind_rest >> 8 & 255, trail = piece.coding.kind_rest >> 16, rests[4];
  rests_of_group(piece.block, piece.row.n, rest_bits, run, in_run(piece.row.n, run), g, rests);
  u32 mantissa_bits = tensor.rest_bits - 1;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 rest = rests[i] << trail, exponent = x >> 8 * i & ((1u << tensor.exponent_bits) - 1);
    u32 sign = rest >> mantissa_bits, mantissa = rest & ((1u << mantissa_bits) - 1);
    u32 word = (sign << tensor.exponent_bits | exponent) << mantissa_bits | mantissa;
    if (first + i >= piece.first && first + i < piece.stop) target[first + i - piece.first] = (Word)word;
  }
}

template <class Word>
DEV void take_cascade(const Tensor& tensor, const Piece& piece, u8* room, Word* target) {
  CascadeBlock cascade = {piece.block, piece.row, piece.coding.kind_rest >> 8 & 255, piece.coding.numbers};
  u32 warp = threadIdx.x >> 5, warps = blockDim.x >> 5, tiers = 1;
  u32 first_runs[6], stop_runs[6];  // of each tier: what the piece needs of it
  u8* resolved[7];                  // exponents of its numbers, from those of run 0 on
  first_runs[1] = piece.first >> 8, stop_runs[1] = (piece.stop + 255) >> 8;
  for (; tier_width(cascade, tiers + 1) != 8; tiers++) {
    u32 t = tiers, runs = num_runs(tier_count(cascade, t)), first = 0, stop = 0;
    const u16* earlier = t == 1 ? piece.before : tensor.before_later + tier_first_run(cascade, t);
    if (first_runs[t] < stop_runs[t]) {
      first = earlier[first_runs[t]];
      stop = stop_runs[t] < runs ? earlier[stop_runs[t]] : tier_count(cascade, t + 1);
    }
    first_runs[t + 1] = first >> 8, stop_runs[t + 1] = first < stop ? (stop + 255) >> 8 : first >> 8;
    resolved[t + 1] = room - first_runs[t + 1] * 256;
    room += (stop_runs[t + 1] - first_runs[t + 1]) * 256;
  }
  resolved[tiers + 1] = (u8*)tier_field(cascade, tiers + 1);
  for (u32 t = tiers; t >= 1; t--) {
    const u32* field = tier_field(cascade, t);
    u32 count = tier_count(cascade, t);
    const u16* earlier = t == 1 ? piece.before : tensor.before_later + tier_first_run(cascade, t);
    Interval interval = interval_of(cascade, t);
    for (u32 run = first_runs[t] + warp; run < stop_runs[t]; run += warps) {
      Digits d = digits_of_run(field, count, tier_width(cascade, t), run);
#pragma unroll
      for (u32 k = 0; k < 2; k++) {
        u32 g = (threadIdx.x & 31) + 32 * k;
        if (g * 4 >= in_run(count, run)) continue;
        u32 x = exponents_of(d.digits[k], d.escapes[k], earlier[run] + d.ranks[k], interval, resolved[t + 1]);
        if (t == 1)
          store_part(tensor, piece, run, g, x, target);
        else
          *(u32*)(resolved[t] + run * 256 + g * 4) = x;
      }
    }
    __syncthreads();
  }
}

template <class Word>
DEV void take_enec(const Tensor& tensor, const Piece& piece, Word* target) {
  u32 rest_bits = piece.coding.kind_rest >> 8 & 255, m = piece.coding.numbers & 15, nb = piece.coding.numbers >> 4 & 15;
  u32 quads_log2 = piece.coding.numbers >> 8, lane = threadIdx.x & 31, n = piece.row.n, num_high = piece.row.n23;
  u32 num_groups = (n + (4u << quads_log2) - 1) >> (2 + quads_log2);
  const u32* low_field = piece.block + field_nwords(n, rest_bits);
  const u32* mask = low_field + field_nwords(n, m);
  const u32* high_field = mask + field_nwords(num_groups, 1);
  u32 in_group = lane & ((1u << quads_log2) - 1), own = lane - in_group;  // the lane where the group begins
  for (u32 run = (piece.first >> 8) + (threadIdx.x >> 5); run * 256 < piece.stop; run += blockDim.x >> 5) {
    u32 c = in_run(n, run), earlier = piece.before[run];
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
      u32 g = lane + 32 * k, number = (run * 64 + g) >> quads_log2;
      bool set = mask_bits(mask, num_groups, number >> 2) >> 8 * (number & 3) & 1;
      u32 begins = __ballot_sync(0xFFFFFFFFu, set && in_group == 0);
      u32 rank = earlier + __popc(begins & ((1u << own) - 1));
      earlier += __popc(begins);
      if (g * 4 >= c) continue;
      u32 y = group_of_field(low_field, n, m, run, c, g), x = 0;
      u32 quad = (rank << quads_log2) + in_group;
      if (set)
        y |= group_of_field(high_field, num_high, nb - m, quad >> 6, in_run(num_high, quad >> 6), quad & 63) << m;
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32 sign = 1u << (nb - 1), s = ((y >> 8 * i & 255) ^ sign) - sign;
        x |= ((piece.row.params - s) & 255) << 8 * i;
      }
      store_part(tensor, piece, run, g, x, target);
    }
  }
}

template <class Word>
DEV void take_piece(const Tensor& tensor, const Piece& piece, u8* room, Word* target) {
  u32 kind = piece.coding.kind_rest & 255;
  u64 nbytes = (u64)(piece.stop - piece.first) * sizeof(Word);
  if (kind == CASCADE) {
    if constexpr (sizeof(Word) <= 4) take_cascade(tensor, piece, room, target);
  } else if (kind == ENEC) {
    if constexpr (sizeof(Word) <= 4) take_enec(tensor, piece, target);
  } else if (kind == ONE_WORD) {
    fill_bytes((u8*)target, piece.row.params, piece.row.n23, nbytes, sizeof(Word), threadIdx.x, blockDim.x);
  } else {
    const u8* source = kind == STORED ? tensor.frame : tensor.host_words;
    copy_bytes((u8*)target, block_of(source, piece.row) + (u64)piece.first * sizeof(Word), nbytes, threadIdx.x,
               blockDim.x);
  }
}

template <class Word>
GLOBAL void take_rows(const u8* frame, const u8* host_words, const Row* rows, const Coding* codings, const u16* before,
                      const u16* before_later, const void* ids, Word* out, u32 num_rows, u32 row_nwords, u32 id_nbytes,
                      u32 block_nwords, u32 exponent_bits, u32 rest_bits) {
  SHARED_ARRAY(u8, room, kRoomOfRows);
  Tensor tensor = {frame, host_words, rows, codings, before, before_later, block_nwords, exponent_bits, rest_bits};
  long long id = id_nbytes == 8 ? ((const long long*)ids)[blockIdx.x] : ((const int*)ids)[blockIdx.x];
  Word* target = out + (u64)blockIdx.x * row_nwords;
  if (id < 0) id += num_rows;
  if (id < 0 || id >= num_rows) {
    if (blockIdx.y) return;
    fill_bytes((u8*)target, ~0u, ~0u, (u64)row_nwords * sizeof(Word), sizeof(Word), threadIdx.x, blockDim.x);
    return;
  }
  u64 word = (u64)id * row_nwords, end = word + row_nwords;
  for (u32 number = 0; word < end; number++) {
    u32 block = (u32)(word / block_nwords);
    Piece piece;
    piece.first = (u32)(word - (u64)block * block_nwords);
    piece.stop = (piece.first / (kRunsOfPiece * 256) + 1) * (kRunsOfPiece * 256);
    if (piece.stop > block_nwords) piece.stop = block_nwords;
    if (piece.stop - piece.first > end - word) piece.stop = piece.first + (u32)(end - word);
    if (number % gridDim.y == blockIdx.y) {
      piece.row = row_of(rows, block);
      piece.coding = codings[block];
      piece.block = (const u32*)block_of(frame, piece.row);
      piece.before = before + (u64)block * (block_nwords >> 8);
      take_piece(tensor, piece, room, target);
    }
    target += piece.stop - piece.first;
    word += piece.stop - piece.first;
  }
}
