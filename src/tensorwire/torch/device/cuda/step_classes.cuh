// Classes of the words of a block, or of a tile of it, in shared memory: which words have an exponent from a threshold
// on, and where the word of a class with some number stands.
#pragma once
#include "relative.cuh"

constexpr u32 kGroup = 128;         // words, of which the counts before are kept
constexpr u32 kWholeWords = 32768;  // of a block that is taken at once
constexpr u32 kWholeClasses = 4;    // that it may have
constexpr u32 kTileWords = 4096;    // of others, at a time
constexpr u32 kMaskWords = (kWholeClasses - 1) * kWholeWords / 32;
constexpr u32 kGroups = kWholeClasses * kWholeWords / kGroup;

struct ClassesShared {
  u32 masks[kMaskWords];  // by threshold
  u16 before[kGroups];    // by class, its words before each group
  u32 sums[kMostClasses - 1][kRelativeWarps];
  u32 least[kMostClasses - 1];  // thresholds, where they stand in words, for each word of a register
  u32 totals[kMostClasses];     // words of each class
};

// The top bits of eight bytes, in the highest byte.
DEV u32 top_bits(u32 low, u32 high) { return ((low >> 7 & 0x01010101u) | (high >> 3 & 0x10101010u)) * 0x01020408u; }

// Bits of 16 words, number i of as many.
template <class T, u32 NWORDS>
DEV void mark_16(ClassesShared* shared, u32 count, u32 i, u32* own) {
  constexpr u32 TOP = (sizeof(T) == 1 ? 0x01010101u : 0x00010001u) << (8 * sizeof(T) - 1);
#pragma unroll
  for (int j = 0; j < 4 * sizeof(T); j++) own[j] |= TOP;
  u16* masks = (u16*)shared->masks + i;
#pragma unroll 1
  for (u32 c = 0; c + 1 < count; c++, masks += NWORDS * 2) {
    u32 least = shared->least[c], bits[4 * sizeof(T)];
    // No borrow leaves a word: its top bit is set, and stays so where the rest is at least the threshold.
#pragma unroll
    for (int j = 0; j < 4 * sizeof(T); j++) bits[j] = own[j] - least;
    if constexpr (sizeof(T) == 2)
#pragma unroll
      for (int j = 0; j < 4; j++) bits[j] = prmt(bits[2 * j], bits[2 * j + 1], 0x7531);
    *masks = (u16)prmt(top_bits(bits[0], bits[1]), top_bits(bits[2], bits[3]), 0x73);
  }
}

// Classes of which the masks have room for WORDS words.
template <u32 WORDS>
struct Classes {
  static constexpr u32 NWORDS = WORDS / 32, GROUPS = WORDS / kGroup;
  ClassesShared* shared;
  u32 count, n;

  // Masks of n words at a multiple of 16 bytes, by `threads` threads of which this is one.
  template <class T>
  METHOD void mark(const T* words, u32 thread, u32 threads) const {
#pragma unroll 1
    for (u32 i = thread; i < n / 16; i += threads) {
      u32 own[4 * sizeof(T)];
#pragma unroll
      for (u32 j = 0; j < sizeof(T); j++) {
        uint4 four = ((const uint4*)(words + i * 16))[j];
        own[4 * j] = four.x, own[4 * j + 1] = four.y, own[4 * j + 2] = four.z, own[4 * j + 3] = four.w;
      }
      mark_16<T, NWORDS>(shared, count, i, own);
    }
#pragma unroll 1
    for (u32 i = n / 16 + thread; i < num_groups() * (kGroup / 16); i += threads)  // no bits stand behind the last word
#pragma unroll 1
      for (u32 c = 0; c + 1 < count; c++) {
        constexpr u32 TOP = 1u << (8 * sizeof(T) - 1);
        u32 least = shared->least[c] & (TOP - 1), bits = 0;
#pragma unroll 1
        for (u32 j = i * 16; j < min(i * 16 + 16, n); j++)
          bits |= ((words[j] | TOP) - least & TOP ? 1u : 0u) << (j & 15);
        ((u16*)shared->masks)[c * (NWORDS * 2) + i] = (u16)bits;
      }
  }

  // Counts before groups, and of classes. All threads; barriers stand before, inside and behind.
  METHOD void add_up() const {
    u32 t = threadIdx.x, lane = t & 31, warp = t >> 5;
    u16* before = shared->before + t;
    __syncthreads();
#pragma unroll 1
    for (u32 c = 1; c < count; c++) {  // words from the class on, in this warp's groups
      u32 ones = 0, total;
      if (t < num_groups()) {
        uint4 four = ((const uint4*)(shared->masks + (c - 1) * NWORDS))[t];
        ones = __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
      }
      u32 own = sum_before(ones, lane, &total);
      if (t < GROUPS) before[c * GROUPS] = (u16)own;
      if (lane == 31) shared->sums[c - 1][warp] = total;
    }
    __syncthreads();
    u32 from = t * kGroup, all = n;
#pragma unroll 1
    for (u32 c = 0; c < count; c++) {
      u32 next = 0, sum = 0;
      if (c + 1 < count) {
        const uint4* sums = (const uint4*)shared->sums[c];
        uint4 low = sums[0], high = sums[1];
        const u32 some[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        next = t < GROUPS ? before[(c + 1) * GROUPS] : 0;
#pragma unroll
        for (u32 w = 0; w < kRelativeWarps; w++) {
          if (w < warp) next += some[w];
          sum += some[w];
        }
      }
      if (t < GROUPS) before[c * GROUPS] = (u16)(from - next);
      if (t == 0) shared->totals[c] = all - sum;
      from = next, all = sum;
    }
    __syncthreads();
  }

  // Where the word of class c stands that has so many of its class before it; less than are in the class.
  METHOD u32 place(u32 c, u32 number) const {
    if (count == 1) return number;
    const u16* before = shared->before + c * GROUPS;
    u32 group = 0;
#pragma unroll
    for (u32 half = GROUPS / 2; half; half /= 2)
      if (before[group + half] <= number) group += half;
    u32 left = number - before[group], bit = group * kGroup, own[4] = {~0u, ~0u, ~0u, ~0u};
    const uint4* masks = (const uint4*)shared->masks + c * (NWORDS / 4) + group;
    if (c) {
      uint4 from = *(masks - NWORDS / 4);
      own[0] = from.x, own[1] = from.y, own[2] = from.z, own[3] = from.w;
    }
    if (c + 1 < count) {
      uint4 to = *masks;
      own[0] &= ~to.x, own[1] &= ~to.y, own[2] &= ~to.z, own[3] &= ~to.w;
    }
    u32 here = own[0];
    bool further = true;
#pragma unroll
    for (int j = 0; j < 3; j++) {
      u32 ones = __popc(own[j]);
      further = further && left >= ones;
      if (further) left -= ones, bit += 32, here = own[j + 1];
    }
#pragma unroll
    for (u32 half = 16; half; half /= 2) {
      u32 low = here & ((1u << half) - 1), ones = __popc(low);
      if (ones <= left)
        left -= ones, bit += half, here >>= half;
      else
        here = low;
    }
    return bit;
  }

 private:
  METHOD u32 num_groups() const { return (n + kGroup - 1) / kGroup; }
};
