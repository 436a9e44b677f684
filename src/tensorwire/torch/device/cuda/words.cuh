// Words of cascades.
//
// cascade_words<L, BITS, TRAIL, WIDTHS, WHOLE, PLACE = InShared>: any cascade, all tiers in one launch.
//   L            Bf16, F16, F32, F8E4M3 or F8E5M2
//   BITS, TRAIL  how the rest is stored: verbatim L::REST_BITS, 0
//   WIDTHS       four bits for each tier, lowest first, the bytes behind the last one: 0x832112 for 2, 1, 1, 2, 3
//   WHOLE        whether all runs of all blocks of the launch are full
//   frame        u8: all of a frame, at a multiple of 16 bytes
//   rows         Row: the launch data of blocks, at a multiple of 16 bytes
//   before       u16, for each run of tier 1 (ordinal * runs_per_block + run): escapes before it in its block
//   before_later u16, for each later run: escapes before it in its tier
//   out          u8: the words of the blocks from `first_block` on, at a multiple of 16 bytes
//   scratch      u8: null, or with PLACE = InScratch memory at a multiple of 16 bytes: room_nbytes for each CTA
//   first_block, runs_per_block, room_nbytes: u32
//   Grid (blocks of the launch, parts, 1): the runs of a block are shared out among `parts` CTAs, each of which
//   resolves the later tiers anew; 1 if there are blocks enough for all processors. 256 threads. Shared memory:
//   room_nbytes, the most of any block; with InScratch, for blocks that shared memory does not hold, none. A block
//   needs
//     ceil16(4 * C) + 288 + for each tier t from the second to the last coded one: ceil16(n_t) + 288,
//   where C is the sum of the 32-bit words of the streams behind tier 1 (tiers from the second on, bytes).
//
// resident_words<L, STEPS>: tier shape (4), verbatim, full runs, layouts of 16 bits, blocks of at most 65,536 words.
//   frame, rows, out, first_block, runs_per_block as above. Number 7 of the launch data is the block's first escape in
//   places       u16: the places of escapes in their blocks, in order
//   Grid (blocks of the launch, parts, 1), 256 threads, no shared memory. STEPS = 2.
//
// What a launch trusts: launch data that are those of the frame's descriptors, and tables that were made of the same
// frame and checked against them. Whatever the streams hold then, no access is outside of the buffers.
#pragma once
#include "tiers.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Tiers -------------------------------------------------------------------------------------------------------------

// A block of a cascade: where its tiers stand, and what their digits name. Arrays are by tier.
template <u32 WIDTHS>
struct Cascade {
  static constexpr int LAST = last_tier(WIDTHS);
  u32 count[LAST + 2];  // numbers
  u32 start[LAST + 3];  // words from the block's begin, and where the streams end
  u32 later[LAST + 2];  // the first later run
  Names names[LAST + 1];

  template <int BITS, bool WHOLE>
  METHOD void read(const Row& row) {
    const u32 pairs[3] = {row.n23, row.n45, row.n6};
    count[1] = row.n;
    start[1] = WHOLE ? (row.n >> 8) * (8 * BITS) : field_nwords(row.n, BITS);
    start[2] = start[1] + (WHOLE ? (row.n >> 8) * (8 * width_of(WIDTHS, 1)) : field_nwords(row.n, width_of(WIDTHS, 1)));
    later[1 + (LAST > 1)] = row.later;
    u32 begin = row.params & 255, end = begin;  // the tiers so far name [begin, end)
#pragma unroll
    for (int t = 1; t <= LAST + 1; t++) {
      if (t > 1) {
        count[t] = pairs[(t - 2) / 2] >> 16 * (t % 2) & 0xffff;
        start[t + 1] = start[t] + field_nwords(count[t], width_of(WIDTHS, t));
      }
      if (t > LAST) continue;
      if (t > 1) later[t + 1] = later[t] + num_runs(count[t]);
      u32 named = (1u << width_of(WIDTHS, t)) - 1, below = t > 1 ? row.params >> 4 * t & 15 : 0, jump = end - begin;
      begin -= below;
      end = begin + jump + named;
      // Sums of digits that no tier names may be too large: they carry into bytes of such digits only.
      u64 above = 0x0101010101010101ull << 8 * below;
      names[t].first = (begin + (below ? 0 : jump)) * kOnes;
      names[t].low = begin * kOnes + 0x03020100u + jump * (u32)above;
      names[t].high = begin * kOnes + 0x07060504u + jump * (u32)(above >> 32);
    }
  }
};

