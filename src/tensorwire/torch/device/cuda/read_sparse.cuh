// The bit string of a block of kind sparse, read by one warp.
#pragma once
#include "read_bits.cuh"
#include "step_classes.cuh"

constexpr u32 kListed = 4096;  // changed words of a block that is taken at once
constexpr u32 kSets = 3;       // of words whose steps have sizes of at least 2, 3 and 4

constexpr u32 kNone = ~0u;

// Numbers in Rice's code, or sizes in Golomb's of order k: where their codes begin, `left` of them. step_tiles.cuh goes
// on there: `next` is the next number, `passed` how many were left behind.
struct Walk {
  u32 at, left, k, inverted, next, sign, passed;
};

struct ClassWalk {
  Walk changed, sets[kSets], large;
};

struct SparseShared {
  ClassesShared classes;
  u16 numbers[kListed];  // of changed words in their classes, with the sign in bit 15; by class
  u16 sizes[kListed];
  u16 members[kListed], chosen[kListed];  // of a set
  u32 marks[kListed / 32];
  u32 begin[kMostClasses], count[kMostClasses];  // of the classes in these lists
  ClassWalk walks[kMostClasses];
  u32 answer;
};

enum Listing : u32 { kInvalid, kAllListed, kByTiles };

// Which of `count` words are in a set, of which `members` are listed: themselves to chosen, of those that are chosen so
// far; `first`: all are. Their sizes grow.
DEV void choose(SparseShared* s, const Walk& set, u32 count, bool first, u16* sizes) {
  u32 lane = threadIdx.x & 31, below = (1u << lane) - 1, out = 0, as_they_are = set.inverted ? 0 : set.left;
#pragma unroll 1
  for (u32 begin = 0; begin < as_they_are; begin += 32) {
    u32 i = begin + lane, own = 0;
    if (i < set.left) own = first ? s->members[i] : s->chosen[s->members[i]];  // at i or behind it
    __syncwarp();
    if (i < set.left) s->chosen[i] = (u16)own, sizes[own]++;
    __syncwarp();
  }
  if (!set.inverted) return;
  for (u32 i = lane; i * 32 < count; i += 32) s->marks[i] = 0;
  __syncwarp();
  for (u32 i = lane; i < set.left; i += 32) atomicOr(&s->marks[s->members[i] >> 5], 1u << (s->members[i] & 31));
  __syncwarp();
#pragma unroll 1
  for (u32 begin = 0; begin < count; begin += 32) {
    u32 i = begin + lane, own = 0;
    bool is_in = i < count && !(s->marks[begin / 32] >> lane & 1);
    u32 all = __ballot_sync(0xffffffffu, is_in);
    if (is_in) own = first ? i : s->chosen[i];
    __syncwarp();
    if (is_in) s->chosen[out + __popc(all & below)] = (u16)own, sizes[own]++;
    __syncwarp();
    out += __popc(all);
  }
}

// Sizes of the words of class c that have changed: `most` is the largest one there is.
DEV bool read_sizes(Bits& bits, u32 c, u32 most, bool listed, SparseShared* s) {
  u32 lane = threadIdx.x & 31, left = s->count[c];
  u16 *sizes = s->sizes + s->begin[c], *numbers = s->numbers + s->begin[c];
#pragma unroll 1
  for (u32 j = 0; j < kSets && left; j++) {
    Walk set = {0, 0, 0, take(bits, 1)};
    set.left = golomb(bits, 0);
    if (set.left > left) return false;
    if (set.left) set.k = take(bits, 5);
    set.at = bits.at;
    if (set.left && !read_numbers<false>(bits, set.left, set.k, left, listed ? s->members : nullptr)) return false;
    __syncwarp();
    if (listed) choose(s, set, left, j == 0, sizes);
    if (lane == 0) s->walks[c].sets[j] = set;
    left = set.inverted ? left - set.left : set.left;
  }
  if (left) {
    u32 g = take(bits, 6);
    if (lane == 0) s->walks[c].large = {bits.at, left, g};
#pragma unroll 1
    for (u32 i = 0; i < left; i++) {
      u32 more = golomb(bits, g);
      if (more > most - 4 || bits.at > bits.end) return false;
      if (!listed) continue;
      u32 own = s->chosen[i];
      if (more == most - 4 && !(numbers[own] >> 15)) return false;
      if (lane == 0) sizes[own] += more;
    }
  }
  __syncwarp();
  return bits.at <= bits.end;
}

// Whether all bits from `at` to `end` are zeros, by a warp.
DEV bool are_zero_bits(const u32* words, u32 at, u32 end) {
  u32 any = 0;
  for (u32 i = (at >> 5) + (threadIdx.x & 31); i * 32 < end; i += 32) {
    u32 own = words[i];
    if (i * 32 < at) own &= ~0u << (at & 31);
    if (i * 32 + 32 > end) own &= (1u << (end & 31)) - 1;
    any |= own;
  }
  return !__any_sync(0xffffffffu, any != 0);
}

// Read a block's string by a warp: into the lists if they have room, else only where what stands, for step_tiles.cuh,
// which then finds what is not valid in it. `listed` says whether lists will do at all.
DEV Listing read_string(const u8* block, u32 nbytes, u32 classes, u32 n, u32 most, bool listed, u32 alignment,
                        SparseShared* s) {
  u32 lane = threadIdx.x & 31, total = 0, end = (nbytes - 1 - classes) * 8;  // parameters, extended kind and tag
  Bits bits = {(const u32*)block, 0, nbytes / 4 - 2, end & ~31u};
#pragma unroll 1
  for (u32 c = 0; c < classes; c++) {
    u32 count = golomb(bits, 5);
    if (count > n - total) return kInvalid;
    Walk changed = {0, count, count ? take(bits, 5) : 0};
    changed.at = bits.at;
    if (total + count > kListed) listed = false;
    if (lane == 0) {
      s->walks[c] = {changed};
      s->begin[c] = total, s->count[c] = count;
    }
    if (listed)
      for (u32 i = lane; i < count; i += 32) s->sizes[total + i] = 1;
    if (count && !read_numbers<true>(bits, count, changed.k, n, listed ? s->numbers + total : nullptr)) return kInvalid;
    total += count;
    __syncwarp();
  }
#pragma unroll 1
  for (u32 c = 0; c < classes; c++)
    if (!read_sizes(bits, c, most, listed, s)) return kInvalid;
  if ((end >> 3) - ((bits.at + 31) >> 5 << 2) >= alignment || !are_zero_bits(bits.words, bits.at, end)) return kInvalid;
  return listed ? kAllListed : kByTiles;
}
