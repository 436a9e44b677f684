// Tiers of blocks that are encoded: shapes, shared memory, and the choice of what the tiers name.
#pragma once
#include "encode.cuh"
#include "tiers.cuh"

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

// A tier shape: exponents that tier T names, those that tiers before it do, and its variant: from 8 on of cascade2.
template <u32 WIDTHS, int T>
struct TierOf {
  static constexpr int WIDTH = width_of(WIDTHS, T);
  static constexpr u32 NAMED = (1u << WIDTH) - 1, BEFORE = TierOf<WIDTHS, T - 1>::BEFORE + TierOf<WIDTHS, T - 1>::NAMED;
};
template <u32 WIDTHS>
struct TierOf<WIDTHS, 0> {
  static constexpr u32 NAMED = 0, BEFORE = 0;
};

FOLDED u32 variant_of(u32 widths) {
  constexpr u32 shapes[] = {0x8322, 0x83222, 0x822212, 0x832112, 0x8321,  0x83111,  0x833,
                            0x81,   0x84,    0x83,     0x83334,  0x82223, 0x822111, 0x821112};
  u32 variant = 0;
  while (shapes[variant] != widths) variant++;
  return variant;
}

// What tiers name, by samples.
template <u32 WIDTHS>
struct Tiers {
  u32 lo, below[last_tier(WIDTHS) + 1];  // a_k for tier k
  bool alike;                            // all words that were looked at are equal
};

// For each exponent how many samples have a lower one, to counters[0 .. 256]; whether all of them are equal. `sums` is
// a number for each warp.
template <class L>
DEV bool sample_words(const u8* words, u32 n, u32* counters, u32* sums) {
  u32 t = threadIdx.x, lane = t & 31, warp = t >> 5, share = n / kEncoders, first = word_at<L>(words, 0);
  counters[t] = 0;
  if (t < 4) counters[kUnlike - 1 + t] = 0;
  __syncthreads();
  // Four neighbours from a place in each share that is never the same: content may repeat from one share to the next.
  u32 place = t * share + (t * 158 % 256 * (share - min(share, kSamplesOfThread)) >> 8), unlike = 0;
  u32 word[kSamplesOfThread];
#pragma unroll
  for (u32 i = 0; i < kSamplesOfThread; i++)
    word[i] = word_at<L>(words, n > kSampled ? place + i : (kSamplesOfThread * t + i) * n / kSampled);
#pragma unroll
  for (u32 i = 0; i < kSamplesOfThread; i++) {
    unlike |= word[i] ^ first;
    atomicAdd(&counters[exponent_of<L>(word[i])], 1u);
  }
  bool any = __any_sync(kAll, unlike != 0);
  __syncthreads();
  u32 own = counters[t], sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum = add_before<32>(sum, distance);
  if (lane == 31) sums[warp] = sum | any << 16;
  __syncthreads();
  u32 of_warp = lane < kEncodingWarps ? sums[lane] : 0;
  counters[t] = sum - own + (__reduce_add_sync(kAll, lane < warp ? of_warp : 0) & 0xffff);
  if (t == 0) counters[256] = kSampled;
  __syncthreads();
  return __reduce_max_sync(kAll, of_warp) >> 16 == 0;
}

// Tiers from T on, each the interval of most samples.
template <int EXPONENTS, u32 WIDTHS, int T>
DEV void choose_later(Tiers<WIDTHS>& tiers, u32 start, const u32* before) {
  if constexpr (T <= last_tier(WIDTHS)) {
    constexpr u32 NAMED = TierOf<WIDTHS, T>::NAMED, ALL = TierOf<WIDTHS, T + 1>::BEFORE;
    u32 lane = threadIdx.x & 31, begin = start - lane, most = 0;
    if (lane <= min(NAMED, start) && begin + ALL <= EXPONENTS)
      most = (before[begin + ALL] - before[begin]) << 5 | (31 - lane);
    tiers.below[T] = 31 - (__reduce_max_sync(kAll, most) & 31);
    choose_later<EXPONENTS, WIDTHS, T + 1>(tiers, start - tiers.below[T], before);
  }
}

// Choose what the tiers name as the core does, but by samples.
template <class L, u32 WIDTHS>
DEV Tiers<WIDTHS> sample_tiers(const u8* words, u32 n, const TiersRoom& room) {
  constexpr u32 EXPONENTS = 1 << L::EXPONENT_BITS, NAMED = TierOf<WIDTHS, 1>::NAMED;
  static_assert(TierOf<WIDTHS, last_tier(WIDTHS) + 1>::BEFORE <= EXPONENTS, "a shape that names more exponents");
  u32 t = threadIdx.x;
  u32* counters = room.samples.counters;
  room.selectors[t] = kSelectors.of[t];
#pragma unroll 1
  for (u32 i = 16 * t; i < list_nbytes(n) + kListSlack; i += 16 * kEncoders) *(uint4*)(room.list + i) = {0, 0, 0, 0};
  Tiers<WIDTHS> tiers;
  tiers.alike = sample_words<L>(words, n, counters, room.found);
  u32 most = t + NAMED <= EXPONENTS ? (counters[t + NAMED] - counters[t]) << 8 | (255 - t) : 0;
  most = __reduce_max_sync(kAll, most);
  if (t % 32 == 0) room.found[kEncodingWarps + t / 32] = most;
  __syncthreads();
  most = t % 32 < kEncodingWarps ? room.found[kEncodingWarps + t % 32] : 0;
  tiers.lo = 255 - (__reduce_max_sync(kAll, most) & 255);
  choose_later<EXPONENTS, WIDTHS, 2>(tiers, tiers.lo, counters);
  return tiers;
}
