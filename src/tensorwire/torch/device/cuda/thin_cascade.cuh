// Products with BF16 or F16 weights in cascades of any tier shape, as thin.cuh has them for tier shape (4): the same
// parts of an mma, the same order of a sum, so the same bits.
//
// A block of threads takes a group: blocks of the frame that have 16 rows together at most, or one that has more. First
// teams of warps resolve their tiers from the last one to the second, whose exponents stay in shared memory. Then each
// warp takes parts of a tile of 16 rows, a run of each row at a time. Lane (g, t) has, of rows g and g + 8, the words
// t, t + 4, ... of the leading plane of tier 1: their digits are those of columns 16s + 4t to 16s + 4t + 3, for all s.
// A rest of F16 has 11 bits, in planes of 8, 2 and 1. A lane has the words of the last two alike, in registers; the
// first one is copied to shared memory, as the only one of BF16 is.
#pragma once

#include "sums.cuh"
#include "tiers.cuh"

// A row of a weight.
struct CascadeRow {
  u64 rest;    // address of the row's words in the leading plane of the rest, a multiple of 16
  u64 before;  // address of u16: how many escape in the block before each of the row's runs
  u64 tiers;   // address of the later tiers of its block
  u32 n;       // words of its block
  u32 first;   // its first one in the block
};

// A tier from the second on. Places are bytes in the memory of the team that resolves it.
struct LaterTier {
  u32 field, count, following;
  u32 target;  // where its exponents go; the second tier's go to the block's own place
  u32 width;
  u32 later;      // its first run among the later runs of the block
  u32 low, high;  // names of digits 0 to 3, 4 to 7; `low` of 0 four times if there is one, or 15
};

struct LaterTiers {
  u64 streams;  // address of what the block has behind tier 1, a multiple of 16; it is copied to the team's memory, or
                // to the block's own place if there is no later tier
  u64 before;   // address of u16: for each later run, how many escape before it in its tier
  u32 nwords, count;  // 32-bit words of the streams; later tiers
  u32 low, high;      // the names of tier 1, alike
  LaterTier tier[4];
};

struct Group {
  u64 tiers;  // address of the first block's, which the others' follow
  u32 first_row;
  u16 rows, blocks;
};

#define QUARTER_NBYTES 1024  // the leading plane of the rest of a quarter of a run of 16 rows
#define QUARTERS 2           // for each warp: one is multiplied while the other one is filled

// Resolve the tiers of a group's blocks. A team has its own `scratch_nbytes`, a block its own `slot_nbytes`.
DEV void resolve_group(const Group& group, u8* slots, u32 slot_nbytes, u8* scratch, u32 scratch_nbytes, u32 teams,
                       u32 most_tiers) {
  const u32 warps = (blockDim.x >> 5) / teams, team = (threadIdx.x >> 5) / warps, warp = (threadIdx.x >> 5) % warps;
  u8* own = scratch + team * scratch_nbytes;
#pragma unroll 1
  for (u32 first = 0; first < group.blocks; first += teams) {
    const u32 block = first + team;
    const bool has = team < teams && block < group.blocks;
    const LaterTiers* tiers = (const LaterTiers*)group.tiers + (has ? block : 0);
    const u32 later = has ? tiers->count : 0, nwords = has ? tiers->nwords : 0;
    u8* slot = slots + block * slot_nbytes;
    const shared_at to = shared_address(later ? own : slot);
    const u32* streams = (const u32*)tiers->streams;
    for (u32 i = warp * 128 + (threadIdx.x & 31) * 4; i < nwords; i += warps * 128) copy16(to + i * 4, streams + i);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (u32 t = most_tiers; t-- > 0;) {
      if (t < later) {
        const uint4* at = (const uint4*)(tiers->tier + t);
        const uint4 places = __ldg(at), facts = __ldg(at + 1);
        const u32* field = (const u32*)(own + places.x);
        const Names names = {facts.z, facts.z, facts.w};
        const u16* before = (const u16*)tiers->before + facts.y;
        const shared_at following = shared_address(own) + places.z;
        u8* target = t ? own + places.w : slot;
        if (facts.x == 1) resolve<1, InShared>(field, places.y, names, before, following, target, warp, warps);
        if (facts.x == 2) resolve<2, InShared>(field, places.y, names, before, following, target, warp, warps);
        if (facts.x == 3) resolve<3, InShared>(field, places.y, names, before, following, target, warp, warps);
      }
      __syncthreads();
    }
  }
}

// What the rests of a run have behind their leading plane, as a lane reads it: nothing in BF16.
template <class L>
struct MoreRest {
  METHOD void load(const u32*&, const u32*&) {}
  METHOD void next_half() {}

  // Words of step j of a quarter of the half of a run, from their exponents and the leading plane of their rests.
  METHOD void join(u32 exponents, u32 rest, int, int, u32& first, u32& second) const {
    join_words(exponents, rest, first, second);
  }
};

template <>
struct MoreRest<F16> {
  u32 pairs[4], signs[2];  // the mantissa's highest 2 bits; signs. The lower nibbles of their bytes are those of a half