// Copy the streams behind tier 1, so that all that is read in odd places is near.
template <bool WHOLE>
DEV void copy_to_shared(u8* to, const u32* from, u32 nwords) {
  shared_at at = shared_address(to);
  if (WHOLE)  // behind the bytes a block has 14 and more of its descriptor
#pragma unroll 1
    for (u32 i = threadIdx.x * 4; i < nwords; i += kThreads * 4) copy16(at + i * 4, from + i);
  else
#pragma unroll 1
    for (u32 i = threadIdx.x; i < nwords; i += kThreads) copy4(at + i * 4, from + i);
  copies_commit();
  copies_wait<0>();
}

DEV void copy_to_scratch(u8* to, const u32* from, u32 nwords) {
  for (u32 i = threadIdx.x; i < nwords; i += kThreads) ((u32*)to)[i] = from[i];
}

// Resolve tiers from T down to the second. `room` is the copy; `resolved` is where the second one's exponents go.
template <u32 WIDTHS, int T, class PLACE>
DEV void resolve_tiers(const Cascade<WIDTHS>& tiers, const u16* before_later, u8* room, u8* resolved) {
  if constexpr (T > 1) {
    u8 *target = resolved, *following = room + (tiers.start[T + 1] - tiers.start[2]) * 4;
#pragma unroll
    for (int t = 2; t < T; t++) target += ceil16(tiers.count[t]) + kRoom;
    if (T < Cascade<WIDTHS>::LAST) following = target + ceil16(tiers.count[T]) + kRoom;
    resolve<width_of(WIDTHS, T), PLACE>((const u32*)room + (tiers.start[T] - tiers.start[2]), tiers.count[T],
                                        tiers.names[T], before_later + tiers.later[T], PLACE::at(following), target,
                                        threadIdx.x >> 5, kWarps);
    __syncthreads();
    resolve_tiers<WIDTHS, T - 1, PLACE>(tiers, before_later, room, resolved);
  }
}

// Words -------------------------------------------------------------------------------------------------------------

