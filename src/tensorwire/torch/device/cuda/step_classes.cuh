// Classes of the words of a block, or of a tile of it, in shared memory: which words have an exponent from a threshold
// on, and where the word of a class with some number stands.
#pragma once
#include "relative.cuh"

constexpr u32 kGroup = 128;           // words, of which the counts before are kept
constexpr u32 kWholeWords = 32768;    // of a block that is taken at once
constexpr u32 kWholeClasses = 4;      // that it may have
constexpr u32 kTileWords = 4096;      // of others, at a time
constexpr u32 kMaskWords = (kWholeClasses - 1) * kWholeWords / 32;
constexpr u32 kGroups = (kWholeClasses - 1) * kWholeWords / kGroup;

struct ClassesShared {
  u32 masks[kMaskWords];  // by threshold
  u16 before[kGroups];    // how many bits of a threshold's mask stand before a group
  u32 sums[kMostClasses - 1][kRelativeWarps];
  u32 thresholds[kMostClasses - 1];
  u32 totals[kMostClasses];  // words of each class
};

// Classes of which the masks have room for WORDS words.
template <u32 WORDS>
struct Classes {
  static constexpr u32 NWORDS = WORDS / 32, GROUPS = WORDS / kGroup;
  ClassesShared* shared;
  u32 count, n;

  // Masks of n words at a multiple of 16 bytes, by `threads` threads of which this is one.
  template <class T>
  METHOD void mark(const T* words, u32 exponent_bits, u32 thread, u32 threads) const {
    constexpr u32 BITS = 8 * sizeof(T), PIECE = 16 / sizeof(T);
    constexpr u32 TOP = BITS == 8 ? 0x80808080u : 0x80008000u, ONES = BITS == 8 ? 0x01010101u : 0x00010001u;
    u32 shift = BITS - 1 - exponent_bits;
    u8* masks = (u8*)shared->masks;
#pragma unroll 2
    for (u32 i = thread; i < num_groups() * (kGroup / PIECE); i += threads) {
      u32 own[4];
      load(own, words, i * PIECE);
#pragma unroll
      for (int j = 0; j < 4; j++) own[j] |= TOP;
      for (u32 c = 0; c + 1 < count; c++) {
        u32 least = (shared->thresholds[c] << shift) * ONES, bits[4];
        // No borrow leaves a word: its top bit is set, and stays so where the rest is at least the threshold.
#pragma unroll
        for (int j = 0; j < 4; j++) bits[j] = own[j] - least;
        if (BITS == 16)
          masks[c * (NWORDS * 4) + i] = (u8)(four_of(prmt(bits[0], bits[1], 0x7531)) | four_of(prmt(bits[2], bits[3], 0x7531)) << 4);
        else
          ((u16*)masks)[c * (NWORDS * 2) + i] =
              (u16)(four_of(bits[0]) | four_of(bits[1]) << 4 | four_of(bits[2]) << 8 | four_of(bits[3]) << 12);
      }
    }
  }

  // Counts before groups, and of classes. All threads; barriers stand before, inside and behind.
  METHOD void add_up() const {
    u32 t = threadIdx.x, lane = t & 31, warp = t >> 5;
    __syncthreads();
    for (u32 c = 0; c + 1 < count; c++) {
      u32 own = 0, total;
      if (t < num_groups()) {
        uint4 four = ((const uint4*)(shared->masks + c * NWORDS))[t];
        own = __popc(four.x) + __popc(four.y) + __popc(four.z) + __popc(four.w);
        if (t == n / kGroup) own = ones_of_some(four, n % kGroup);  // a threshold of 0 has words behind the last one too
      }
      u32 before = sum_before(own, lane, &total);
      if (t < GROUPS) shared->before[c * GROUPS + t] = (u16)before;
      if (lane == 31) shared->sums[c][warp] = total;
    }
    __syncthreads();
    for (u32 c = 0; c + 1 < count; c++) {
      u32 before = 0, all = 0;
#pragma unroll
      for (u32 w = 0; w < kRelativeWarps; w++) {
        u32 sum = shared->sums[c][w];
        if (w < warp) before += sum;
        all += sum;
      }
      if (t < GROUPS) shared->before[c * GROUPS + t] += before;
      if (t == 0) shared->totals[c + 1] = all;  // so far of all words from this threshold on
    }
    __syncthreads();
    if (t == 0) {
      shared->totals[0] = n;
      for (u32 c = 0; c + 1 < count; c++) shared->totals[c] -= shared->totals[c + 1];
    }
    __syncthreads();
  }

  // Where the word of class c stands that has so many of its class before it; less than are in the class.
  METHOD u32 place(u32 c, u32 number) const {
    if (count == 1) return number;
    const u16 *low = shared->before + (c - 1) * GROUPS, *high = shared->before + c * GROUPS;
    bool is_lowest = c == 0, is_highest = c + 1 == count;
    u32 group = 0, before = 0;
#pragma unroll
    for (u32 half = GROUPS / 2; half; half /= 2) {
      u32 next = group + half, own = (is_lowest ? next * kGroup : low[next]) - (is_highest ? 0 : high[next]);
      if (own <= number) group = next, before = own;
    }
    const u32 *from = shared->masks + (c - 1) * NWORDS + group * 4, *to = shared->masks + c * NWORDS + group * 4;
    u32 left = number - before, where = group * kGroup, own = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      own = (is_lowest ? ~0u : from[j]) & ~(is_highest ? 0u : to[j]);
      u32 ones = __popc(own);
      if (left < ones) break;
      left -= ones, where += 32;
    }
    u32 bit = 0;
#pragma unroll
    for (u32 half = 16; half; half /= 2) {
      u32 ones = __popc(own >> bit & ((1u << half) - 1));
      if (ones <= left) left -= ones, bit += half;
    }
    return where + bit;
  }

 private:
  METHOD u32 num_groups() const { return (n + kGroup - 1) / kGroup; }

  // Of the first `some` bits of 128.
  METHOD static u32 ones_of_some(uint4 four, u32 some) {
    u32 own[4] = {four.x, four.y, four.z, four.w}, ones = 0;
#pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (some > 32 * j) ones += __popc(some >= 32 * j + 32 ? own[j] : own[j] & ((1u << (some - 32 * j)) - 1));
    return ones;
  }

  // The top bits of four bytes.
  METHOD static u32 four_of(u32 octets) { return (octets >> 7 & 0x01010101u) * 0x10204080u >> 28; }

  // 16 bytes of words from number `first` on; zeros behind the last one.
  template <class T>
  METHOD void load(u32* own, const T* words, u32 first) const {
    constexpr u32 PIECE = 16 / sizeof(T);
    if (first + PIECE <= n) {
      uint4 four = *(const uint4*)(words + first);
      own[0] = four.x, own[1] = four.y, own[2] = four.z, own[3] = four.w;
      return;
    }
    own[0] = own[1] = own[2] = own[3] = 0;
#pragma unroll
    for (u32 i = 0; i < PIECE; i++)
      if (first + i < n) own[i * 4 / PIECE] |= (u32)words[first + i] << i * 8 * sizeof(T) % 32;
  }
};