  METHOD void load(const u32*& pairs_at, const u32*& signs_at) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = __ldg(pairs_at + i * 4);
    signs[0] = __ldg(signs_at), signs[1] = __ldg(signs_at + 4);
    pairs_at += 16, signs_at += 8;
  }

  METHOD void next_half() {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] >>= 4;
    signs[0] >>= 4, signs[1] >>= 4;
  }

  METHOD void join(u32 exponents, u32 rest, int quarter, int j, u32& first, u32& second) const {
    u32 high = bits_of(0x03030303u, pairs[j] >> 2 * quarter, exponents << 2);
    high = bits_of(0x7f7f7f7fu, high, signs[j % 2] << (7 - 2 * quarter - j / 2));
    first = prmt(rest, high, 0x5140), second = prmt(rest, high, 0x7362);
  }
};

// A row as a lane reads it: the lane's words of a run, and what the row's digits name.
template <class L, int W>
struct RowOfDigits {
  static constexpr int LEAD = leading(W), V = 2 * LEAD;
  const u8* rest;
  const u32 *words, *upper, *pairs, *signs;
  const u16* before;
  shared_at following;
  Names names;

  METHOD void read(const CascadeRow* row, const Group& group, shared_at slots, u32 slot_nbytes, u32 run, u32 t) {
    const LaterTiers* tiers = (const LaterTiers*)row->tiers;
    rest = (const u8*)row->rest + run * 256 + t * 16;
    words = in_plane(*row, L::REST_BITS, LEAD, run) + t;
    upper = in_plane(*row, L::REST_BITS + LEAD, 1, run) + t;
    pairs = in_plane(*row, 8, 2, run) + t, signs = in_plane(*row, 10, 1, run) + t;
    before = (const u16*)row->before + run;
    following = slots + (u32)((row->tiers - group.tiers) / sizeof(LaterTiers)) * slot_nbytes;
    names = {tiers->low, tiers->low, tiers->high};
  }

  // A run of the row in a plane of p bits of the block, before which there are `below` bits of each word.
  static METHOD const u32* in_plane(const CascadeRow& row, u32 below, u32 p, u32 run) {
    return (const u32*)(row.rest - row.first + (row.n >> 3) * below + (row.first >> 3) * p) + run * (8 * p);
  }

  // The next run's digits, the rests behind the leading plane, and where its exponents that escape begin.
  METHOD void load_next(u32* own, u32* other, MoreRest<L>& more, shared_at& behind) {
#pragma unroll
    for (int v = 0; v < V; v++) own[v] = __ldg(words + v * 4);
    if (W == 3) other[0] = __ldg(upper), other[1] = __ldg(upper + 4);
    more.load(pairs, signs);
    behind = following + __ldg(before);
    words += 8 * LEAD, upper += 8, before++;
  }

  METHOD void copy_next(shared_at to) {
    copy16(to, rest);
    rest += 64;
  }

  static METHOD void rank(Digits<W, V>& digits, const u32* own, const u32* other) {
    u32 above[8 / LEAD][V];
    if (W == 3) {
#pragma unroll
      for (int k = 0; k < 8 / LEAD; k++)
#pragma unroll
        for (int v = 0; v < V; v++) above[k][v] = other[v % 2] >> (k * LEAD + v / 2) & kOnes;
    }
    digits.read(own, above);
    digits.add_up_apart();
  }
};

// Of so many blocks on a processor at once, threads keep what they have in registers, or nearly.
FOLDED int blocks_at_once(u32 eights, int w, int rest_bits) {
  if (rest_bits > 8) return eights <= 2 && w <= 2 ? 2 : 1;
  return eights == 8 || (eights > 1 && w > 2) ? 1 : 2;
}

