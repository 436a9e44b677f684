// What tiers of a block encode and list: the numbers of a lane, and where what escapes of them belongs in the list.
//
// A warp takes four runs at a time, a lane eight neighbouring numbers of each row. Those that escape come to the front
// of eight bytes, which are set into a list: where, warps tell each other at each step.
#pragma once
#include "encode.cuh"
#include "tiers.cuh"

constexpr u32 kStepRuns = 4 * kEncodingWarps;  // runs of all warps at once

// What a lane has of a run: two groups of each of four rows.
struct Eights {
  static constexpr int LEAD = 2, ROWS = 4, V = 2;
  static constexpr u32 STRIDE = 16;
};

// Shared memory.
struct TiersRoom {
  EncodeRoom samples;
  u32* selectors;  // for each set of eight bytes: which come first
  u32* found;      // escapes of each warp, in two steps
  u8* digits;      // of the run that is short
  u8* list;        // what escapes
};
constexpr u32 kListSlack = 16;  // what is set into the list may reach so far behind it

FOLDED u32 list_nbytes(u32 n) { return (n + 255) & ~255u; }

FOLDED u32 tiers_room_nbytes(u32 n) {
  return (kCounters + 256 + 2 * kEncodingWarps + 64) * 4 + list_nbytes(n) + kListSlack;
}

DEV TiersRoom tiers_room_for(u8* shared) {
  u32* selectors = (u32*)shared + kCounters;
  u32* found = selectors + 256;
  u8* digits = (u8*)(found + 2 * kEncodingWarps);
  return {{(u32*)shared, nullptr, 0}, selectors, found, digits, digits + 256};
}

// Numbers of a tier -------------------------------------------------------------------------------------------------

// 0x80 in each byte that is `least` or more, of 128 at most.
DEV u32 at_least(u32 octets, u32 least) {
  return (((octets & 0x7f7f7f7fu) + (128 - least) * kOnes) | octets) & 0x80808080u;
}

// From words to steps from an exponent `lo`, a byte each, and to the bytes of their rests.
template <class L>
struct Steps {
  u32 added;

  METHOD explicit Steps(u32 lo) : added(L::EXPONENT_BITS == 8 ? (256 - lo & 255) * 0x01000100u : (128 - lo) * kOnes) {}

  METHOD u32 of_group(const u32* words, u32* rest) const {
    u32 x = split_group<L, 1>(words, rest);
    if constexpr (L::EXPONENT_BITS < 8) {
      return (x + added) ^ 0x80808080u;  // exponents are so few that no byte carries
    } else {
      static_assert(L::NBYTES == 2 && L::MANTISSA_BITS == 7, "bfloat16");
      // Without signs the lower byte of a word takes the carry of the word before it.
      u32 first = words[0] & 0x7fff7fffu, second = words[1] & 0x7fff7fffu;
      return prmt(add_scaled(first, 2, added), add_scaled(second, 2, added), 0x7531);
    }
  }
};

// What a lane has of a run: digits, a byte each, and what the list gets: steps of the exponents that escape, and zeros.
struct Numbers {
  u32 digits[Eights::ROWS][Eights::V], listed[Eights::ROWS][Eights::V];
  u32 escapes[Eights::ROWS];  // of both groups: 0x08 in bytes of the first one, 0x80 in those of the second

  // A row, from its steps. Tiers so far name the first END; `low` has the digits of those that this one names, in its
  // lowest W bits.
  template <int W, u32 END>
  METHOD void set(int k, const u32* steps, const u32* low) {
    u32 escaped[Eights::V];
#pragma unroll
    for (int v = 0; v < Eights::V; v++) {
      escaped[v] = at_least(steps[v], END);
      u32 mask = sign_bytes(escaped[v]);
      digits[k][v] = (low[v] | mask) & ((1u << W) - 1) * kOnes;
      listed[k][v] = steps[v] & mask;
    }
    escapes[k] = escaped[0] >> 4 | escaped[1];
  }

