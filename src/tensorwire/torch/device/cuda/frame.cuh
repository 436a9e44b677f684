// Blocks of a frame as all kernels see them: launch data, planes and fields, layouts, words. docs/format.md says what
// the bytes mean.
//
// A group is four consecutive numbers of a run; a register has its numbers, one a byte. A lane has V neighbouring
// 32-bit words of the leading plane of a field, the one of most bits (`lead`), from word j of a run on. From a word
// come 8 / lead groups, its rows k. The other planes of the field, and those of the rest, are read for the same groups.
// WHOLE says that all runs are full, so that a plane begins at a multiple of 32 bytes, and shifts are constants. Else V
// is 1, and j and run are at most the last ones that exist, so that nothing is read behind a stream.
#pragma once
#include "dev.h"

constexpr u32 kOnes = 0x01010101u;

// The launch data of a block.
struct Row {
  u32 place;    // of its bytes in the frame, in units of 32
  u32 ordinal;  // which block of the frame it is
  u32 n;        // of its words
  u32 params;   // lo | a2 << 8 | a3 << 12 | ...; enec: b
  u32 n23;      // n2 | n3 << 16; enec: the number of high parts
  u32 n45, n6;
  u32 later;  // its first run among all later runs; tier shape (4): its first escape in the list
};