// Grid: any number of blocks, each of which takes every so many groups. Threads: 32 for each of the warps that share
// the parts of `together` tiles, 256 at most, in `teams` teams. Shared memory: `slots_nbytes` for the blocks of a
// group, `slot_nbytes` for each; then the teams' memory. In its place come for each warp QUARTERS * QUARTER_NBYTES,
// then for each part of each tile NB * 128 floats. L is the layout of
// weights, inputs, and results that are not wide, W the width of tier 1 in all blocks, `most_tiers` how many later
// tiers any has. The others are as in thin.cuh.
template <class L, int W, u32 NB, bool TWO>
GLOBAL void BOUNDS(256, blocks_at_once(NB, W, L::REST_BITS))
    thin_cascade(const CascadeRow* __restrict__ rows, const u8* __restrict__ x, const u8* __restrict__ bias,
                 u8* __restrict__ y, u32 num_rows, u32 columns, u32 part_runs, u32 together, u32 x_pitch, u32 count,
                 u32 wide, u32 rounded, const Group* __restrict__ groups, u32 num_groups, u32 slots_nbytes,
                 u32 slot_nbytes, u32 scratch_nbytes, u32 teams, u32 most_tiers) {
  SHARED(u8, shared);
  typedef RowOfDigits<L, W> OfDigits;
  constexpr int V = OfDigits::V;
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  const u32 runs = columns >> 8, parts = (runs + part_runs - 1) / part_runs;
  const shared_at slots = shared_address(shared), quarters = slots + slots_nbytes + warp * (QUARTERS * QUARTER_NBYTES);
  float* sums = (float*)(shared + slots_nbytes + warps * (QUARTERS * QUARTER_NBYTES));
  // As in thin.cuh: neither the 8 lanes that write at once nor the 32 that read a word of each row meet in a bank.
  const shared_at to = quarters + t * 128 + (g * 16 ^ t * 32);
  u32 x_at[NB];
  find_inputs(x_at, count, x_pitch);
  constexpr u32 AT_ONCE = NB > 2 ? 1 : NB == 2 || W == 4 ? 2 : 4;  // steps whose inputs are loaded together
#pragma unroll 1
  for (u32 number = blockIdx.x; number < num_groups; number += gridDim.x) {
    const Group group = groups[number];
    resolve_group(group, shared, slot_nbytes, shared + slots_nbytes, scratch_nbytes, teams, most_tiers);
    const u32 end = group.first_row + group.rows, tiles = (group.rows + 15) >> 4;
#pragma unroll 1
    for (u32 first = 0; first < tiles; first += together) {
      const u32 units = (tiles - first < together ? tiles - first : together) * parts;
#pragma unroll 1
      for (u32 unit = warp; unit < units; unit += warps) {
        const u32 tile = unit / parts, part = unit - tile * parts;
        const u32 r0 = group.first_row + (first + tile) * 16 + g, r1 = r0 + 8, last = end - 1;
        u32 run = part * part_runs;
        const u32 stop = runs - run < part_runs ? runs : run + part_runs;
        OfDigits row0, row1;
        row0.read(rows + (r0 < last ? r0 : last), group, slots, slot_nbytes, run, t);
        row1.read(rows + (r1 < last ? r1 : last), group, slots, slot_nbytes, run, t);
        row0.copy_next(to), row1.copy_next(to + 512);
        copies_commit();
        const u8* inputs = x + run * 512;
        float c[TWO ? 2 : 1][NB][4] = {};
        u32 own0[V], own1[V], other0[2], other1[2];
        MoreRest<L> next0, next1;
        shared_at behind0, behind1;
        row0.load_next(own0, other0, next0, behind0), row1.load_next(own1, other1, next1, behind1);
#pragma unroll 1
        for (; run < stop; run++) {
          Digits<W, V> digits0, digits1;
          OfDigits::rank(digits0, own0, other0), OfDigits::rank(digits1, own1, other1);
          const shared_at following0 = behind0, following1 = behind1;  // of this run
          MoreRest<L> more0 = next0, more1 = next1;
          const bool more = run + 1 < stop;
#pragma unroll 1
          for (u32 half = 0; half < 2; half++) {
            if (half) {
              digits0.next_half(), digits1.next_half();
              more0.next_half(), more1.next_half();
              if (more) row0.load_next(own0, other0, next0, behind0), row1.load_next(own1, other1, next1, behind1);
            }
#pragma unroll
            for (u32 q = 0; q < 2; q++) {
              copies_wait<0>();
              __syncwarp();  // what all lanes copied is there, and all have done with what is copied over now
              if (q == 0 || half == 0 || more) {
                const shared_at target = to + (q ^ 1) * QUARTER_NBYTES;
                row0.copy_next(target), row1.copy_next(target + 512);
              }
              copies_commit();
              u32 S0[4], S1[4];
#pragma unroll
              for (u32 j = 0; j < 4; j++) {
                const shared_at at = quarters + q * QUARTER_NBYTES + j * 128 + (lane * 4 ^ j * 32);
                S0[j] = lds32(at), S1[j] = lds32(at + 512);
              }
              uint2 X[AT_ONCE][NB];
#pragma unroll
              for (u32 j = 0; j < 4; j++) {
                if (j % AT_ONCE == 0) load_inputs(X, inputs + j * 32, x_at);
                const int k = (q * 4 + j) / V, v = (q * 4 + j) % V;
                u32 a[4];
                const u32 x0 = digits0.template exponents<InShared>(k, v, row0.names, following0);
                const u32 x1 = digits1.template exponents<InShared>(k, v, row1.names, following1);
                more0.join(x0, S0[j], q, j, a[0], a[2]), more1.join(x1, S1[j], q, j, a[1], a[3]);
#pragma unroll
                for (u32 b = 0; b < NB; b++) {
                  u32 of_inputs[2] = {X[j % AT_ONCE][b].x, X[j % AT_ONCE][b].y};
                  mma<L>(c[TWO ? j >> 1 : 0][b], a, of_inputs);
                }
              }
              inputs += 128;
            }
          }
        }
        store_sums<NB, TWO>(sums + unit * (NB * 128), c);
      }
      __syncthreads();
      const Result result = {bias, y, num_rows, count, wide, rounded};
      add_parts<L, NB>(sums, parts, group.first_row + first * 16, end, units / parts, result);
      __syncthreads();
    }
  }
}
