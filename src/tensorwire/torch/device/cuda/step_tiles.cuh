// Changed words of a block tile by tile, for blocks of any size, with up to a change a word: the string was read
// before, and a lane of warp 0 goes through that of each class again, code by code.
#pragma once
#include "read_sparse.cuh"

// How a class goes on: `bits` is where its walk reads. All of it lies in shared memory, each part used by one lane.
template <bool SIGNS>
DEV void advance(Walk& walk, Bits bits) {
  walk.passed++;
  if (walk.left == 0) {
    walk.next = kNone;
    return;
  }
  bits.at = walk.at;
  walk.next = min(walk.next + 1 + min(rice<SIGNS>(bits, walk.k, &walk.sign), kTooLarge), 2 * kTooLarge);
  walk.at = bits.at;
  walk.left--;
}

template <bool SIGNS>
DEV void begin(Walk& walk, const Bits& bits) {
  walk.next = walk.passed = kNone;  // -1: the first number is the gap to it
  advance<SIGNS>(walk, bits);
}

DEV void begin_class(ClassWalk& walk, const Bits& bits) {
  begin<true>(walk.changed, bits);
#pragma unroll 1
  for (u32 j = 0; j < kSets; j++) begin<false>(walk.sets[j], bits);
}

// The size of the step of the next changed word, which is then left behind; 0 if it is not valid. `most` is the largest
// one there is.
DEV u32 next_size(ClassWalk& walk, Bits bits, u32 most) {
  u32 number = walk.changed.passed, size = 1, negative = walk.changed.sign;
  advance<true>(walk.changed, bits);
#pragma unroll 1
  for (u32 j = 0; j < kSets; j++) {
    Walk& set = walk.sets[j];
    bool is_member = set.next == number;
    u32 before = set.passed;
    if (is_member) advance<false>(set, bits);
    if (is_member == (set.inverted != 0)) return size;
    number = set.inverted ? number - before : before;
    size++;
  }
  bits.at = walk.large.at;
  size += golomb(bits, walk.large.k);
  walk.large.at = bits.at;
  return size > most || (size == most && !negative) ? 0 : size;
}

DEV bool is_through(const ClassWalk& walk) {
  bool through = walk.changed.next == kNone;
  for (u32 j = 0; j < kSets; j++) through &= walk.sets[j].next == kNone;
  return through;
}

// The word that stands so many steps from this one.
template <class T>
DEV T moved_word(T word, u32 step, bool ordered) {
  constexpr u32 TOP = 1u << (8 * sizeof(T) - 1), ALL = 2 * TOP - 1;
  if (!ordered) return (T)(word + step);
  u32 ordinal = (word & TOP ? word ^ ALL : word ^ TOP) + step;
  return (T)(ordinal & TOP ? ordinal ^ TOP : ordinal ^ ALL);
}

// The words whose steps are listed.
template <class T, u32 WORDS>
DEV void move_words(T* words, const Classes<WORDS>& classes, bool ordered, const SparseShared* s) {
#pragma unroll 1
  for (u32 c = 0; c < classes.count; c++) {
    u32 begin = s->begin[c], count = s->count[c];
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += kRelativeThreads) {
      u32 number = s->numbers[begin + i], size = s->sizes[begin + i], place = classes.place(c, number & 0x7fff);
      words[place] = moved_word(words[place], number >> 15 ? 0 - size : size, ordered);
    }
  }
}

// A block whose string was read by tiles, by all threads: where WRITE says so its words are changed. False if the
// string is not valid. The lists of classes lie behind each other, each with room for all of its words.
template <class T, bool WRITE>
DEV bool take_by_tiles(T* words, u32 n, const u8* block, u32 nbytes, u32 num_classes, bool ordered, SparseShared* s) {
  u32 t = threadIdx.x;
  Bits bits = {(const u32*)block, 0, nbytes / 4 - 2, (nbytes - 1 - num_classes) * 8 & ~31u};
  ClassWalk& walk = s->walks[t < num_classes ? t : 0];
  if (t < num_classes) begin_class(walk, bits);
  u32 before = 0;  // words of class t in tiles before
  bool right = true;
#pragma unroll 1
  for (u32 first = 0; first < n; first += kTileWords) {
    Classes<kTileWords> classes = {&s->classes, num_classes, min(n - first, kTileWords)};
    classes.mark(words + first, t, kRelativeThreads);
    classes.add_up();
    if (t < num_classes) {
      u32 begin = 0, count = 0, limit = before + s->classes.totals[t];
      for (u32 c = 0; c < t; c++) begin += s->classes.totals[c];
#pragma unroll 1
      while (walk.changed.next < limit) {
        u32 number = walk.changed.next - before, sign = walk.changed.sign,
            size = next_size(walk, bits, 1u << (8 * sizeof(T) - 1));
        if (size == 0) right = false;
        s->numbers[begin + count] = (u16)(number | sign << 15);
        s->sizes[begin + count] = (u16)size;
        count++;
      }
      before = limit;
      s->begin[t] = begin, s->count[t] = count;
    }
    __syncthreads();
    if (WRITE) move_words(words + first, classes, ordered, s);
    __syncthreads();
  }
  if (t < num_classes && !(right && is_through(walk))) atomicExch(&s->answer, (u32)kInvalid);
  __syncthreads();
  return s->answer != kInvalid;
}