// The words of runs `first`, `first + step`, ..., RUNS of them in a warp at a time. `words` is those of the block.
template <class L, int BITS, int TRAIL, u32 WIDTHS, bool WHOLE, class PLACE>
DEV void decode_runs(const u32* block, const Cascade<WIDTHS>& tiers, const u16* before, typename PLACE::At following,
                     u8* words) {
  constexpr int W = width_of(WIDTHS, 1), V = WHOLE && L::NBYTES < 4 ? 2 : 1;
  typedef Digits<W, V> Tier;
  constexpr int LEAD = Tier::LEAD, ROWS = Tier::ROWS;
  u32 lane = threadIdx.x & 31, n = tiers.count[1], runs = num_runs(n), j = lane % Tier::LANES * V;
  u32 part = blockIdx.y * kWarps + (threadIdx.x >> 5), parts = gridDim.y * kWarps;
  const u32* field = block + tiers.start[1];
  Plane plane, upper_plane;
  plane.set<WHOLE>(field, j, LEAD, LEAD);
  upper_plane.set<WHOLE>(field + (WHOLE ? (n >> 8) * 16 : (n * 2 + 31) >> 5), j, 1, LEAD);
  Rest<L, BITS, TRAIL, WHOLE, V> rests;
  rests.set(block, n, j, LEAD);
  words = kept(words + j * (4 * L::NBYTES));
#pragma unroll 1
  for (u32 first = part * Tier::RUNS; first < runs; first += parts * Tier::RUNS) {
    u32 run = min(first + lane / Tier::LANES, runs - 1);  // the last one repeated: its words are stored more than once
    u32 c = WHOLE ? 256 : in_run(n, run), stride = stride_of<WHOLE>(c, LEAD), at = WHOLE ? j : min(j, stride - 1);
    bool exists = at == j;
    u32 own[V], upper[ROWS][V], rest[ROWS][L::REST_NBYTES][V];
    load_words<V>(own, plane.lane + (WHOLE ? 0 : at) + (u64)run * (8 * LEAD));
    typename PLACE::At behind = following + before[run];
    u8* to = words + (u64)run * (256 * L::NBYTES);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      if (W == 3) upper_plane.load<WHOLE, V>(upper[k], run, c, at, k, 1, LEAD);
      rests.load(rest[k], run, c, at, k, LEAD);
    }
    if (!exists) {
      own[0] = 0;
#pragma unroll
      for (int k = 0; k < ROWS; k++) upper[k][0] = 0;
    }
    Tier digits;
    digits.read(own, upper);
    digits.add_up();
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      u32 x[V], number = (k * stride + j) * 4;
#pragma unroll
      for (int v = 0; v < V; v++) x[v] = digits.template exponents<PLACE>(k, v, tiers.names[1], behind);
      if (WHOLE || (exists && number < c)) store_group<L, WHOLE, V>(to, x, rest[k], WHOLE ? 4 : c - number);
      to += stride * (4 * L::NBYTES);
    }
  }
}

DEV u8* words_of_block(u8* out, const Row& row, u32 first_block, u32 runs_per_block, int word_nbytes) {
  return out + (u64)(row.ordinal - first_block) * runs_per_block * (256 * word_nbytes);
}

template <class L, int BITS, int TRAIL, u32 WIDTHS, bool WHOLE, class PLACE = InShared>
GLOBAL void BOUNDS(kThreads, 4)
    cascade_words(const u8* __restrict__ frame, const Row* __restrict__ rows, const u16* __restrict__ before,
                  const u16* __restrict__ before_later, u8* out, u8* scratch, u32 first_block, u32 runs_per_block,
                  u32 room_nbytes) {
  SHARED(u8, shared);
  constexpr int LAST = last_tier(WIDTHS);
  Row row = row_of(rows, blockIdx.x);
  const u32* block = (const u32*)block_of(frame, row);
  Cascade<WIDTHS> tiers;
  tiers.template read<BITS, WHOLE>(row);
  u32 nwords = tiers.start[LAST + 2] - tiers.start[2];
  u8* room = shared;
  if constexpr (PLACE::SHARED_MEMORY) {
    copy_to_shared<WHOLE>(room, block + tiers.start[2], nwords);
  } else {
    room = scratch + (u64)(blockIdx.y * gridDim.x + blockIdx.x) * room_nbytes;
    copy_to_scratch(room, block + tiers.start[2], nwords);
  }
  __syncthreads();
  u8* resolved = room + ceil16(nwords * 4) + kRoom;
  resolve_tiers<WIDTHS, LAST, PLACE>(tiers, before_later, room, resolved);
  const u16* own_before = before + (u64)row.ordinal * runs_per_block;
  decode_runs<L, BITS, TRAIL, WIDTHS, WHOLE, PLACE>(block, tiers, own_before, PLACE::at(LAST > 1 ? resolved : room),
                                                    words_of_block(out, row, first_block, runs_per_block, L::NBYTES));
}

