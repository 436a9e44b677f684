// Changed words of a block tile by tile, for blocks of any size, with up to a change a word: the string was read before,
// and a lane of warp 0 goes through that of each class again, code by code.
#pragma once
#include "read_sparse.cuh"

constexpr u32 kNone = ~0u;

// Numbers in Rice's code, ascending, one after the other.
struct Walk {
  u32 at, left, k, next, sign, passed;  // passed: how many were left behind

  template <bool SIGNS>
  METHOD void advance(Bits bits) {
    passed++;
    if (left == 0) {
      next = kNone;
      return;
    }
    bits.at = at;
    next = min(next + 1 + rice<SIGNS>(bits, k, &sign), 2 * kTooLarge);
    at = bits.at;
    left--;
  }

  template <bool SIGNS>
  METHOD void begin(const Section& section, const Bits& bits) {
    at = section.at, left = section.count, k = section.k, next = kNone, passed = kNone;
    advance<SIGNS>(bits);  // next: -1 and 1 more than the gap
  }
};

// A class on its way.
struct ClassWalk {
  Walk changed, sets[kSets];
  Bits large;
  u32 inverted, g, most;

  METHOD void begin(const SparseShared* s, u32 c, const Bits& bits, u32 largest) {
    changed.begin<true>(s->changed[c], bits);
    inverted = 0;
#pragma unroll
    for (u32 j = 0; j < kSets; j++) {
      sets[j].begin<false>(s->sets[c][j], bits);
      inverted |= s->sets[c][j].inverted << j;
    }
    large = bits;
    large.at = s->large[c].at, g = s->large[c].k, most = largest;
  }

  // The size of the step of the next changed word, which is then left behind; 0 if it is not valid.
  METHOD u32 size(const Bits& bits) {
    u32 number = changed.passed, size = 1, negative = changed.sign;
    changed.advance<true>(bits);
    bool is_in = true;
#pragma unroll
    for (u32 j = 0; j < kSets; j++) {
      if (!is_in) continue;
      bool is_member = sets[j].next == number;
      u32 before = sets[j].passed;
      if (is_member) sets[j].advance<false>(bits);
      is_in = is_member != (inverted >> j & 1);
      number = inverted >> j & 1 ? number - before : before;
      if (is_in) size++;
    }
    if (!is_in) return size;
    size += golomb(large, g);
    return size > most || (size == most && !negative) ? 0 : size;
  }

  METHOD bool is_through() const {
    return changed.next == kNone && sets[0].next == kNone && sets[1].next == kNone && sets[2].next == kNone;
  }
};

// Lists of the changed words of a tile, and `change(classes)` for each, by all threads. False if the string is not
// valid. The lists of classes lie behind each other, each with room for all of its words.
template <class T, class Change>
DEV bool for_tiles(const T* words, u32 n, const u8* block, u32 nbytes, u32 num_classes, u32 exponent_bits,
                   SparseShared* s, Change change) {
  u32 t = threadIdx.x;
  Bits bits = {(const u32*)block, 0, nbytes / 4 - 2, (nbytes - 1 - num_classes) * 8 & ~31u};
  ClassWalk walk;
  if (t < num_classes) walk.begin(s, t, bits, 1u << (8 * sizeof(T) - 1));
  u32 before = 0;  // words of class t in tiles before
  bool right = true;
#pragma unroll 1
  for (u32 first = 0; first < n; first += kTileWords) {
    Classes<kTileWords> classes = {&s->classes, num_classes, min(n - first, kTileWords)};
    classes.mark(words + first, exponent_bits, t, kRelativeThreads);
    classes.add_up();
    if (t < num_classes) {
      u32 begin = 0, count = 0, limit = before + s->classes.totals[t];
      for (u32 c = 0; c < t; c++) begin += s->classes.totals[c];
#pragma unroll 1
      while (walk.changed.next < limit) {
        u32 number = walk.changed.next - before, sign = walk.changed.sign, size = walk.size(bits);
        if (size == 0) right = false;
        s->numbers[begin + count] = (u16)(number | sign << 15);
        s->sizes[begin + count] = (u16)size;
        count++;
      }
      before = limit;
      s->begin[t] = begin, s->count[t] = count;
    }
    __syncthreads();
    change(classes, words + first);
    __syncthreads();
  }
  if (t < num_classes && !(right && walk.is_through())) s->answer = kInvalid;
  __syncthreads();
  return s->answer != kInvalid;
}