DEV Row row_of(const Row* rows, u32 number) {
  const uint4* at = (const uint4*)(rows + number);
  uint4 a = at[0], b = at[1];
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

DEV const u8* block_of(const u8* frame, const Row& row) { return frame + (u64)row.place * 32; }

// Runs and planes ---------------------------------------------------------------------------------------------------

DEV u32 num_runs(u32 count) { return (count + 255) >> 8; }

DEV u32 in_run(u32 count, u32 run) { return min(count - run * 256, 256u); }

// 32-bit words of a field of `count` numbers of w bits, w up to 31.
DEV u32 field_nwords(u32 count, int w) {
  u32 nwords = 0;
#pragma unroll
  for (int p = 16; p; p >>= 1)
    if (w & p) nwords += (count * p + 31) >> 5;
  return nwords;
}

// Bits of the leading plane of a field of w bits, 1 to 8.
FOLDED int leading(int w) { return w >= 4 ? 4 : w >= 2 ? 2 : 1; }

// Words of a run of c numbers in a plane of p bits, 1 to 8: so many groups lie between two rows.
template <bool WHOLE>
DEV u32 stride_of(u32 c, int p) {
  return WHOLE ? 8 * p : (c * p + 31) >> 5;
}

// The number of a group in its run, as far as it exists.
template <bool WHOLE>
DEV u32 group_of(u32 c, u32 j, int k, int lead) {
  u32 group = stride_of<WHOLE>(c, lead) * k + j;
  return WHOLE ? group : min(group, (c - 1) >> 2);
}

template <int V>
DEV void load_words(u32* words, const u32* at) {
  if (V == 4) {
    uint4 four = *(const uint4*)at;
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else if (V == 2) {
    uint2 two = *(const uint2*)at;
    words[0] = two.x, words[1] = two.y;
  } else {
    words[0] = *at;
  }
}

// A plane of p bits, 1 to 16, as a lane reads it: `lane` is where its first group stands in run 0, if all are full.
struct Plane {
  const u32 *begin, *lane;

  template <bool WHOLE>
  METHOD void set(const u32* plane, u32 j, int p, int lead) {
    begin = plane;
    lane = WHOLE ? kept(plane + (p == 16 ? 2 * j : p >= lead ? j : j % (8 * p))) : plane;
  }

  // Row k; p up to 8. c: see in_run.
  template <bool WHOLE, int V>
  METHOD void load(u32* octets, u32 run, u32 c, u32 j, int k, int p, int lead) const {
    const u32* at = lane + (u64)run * (8 * p);
    u32 shift = p * k;
    if (WHOLE && p >= lead) {
      at += lead * k % p * 8;
      shift = lead * k / p * p;
    } else if (WHOLE) {
      shift = lead * k + j / (8 * p) * p;
    } else if (p == lead) {
      at += j;
    } else {
      u32 group = group_of<WHOLE>(c, j, k, lead), stride = stride_of<WHOLE>(c, p), row = group / stride;
      at += group - row * stride;
      shift = row * p;
    }
    load_words<V>(octets, at);
#pragma unroll
    for (int v = 0; v < V; v++)
      if (p < 8) octets[v] = octets[v] >> shift & ((1u << p) - 1) * 0x01010101u;
  }

  // Row k of a plane of 16 bits: the lower bytes of its numbers, and the upper ones.
  template <bool WHOLE, int V>
  METHOD void load16(u32* lower, u32* upper, u32 run, u32 c, u32 j, int k, int lead) const {
    u32 words[2 * V];
    const u32* at = lane + (u64)run * 128 + (WHOLE ? 16 * lead * k : 2 * group_of<WHOLE>(c, j, k, lead));
    if (WHOLE)
      load_words<2 * V>(words, at);
    else
      words[0] = at[0], words[1] = at[1];  // a block has more bytes behind its last plane of 16 bits
#pragma unroll
    for (int v = 0; v < V; v++) {
      lower[v] = prmt(words[2 * v], words[2 * v + 1], 0x6420);
      upper[v] = prmt(words[2 * v], words[2 * v + 1], 0x7531);
    }
  }
};

// Words -------------------------------------------------------------------------------------------------------------

template <int EXPONENT, int MANTISSA>
struct Layout {
  static constexpr int EXPONENT_BITS = EXPONENT, MANTISSA_BITS = MANTISSA, REST_BITS = MANTISSA + 1;
  static constexpr int NBYTES = (EXPONENT + MANTISSA + 1) / 8, REST_NBYTES = (REST_BITS + 7) / 8;
};
typedef Layout<8, 7> Bf16;
typedef Layout<5, 10> F16;
typedef Layout<8, 23> F32;
typedef Layout<4, 3> F8E4M3;
typedef Layout<5, 2> F8E5M2;

// Bytes of p bits, each shifted by itself, to the left; to the right if `shift` is negative.
DEV u32 moved(u32 octets, int shift, int p) {
  if (shift < 0) return octets >> -shift & (0xffu >> -shift) * 0x01010101u;
  return p + shift <= 8 ? octets << shift : octets << shift & (0xffu << shift & 0xff) * 0x01010101u;
}

// The rests of a block, of which BITS bits are stored, TRAIL zeros below them.
template <class L, int BITS, int TRAIL, bool WHOLE, int V>
struct Rest {
  Plane planes[5];  // of 16, 8, 4, 2 and 1 bits

  METHOD void set(const u32* plane, u32 n, u32 j, int lead) {
#pragma unroll
    for (int i = 0; i < 5; i++) {
      int p = 16 >> i;
      if (!(BITS & p)) continue;
      planes[i].template set<WHOLE>(plane, j, p, lead);
      plane += WHOLE ? (n >> 8) * (8 * p) : (n * p + 31) >> 5;
    }
  }

  // Byte b of the rests of row k, for each b.
  METHOD void load(u32 (*rest)[V], u32 run, u32 c, u32 j, int k, int lead) const {
#pragma unroll
    for (int b = 0; b < L::REST_NBYTES; b++)
#pragma unroll
      for (int v = 0; v < V; v++) rest[b][v] = 0;
#pragma unroll
    for (int i = 0; i < 5; i++) {
      int p = 16 >> i, below = TRAIL + (BITS & -2 * p);
      if (!(BITS & p)) continue;
      u32 octets[2][V];
      if (p == 16)
        planes[i].template load16<WHOLE, V>(octets[0], octets[1], run, c, j, k, lead);
      else
        planes[i].template load<WHOLE, V>(octets[0], run, c, j, k, p, lead);
#pragma unroll
      for (int half = 0; half < (p == 16 ? 2 : 1); half++)
#pragma unroll
        for (int b = 0; b < L::REST_NBYTES; b++) {
          int shift = below + 8 * half - 8 * b;
          if (shift <= -8 || shift >= 8) continue;
#pragma unroll
          for (int v = 0; v < V; v++) rest[b][v] |= moved(octets[half][v], shift, min(p, 8));
        }
    }
  }
};

// Byte b of the words of a group, from their exponents and the bytes of their rests, V registers apart.
template <class L, int V>
DEV u32 word_octets(u32 x, const u32* rest, int b) {
  int below = L::MANTISSA_BITS - 8 * b;  // bits of the mantissa in this byte and in higher ones
  u32 octets = x >> 1;                   // the exponent's highest bit is its neighbour's, and gives way to the sign
  if (below >= 8) return rest[b * V];
  if (below > 0) octets = bits_of(((1u << below) - 1) * 0x01010101u, rest[b * V], x << below);
  if (b < L::NBYTES - 1) return octets;
  u32 sign = rest[L::MANTISSA_BITS / 8 * V] << (7 - L::MANTISSA_BITS % 8);
  return bits_of(0x7f7f7f7fu, octets, sign);
}

// Words of a group, in their order.
template <class L, int V>
DEV void join(u32* words, u32 x, const u32* rest) {
  u32 lower = word_octets<L, V>(x, rest, 0);
  words[0] = lower;
  if (L::NBYTES == 1) return;
  u32 second = word_octets<L, V>(x, rest, 1);
  words[0] = prmt(lower, second, 0x5140);
  words[1] = prmt(lower, second, 0x7362);
  if (L::NBYTES == 2) return;
  u32 third = word_octets<L, V>(x, rest, 2), fourth = word_octets<L, V>(x, rest, 3);
  u32 low = words[0], high = words[1], upper_low = prmt(third, fourth, 0x5140),
      upper_high = prmt(third, fourth, 0x7362);
  words[0] = prmt(low, upper_low, 0x5410);
  words[1] = prmt(low, upper_low, 0x7632);
  words[2] = prmt(high, upper_high, 0x5410);
  words[3] = prmt(high, upper_high, 0x7632);
}

template <int NWORDS>
DEV void store_words(u32* at, const u32* words) {
  if (NWORDS % 4 == 0) {
#pragma unroll
    for (int i = 0; i < NWORDS; i += 4) *(uint4*)(at + i) = {words[i], words[i + 1], words[i + 2], words[i + 3]};
  } else if (NWORDS == 2) {
    *(uint2*)at = {words[0], words[1]};
  } else {
    *at = words[0];
  }
}

// Join V groups and store them at `at`; only their first `count` words, if not all runs are full.
template <class L, bool WHOLE, int V>
DEV void store_group(u8* at, const u32* x, const u32 (*rest)[V], u32 count) {
  u32 words[L::NBYTES * V];
#pragma unroll
  for (int v = 0; v < V; v++) join<L, V>(words + v * L::NBYTES, x[v], rest[0] + v);
  if (WHOLE || count >= 4) {
    store_words<L::NBYTES * V>((u32*)at, words);
  } else if constexpr (!WHOLE) {
#pragma unroll
    for (u32 i = 0; i < 3; i++) {
      if (i >= count) continue;
      if constexpr (L::NBYTES == 4) ((u32*)at)[i] = words[i];
      if constexpr (L::NBYTES == 2) ((u16*)at)[i] = (u16)(words[i / 2] >> i % 2 * 16);
      if constexpr (L::NBYTES == 1) at[i] = (u8)(words[0] >> i * 8);
    }
  }
}