  // How many escape, by rows, a byte each.
  METHOD u32 counts() const {
    u32 first = prmt(__popc(escapes[0]), __popc(escapes[1]), 0x1140);
    u32 second = prmt(__popc(escapes[2]), __popc(escapes[3]), 0x1140);
    return prmt(first, second, 0x5410);
  }

  // Which of a row's eight do, from bit 2 on.
  METHOD u32 set_of_row(int k) const { return __umulhi(escapes[k], 0x81020400u) & 0x3fc; }
};

// Where a lane's escapes belong in the list, of STEPS times the runs of all warps; and how many all warps have. A
// barrier is in it: what was read of the list before may then be written. A warp without numbers has `any` false.
template <int STEPS>
struct Places {
  static_assert(STEPS <= 2, "counts are 16 bits each");
  u32 first[STEPS];   // of the run
  u32 before[STEPS];  // in the run, by rows, a byte each
  u32 found;

  METHOD Places(const Numbers* numbers, bool any, u32 begin, u32* counts) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, earlier = 0, total = 0;
    if (any) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        u32 own = numbers[s].counts(), rows = own;
#pragma unroll
        for (int distance = 1; distance < 8; distance *= 2) rows = add_before<8>(rows, distance);
        before[s] = rows - own;
        rows = __shfl_sync(kAll, rows, lane | 7);
        before[s] += rows * (kOnes << 8);
        earlier += add_bytes(rows, 0) << 16 * s;
      }
      u32 sum = add_before<32>(add_before<32>(earlier, 8), 16);
      total = __shfl_sync(kAll, sum, 31);
      earlier = sum - earlier;
    }
    if (lane == 0) counts[warp] = total;
    __syncthreads();
    u32 count = lane < kEncodingWarps ? counts[lane] : 0;
    earlier += __reduce_add_sync(kAll, lane < warp ? count : 0);
    total = __reduce_add_sync(kAll, count);
    found = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      first[s] = begin + found + (earlier >> 16 * s & 0xffff);
      found += total >> 16 * s & 0xffff;
    }
  }
};

// For each set of eight bytes selectors of prmt: those in the set, then the first that is not.
struct Selectors {
  u32 of[256];

  FOLDED Selectors() : of() {
    for (u32 set = 0; set < 256; set++) {
      for (u32 i = 8; i-- > 0;)
        if (~set >> i & 1) of[set] = i * 0x11111111u;
      for (u32 i = 8; i-- > 0;)
        if (set >> i & 1) of[set] = of[set] << 4 | i;
    }
  }
};
CONSTANT Selectors kSelectors;

// Set what escapes into the list, whose bytes are zero there.
DEV void list_escapes(const Numbers& numbers, shared_at first, u32 before, const u32* selectors) {
  u32 selector[Eights::ROWS], behind[Eights::ROWS];
  shared_at words[Eights::ROWS];
#pragma unroll
  for (int k = 0; k < Eights::ROWS; k++) selector[k] = *(const u32*)((const u8*)selectors + numbers.set_of_row(k));
#pragma unroll
  for (int k = 0; k < Eights::ROWS; k++) {
    u32 low = prmt(numbers.listed[k][0], numbers.listed[k][1], selector[k]);
    u32 high = prmt(numbers.listed[k][0], numbers.listed[k][1], selector[k] >> 16);
    shared_at at = add_byte(before, k, first);
    words[k] = at & ~3u;
    or_shared<0>(words[k], __funnelshift_l(0, low, at * 8));
    or_shared<4>(words[k], __funnelshift_l(low, high, at * 8));
    behind[k] = __funnelshift_l(high, 0, at * 8);
  }
  if ((behind[0] | behind[1] | behind[2] | behind[3]) == 0) return;  // so it is up to 5 of 8
#pragma unroll
  for (int k = 0; k < Eights::ROWS; k++) or_shared<8>(words[k], behind[k]);
}