// Every so many runs from `run` on, before `end`, as if no digit of a tier of W bits escaped: STEPS of them at a time,
// until fewer are left. The next one. CARRY: the sum of an escape carries into the next byte.
template <class L, int W, int STEPS, bool CARRY>
DEV u32 decode_unescaped(const u32* block, u32 n, u32 lo, u32 run, u32 end, u8* words) {
  typedef Digits<W, 2> Tier;
  constexpr int LEAD = Tier::LEAD, ROWS = Tier::ROWS, APART = kThreads / Tier::LANES;
  u32 j = threadIdx.x % Tier::LANES * 2;
  const u32* field = block + (n >> 8) * (8 * L::REST_BITS);
  Plane plane, upper_plane;
  plane.set<true>(field, j, LEAD, LEAD);
  if (W == 3) upper_plane.set<true>(field + (n >> 8) * 16, j, 1, LEAD);
  Rest<L, L::REST_BITS, 0, true, 2> rests;
  rests.set(block, n, j, LEAD);
  words = kept(words + j * (4 * L::NBYTES));
#pragma unroll 1
  for (; run + APART * (STEPS - 1) < end; run += APART * STEPS) {
    u32 own[STEPS][2], upper[STEPS][ROWS][2], rest[STEPS][ROWS][L::REST_NBYTES][2];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      load_words<2>(own[i], plane.lane + (u64)(run + APART * i) * (8 * LEAD));
#pragma unroll
      for (int k = 0; k < ROWS; k++) {
        if (W == 3) upper_plane.load<true, 2>(upper[i][k], run + APART * i, 256, j, k, 1, LEAD);
        rests.load(rest[i][k], run + APART * i, 256, j, k, LEAD);
      }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      u8* to = words + (u64)(run + APART * i) * (256 * L::NBYTES);
#pragma unroll
      for (int k = 0; k < ROWS; k++) {
        u32 x[2];
#pragma unroll
        for (int v = 0; v < 2; v++) {
          u32 digits = own[i][v] >> LEAD * k & ((1u << LEAD) - 1) * kOnes;
          if (W == 3) digits |= upper[i][k][v] << 2;
          if (CARRY) digits &= ~(Digits<W, 1>::escaped(digits) * 15);
          x[v] = digits + lo * kOnes;
        }
        store_group<L, true, 2>(to + k * (32 * LEAD * L::NBYTES), x, rest[i][k], 4);
      }
    }
  }
  return run;
}

// The same of all runs from `begin` to `end`.
template <class L, int W, int STEPS>
DEV void decode_whole(const u32* block, u32 n, u32 lo, u32 begin, u32 end, u8* words) {
  u32 run = begin + threadIdx.x / Digits<W, 2>::LANES;
  if (W == 4 && lo > 240) run = decode_unescaped<L, W, 1, true>(block, n, lo, run, end, words);
  run = decode_unescaped<L, W, STEPS, false>(block, n, lo, run, end, words);
  if (STEPS > 1) decode_unescaped<L, W, 1, false>(block, n, lo, run, end, words);
}

template <class L, int STEPS>
GLOBAL void BOUNDS(kThreads, 4)
    resident_words(const u8* __restrict__ frame, const Row* __restrict__ rows, const u16* __restrict__ places, u8* out,
                   u32 first_block, u32 runs_per_block) {
  Row row = row_of(rows, blockIdx.x);
  const u32* block = (const u32*)block_of(frame, row);
  u8* words = words_of_block(out, row, first_block, runs_per_block, L::NBYTES);
  u32 runs = row.n >> 8, share = (runs + gridDim.y - 1) / gridDim.y;
  u32 begin = min(blockIdx.y * share, runs), end = min(begin + share, runs), lo = row.params & 255;
  decode_whole<L, 4, STEPS>(block, row.n, lo, begin, end, words);
  __syncthreads();
  constexpr u32 MASK = ((1u << L::EXPONENT_BITS) - 1) << L::MANTISSA_BITS;
  const u8* octets = (const u8*)(block + runs * (8 * (L::REST_BITS + 4)));
  for (u32 i = threadIdx.x; i < (row.n23 & 0xffff); i += kThreads) {
    u32 place = places[row.later + i];
    if (place < begin * 256 || place >= end * 256) continue;
    u16* word = (u16*)words + place;
    *word = (u16)bits_of(MASK, (u32)octets[i] << L::MANTISSA_BITS, *word);
  }
}
