// Blocks of relative frames of which few words changed, encoded: same, extended kind sparse, or neither.
//
//   Change change = sparse_block<L>(words, base, n, thresholds, shared);
//
//   L           Bf16, F16, F8E4M3 or F8E5M2
//   words, base at multiples of 8 words
//   n           of the words, 1 to kSparseWords
//   thresholds  of the tensor, see thresholds.cuh
//   shared      SparseShared, at a multiple of 16 bytes
//
// All kSparseThreads threads of a block of threads take part. A coded block is in shared->block, behind a barrier.
//
// Steps: (1) all words are compared, eight at a time, and counted by class; (2) sums of these counts; (3) the places of
// the changed words; (4) how many of them each class has; (5) of each its rank in its class and its step, class by
// class; (6) eight warps write a part of the bit string each; (7) the parts are joined.
#pragma once
#include "bit_strings.cuh"
#include "encode.cuh"

constexpr u32 kSparseThreads = 256, kSparseWarps = kSparseThreads / 32;
constexpr u32 kSparseWords = 32768;
constexpr u32 kClasses = 4, kLimits = kClasses - 1;
constexpr u32 kSparseShare = 8;  // of so many words one may have changed
constexpr u32 kMostChanged = kSparseWords / kSparseShare;
constexpr u32 kEights = kSparseWords / 8, kEightsOfThread = kEights / kSparseThreads;
constexpr u32 kEightsRoom =
    kEights + 4 * kSparseThreads;   // so that a thread's begin in other banks than its neighbours'
constexpr u32 kAtOnce = 4;          // eights of a thread
constexpr u32 kCountOrder = 5;      // of the golomb() of counts
constexpr u32 kFirstLargeStep = 4;  // smaller sizes have sets
constexpr u32 kMostSizeBits = 24;   // of a step's size, in the mean of all of a class

struct Change {
  u32 kind, nbytes;
};
enum ChangeKind : u32 { kSame, kSparse, kDense, kNeither };

struct SparseShared {
  union {
    u32 eights[kEightsRoom];   // of eight words, from the lowest byte: which changed; how many reach each limit
    u32 strings[kEightsRoom];  // the parts of the bit string
  };
  union {
    struct {
      u16 places[kMostChanged];
      u16 ranks[kMostChanged];  // of changed words, class by class: the rank << 1 | whether the step is negative
      u16 sizes[kMostChanged];  // of their steps
    };
    u32 block[3 * kMostChanged / 2];
  };
  u8 classes[256];               // by exponent
  u32 limits[kClasses + 1];      // see limit_of
  uint4 last, last_base;         // the last eight words, if some of them do not exist
  uint2 before[kSparseThreads];  // words before a thread's first one that reach limits 0 and 1, and limit 2
  uint2 sums[kSparseWarps];
  u32 counts[kSparseWarps][kClasses];             // of changed words that a warp takes
  uint2 sorted[kClasses];                         // the first changed word of each class, and how many they are
  u32 nbits[2 * kClasses], begins[2 * kClasses];  // of the parts
};

// Words of a layout in 32-bit registers.
template <class L>
struct Packed {
  static constexpr u32 LOW = L::NBYTES == 2 ? 0x7fff7fffu : 0x7f7f7f7fu, TOP = ~LOW,
                       ONE = L::NBYTES == 2 ? 0x10001u : 0x1010101u;
  static constexpr u32 SIGN = 1u << (8 * L::NBYTES - 1), NREGISTERS = 2 * L::NBYTES;  // of eight words

  static METHOD void load(u32* eight, const u8* words) {
    if (NREGISTERS == 4) {
      uint4 four = *(const uint4*)words;
      eight[0] = four.x, eight[1] = four.y, eight[2 % NREGISTERS] = four.z, eight[3 % NREGISTERS] = four.w;
    } else {
      uint2 two = *(const uint2*)words;
      eight[0] = two.x, eight[1] = two.y;
    }
  }
  static METHOD void store_word(u8* words, u32 place, u32 word) {
    if (L::NBYTES == 2)
      ((u16*)words)[place] = (u16)word;
    else
      words[place] = (u8)word;
  }

  // The sign bits of words tell whether they differ, and whether a magnitude reaches a limit, which is at most SIGN.
  static METHOD u32 differ(u32 a, u32 b) { return unlike_or(a, b, unlike_and(a, b, LOW) + LOW); }
  static METHOD u32 reach(u32 words, u32 limits) { return ((words & LOW) | TOP) - limits; }

  // All bits of four bytes as the sign bits say, for words 0 to 3 or 4 to 7.
  static METHOD u32 signs(const u32* eight, int half) {
    return L::NBYTES == 2 ? prmt(eight[2 * half % NREGISTERS], eight[(2 * half + 1) % NREGISTERS], 0xfdb9)
                          : prmt(eight[half], 0, 0xba98);
  }
  // Of eight words' sign bits: a mask, and how many are set.
  static METHOD u32 mask(const u32* eight) {
    return add_products(signs(eight, 0), 0xf8fcfeffu, add_products(signs(eight, 1), 0x80c0e0f0u, 0));
  }
  static METHOD u32 count(const u32* eight) {
    return add_products(signs(eight, 0), ~0u, add_products(signs(eight, 1), ~0u, 0));
  }

  // A number that orders words by value, but for its bits above those of a word.
  static METHOD u32 order(u32 word) { return word & SIGN ? ~word ^ SIGN : word; }
};

// Of a tensor: up to three ascending exponents, a byte each, and in the highest byte how many they are.
DEV u32 num_thresholds(u32 thresholds) { return thresholds >> 24; }

// From which magnitude on words in a register are of a class; that of a class that does not exist is never reached.
template <class L>
DEV u32 limit_of(u32 thresholds, u32 number) {
  u32 magnitude = (thresholds >> 8 * (number - 1) & 255) << L::MANTISSA_BITS;
  return number == 0 ? 0 : (number <= num_thresholds(thresholds) ? magnitude : Packed<L>::SIGN) * Packed<L>::ONE;
}

DEV u32 eight_at(u32 number) { return number + number / kEightsOfThread * 4; }

// The sums of both over all threads before this one; `total` gets those over all.
DEV uint2 sums_before(uint2 own, uint2* sums, uint2& total) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint2 end = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) end.x = add_before<32>(end.x, d), end.y = add_before<32>(end.y, d);
  if (lane == 31) sums[warp] = end;
  __syncthreads();
  uint2 all = sums[lane % kSparseWarps], some = all;
#pragma unroll
  for (int d = 1; d < (int)kSparseWarps; d *= 2) all.x = add_before<32>(all.x, d), all.y = add_before<32>(all.y, d);
  total.x = __shfl_sync(0xffffffffu, all.x, kSparseWarps - 1),
  total.y = __shfl_sync(0xffffffffu, all.y, kSparseWarps - 1);
  return {end.x - own.x + __shfl_sync(0xffffffffu, all.x - some.x, warp),
          end.y - own.y + __shfl_sync(0xffffffffu, all.y - some.y, warp)};
}

// The lanes that have a changed word, by its class: 0 where there is none.
struct Classed {
  u32 all, odd, upper;

  METHOD Classed(bool exists, u32 number) {
    all = __ballot_sync(0xffffffffu, exists);
    odd = __ballot_sync(0xffffffffu, number & 1);
    upper = __ballot_sync(0xffffffffu, number & 2);
  }
  METHOD u32 of(u32 number) const { return all & (odd ^ ((number & 1) - 1)) & (upper ^ ((number >> 1) - 1)); }
};

// Changed words that a warp takes.
struct Share {
  u32 begin, end;

  METHOD Share(u32 count) {
    u32 part = (count + 32 * kSparseWarps - 1) / (32 * kSparseWarps) * 32;
    begin = (threadIdx.x >> 5) * part, end = min(begin + part, count);
  }
};

// What the steps share.
template <class L>
struct SparseBlock {
  typedef Packed<L> P;
  const u8 *words, *base;
  u32 n;
  SparseShared* shared;

  // What is known of classes before words are looked at.
  METHOD void fill_classes(u32 thresholds) const {
    u32 number = 0;
#pragma unroll
    for (u32 i = 0; i < kLimits; i++)
      number += i < num_thresholds(thresholds) && threadIdx.x >= (thresholds >> 8 * i & 255);
    shared->classes[threadIdx.x] = (u8)number;
    if (threadIdx.x <= kClasses) shared->limits[threadIdx.x] = limit_of<L>(thresholds, threadIdx.x);
  }

  // (1) ----------------------------------------------------------------------------------------------------------

  METHOD u32 compared(const u32* limits, const u8* own_words, const u8* old_words) const {
    u32 own[P::NREGISTERS], old[P::NREGISTERS], signs[P::NREGISTERS];
    P::load(own, own_words), P::load(old, old_words);
#pragma unroll
    for (u32 i = 0; i < P::NREGISTERS; i++) signs[i] = P::differ(own[i], old[i]);
    u32 mask = P::mask(signs), counts = 0;
#pragma unroll
    for (u32 j = kLimits; j; j--) {
#pragma unroll
      for (u32 i = 0; i < P::NREGISTERS; i++) signs[i] = P::reach(old[i], limits[j]);
      counts = (counts << 8) + P::count(signs);
    }
    return (counts << 8) + mask;
  }

  METHOD void compare() const {
    constexpr u32 NBYTES = kSparseThreads * 8 * L::NBYTES;
    u32 limits[kClasses], i = threadIdx.x, full = n / 8, *to = shared->eights + eight_at(i);
#pragma unroll
    for (u32 j = 0; j < kClasses; j++) limits[j] = shared->limits[j];
    const u8 *own = kept(words + i * 8 * L::NBYTES), *old = kept(base + i * 8 * L::NBYTES);
#pragma unroll 1
    for (; i + (kAtOnce - 1) * kSparseThreads < full; i += kAtOnce * kSparseThreads) {
      u32 found[kAtOnce];
#pragma unroll
      for (u32 j = 0; j < kAtOnce; j++) found[j] = compared(limits, own + j * NBYTES, old + j * NBYTES);
#pragma unroll
      for (u32 j = 0; j < kAtOnce; j++) to[j * kStepEights] = found[j];
      own += kAtOnce * NBYTES, old += kAtOnce * NBYTES, to += kAtOnce * kStepEights;
    }
#pragma unroll 1
    for (; i < kEights; i += kSparseThreads, own += NBYTES, old += NBYTES, to += kStepEights) {
      if (i == full) copy_last(), own = (const u8*)&shared->last, old = (const u8*)&shared->last_base;
      *to = i <= full ? compared(limits, own, old) : 0;
    }
  }
  static constexpr u32 kStepEights = kSparseThreads + kSparseThreads / kEightsOfThread * 4;

  // The last eight, of which some words do not exist: as if they had not changed. All may be such.
  METHOD void copy_last() const {
    u32 first = n / 8 * 8;
    shared->last = shared->last_base = {0, 0, 0, 0};
#pragma unroll 1
    for (u32 i = 0; first + i < n; i++) {
      P::store_word((u8*)&shared->last, i, word_at<L>(words, first + i));
      P::store_word((u8*)&shared->last_base, i, word_at<L>(base, first + i));
    }
  }

  // (2) ----------------------------------------------------------------------------------------------------------

  // The changed words of a thread's 128 become masks, and shared->eights has for each eight how many of the words
  // before it among these reach each limit. Returns how many changed words stand before the thread's; `total` gets all.
  METHOD u32 add_up(u32* masks, u32& total) const {
    u32 counts = 0, changed = 0;
    uint4* own = (uint4*)(shared->eights + eight_at(threadIdx.x * kEightsOfThread));
#pragma unroll
    for (u32 i = 0; i < kEightsOfThread / 4; i++) {
      uint4 four = own[i], before;
      masks[i] = prmt(prmt(four.x, four.y, 0x40), prmt(four.z, four.w, 0x40), 0x5410);
      changed += __popc(masks[i]);
      before.x = counts, counts += four.x & ~255u;
      before.y = counts, counts += four.y & ~255u;
      before.z = counts, counts += four.z & ~255u;
      before.w = counts, counts += four.w & ~255u;
      own[i] = before;
    }
    uint2 all, before = sums_before({changed | lower_count(counts), upper_counts(counts)}, shared->sums, all);
    shared->before[threadIdx.x] = before;
    total = all.x & 0xffff;
    return before.x & 0xffff;
  }

  // Counts of 8 bits as counts of 16: that of limit 0 behind something else, and those of limits 1 and 2.
  static METHOD u32 lower_count(u32 counts) { return prmt(counts, 0, 0x4144); }
  static METHOD u32 upper_counts(u32 counts) { return prmt(counts, 0, 0x4342); }

  // (3) ----------------------------------------------------------------------------------------------------------

  METHOD void list_places(const u32* masks, u32 to) const {
#pragma unroll
    for (u32 i = 0; i < kEightsOfThread / 4; i++)
      for (u32 mask = masks[i]; mask; mask &= mask - 1)
        shared->places[to++] = (u16)(threadIdx.x * (8 * kEightsOfThread) + 32 * i + __ffs(mask) - 1);
  }

  // (4) ----------------------------------------------------------------------------------------------------------

  METHOD u32 class_of(u32 word) const { return shared->classes[exponent_of<L>(word)]; }

  METHOD void count_classes(const Share& share) const {
    u32 lane = threadIdx.x & 31, own = 0;
#pragma unroll 1
    for (u32 i = share.begin + lane; i - lane < share.end; i += 32) {
      bool exists = i < share.end;
      u32 number = exists ? class_of(word_at<L>(base, shared->places[i])) : 0;
      own += __popc(Classed(exists, number).of(lane & 3));
    }
    if (lane < kClasses) shared->counts[threadIdx.x >> 5][lane] = own;
  }

  // (5) ----------------------------------------------------------------------------------------------------------

  // How many words of its class stand before the one at `place`.
  METHOD u32 rank_of(u32 place, u32 number) const {
    u32 i = place / 8, found = shared->eights[eight_at(i)], eight[P::NREGISTERS];
    uint2 before = shared->before[i / kEightsOfThread];
    u32 from = shared->limits[number], end = shared->limits[number + 1];
    // Four numbers of 16 bits: words before the eight, and those of them that reach limits 0, 1 and 2.
    u32 low = bits_of(0xffffu, i * 8, before.x) + lower_count(found), high = before.y + upper_counts(found);
    u32 two = (u32)(pair64(low, high) >> 16 * number);
    P::load(eight, i < n / 8 ? base + i * 8 * L::NBYTES : (const u8*)&shared->last_base);
#pragma unroll
    for (u32 j = 0; j < P::NREGISTERS; j++) eight[j] = P::reach(eight[j], from) & ~P::reach(eight[j], end);
    return (two & 0xffff) - (two >> 16) + __popc(P::mask(eight) & ((1u << place % 8) - 1));
  }

  // Where a warp's changed words of class lane & 3 begin once all are sorted.
  METHOD u32 first_of_share() const {
    // A lane for each class of each warp.
    u32 lane = threadIdx.x & 31, own = shared->counts[lane / kClasses][lane % kClasses], end = own, begin = 0;
#pragma unroll
    for (int d = kClasses; d < 32; d *= 2) end = add_before<32>(end, d);
    u32 count = __shfl_sync(0xffffffffu, end, 32 - kClasses + lane % kClasses);
#pragma unroll
    for (u32 c = 0; c < kLimits; c++) {
      u32 some = __shfl_sync(0xffffffffu, count, c);
      if (c < lane % kClasses) begin += some;
    }
    if (threadIdx.x < kClasses) shared->sorted[lane] = {begin, count};
    return begin + __shfl_sync(0xffffffffu, end - own, threadIdx.x / 32 * kClasses + lane % kClasses);
  }

  METHOD void sort(const Share& share) const {
    u32 lane = threadIdx.x & 31, below = (1u << lane) - 1, at = first_of_share();
    for (u32 i = share.begin + lane; i - lane < share.end; i += 32) {
      bool exists = i < share.end;
      u32 place = exists ? shared->places[i] : 0, old = word_at<L>(base, place), number = exists ? class_of(old) : 0;
      Classed classed(exists, number);
      u32 to = __shfl_sync(0xffffffffu, at, number) + __popc(classed.of(number) & below);
      at += __popc(classed.of(lane & 3));
      if (!exists) continue;
      u32 step = P::order(word_at<L>(words, place)) - P::order(old), negative = step & P::SIGN ? 1 : 0;
      shared->ranks[to] = (u16)(rank_of(place, number) << 1 | negative);
      shared->sizes[to] = (u16)((negative ? 0 - step : step) & (2 * P::SIGN - 1));
    }
  }
};

// (6) -------------------------------------------------------------------------------------------------------------

// The changed words of a class: their gaps and the signs of their steps.
DEV void put_positions(BitString& string, const u16* ranks, u32 count, u32 k) {
  Codes codes;
  codes.add_golomb(count, kCountOrder);
  if (count) codes.add(k, kRiceBits);
  string.put(codes);
  for (u32 lane = threadIdx.x & 31, i = lane; i - lane < count; i += 32) {
    bool has = i < count;
    u32 rank = has ? ranks[i] : 0, next = i && has ? (ranks[i - 1] >> 1) + 1u : 0;
    string.put_gaps(has, (rank >> 1) - next, k, rank & 1, 1);
  }
}

// set(count) of those sizes that are at least so large. They move to the front, in order; returns how many they are.
// `members` gets the numbers of these, and from its end on those of the others.
DEV u32 put_large(BitString& string, u16* sizes, u16* members, u32 count, u32 least) {
  u32 lane = threadIdx.x & 31, below = (1u << lane) - 1, num_large = 0;
  for (u32 i = lane; i - lane < count; i += 32) {
    u32 size = i < count ? sizes[i] : 0, large = __ballot_sync(0xffffffffu, size >= least);
    u32 earlier = num_large + __popc(large & below);
    __syncwarp();
    if (size >= least) sizes[earlier] = (u16)size;
    if (i < count) members[size >= least ? earlier : count - 1 - (i - earlier)] = (u16)i;
    num_large += __popc(large);
  }
  __syncwarp();
  bool inverted = num_large > count / 2;
  u32 num_members = inverted ? count - num_large : num_large, k = 0;
  const u16* own = inverted ? members + count - 1 : members;
  int step = inverted ? -1 : 1;
  Codes codes;
  codes.add(inverted, 1);
  codes.add_golomb(num_members, 0);
  if (num_members) {
    k = rice_k(own[step * (int)(num_members - 1)] + 1 - num_members, num_members);
    codes.add(k, kRiceBits);
  }
  string.put(codes);
  for (u32 i = lane; i - lane < num_members; i += 32) {
    bool has = i < num_members;
    u32 member = has ? own[step * (int)i] : 0, next = i && has ? own[step * (int)(i - 1)] + 1u : 0;
    string.put_gaps(has, member - next, k, 0, 0);
  }
  __syncwarp();
  return num_large;
}

// The sizes of the steps of a class, which are no longer there afterwards.
DEV void put_sizes(BitString& string, u16* sizes, u16* members, u32 count) {
#pragma unroll 1
  for (u32 least = 2; least <= kFirstLargeStep && count; least++)
    count = put_large(string, sizes, members, count, least);
  if (!count) return;
  // An order that about half of the sizes are too long for.
  u32 lane = threadIdx.x & 31, sum = 0;
  for (u32 i = lane; i < count; i += 32) sum += bit_length(sizes[i] - kFirstLargeStep + 1) - 1;
  u32 order = __reduce_add_sync(0xffffffffu, sum) / count;
  Codes codes;
  codes.add(order, kGolombBits);
  string.put(codes);
  for (u32 i = lane; i - lane < count; i += 32) {
    u32 value = (i < count ? sizes[i] - kFirstLargeStep : 0) + (1u << order), more = bit_length(value) - 1 - order;
    u32 low = value & ((1u << (more + order)) - 1);
    string.put_each(more, 1 | low << 1, i < count ? 2 * more + 1 + order : 0);
  }
}

// Where a warp writes its part: warps 0 to 3 the positions of a class each, warps 4 to 7 the sizes.
DEV void put_parts(SparseShared* shared, u32 num_classes) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, number = warp % kClasses;
  uint2 sorted = shared->sorted[lane % kClasses];
  u32 sum = sorted.y ? (shared->ranks[sorted.x + sorted.y - 1] >> 1) + 1 - sorted.y : 0;
  u32 k = sorted.y ? rice_k(sum, sorted.y) : 0;
  // What parts take at most: a position, whose quotients have no larger sum; a size.
  u32 most = lane < kClasses ? sorted.y * (k + 2) + (sum >> k) : sorted.y * kMostSizeBits;
  u32 room = most / 32 + 4, end = room;
#pragma unroll
  for (int d = 1; d < 2 * (int)kClasses; d *= 2) end = add_before<32>(end, d);
  u32 begin = __shfl_sync(0xffffffffu, end - room, warp);
  room = __shfl_sync(0xffffffffu, room, warp);
  u32 first = __shfl_sync(0xffffffffu, sorted.x, number), count = __shfl_sync(0xffffffffu, sorted.y, number);
  k = __shfl_sync(0xffffffffu, k, number);
  BitString string = {shared->strings + begin, 0};
  for (u32 i = lane; i < room; i += 32) string.words[i] = 0;
  __syncwarp();
#pragma unroll 1
  for (u32 part = warp; part < num_classes; part += kSparseWarps)
    put_positions(string, shared->ranks + first, count, k);
#pragma unroll 1
  for (u32 part = warp - kClasses; part < num_classes; part += kSparseWarps)
    put_sizes(string, shared->sizes + first, shared->places + first, count);
  if (lane == 0) shared->nbits[warp] = string.nbits, shared->begins[warp] = begin;
}

// (7) -------------------------------------------------------------------------------------------------------------

// The block: its bit string, zeros, the descriptor. Returns its size; 0 if that is not below `raw`.
DEV u32 join_parts(SparseShared* shared, u32 thresholds, u32 raw) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = num_thresholds(thresholds);
  u32 own = shared->nbits[lane % kSparseWarps], end = own;
#pragma unroll
  for (int d = 1; d < (int)kSparseWarps; d *= 2) end = add_before<32>(end, d);
  u32 nbits = __shfl_sync(0xffffffffu, end, kSparseWarps - 1), at = __shfl_sync(0xffffffffu, end - own, warp);
  own = __shfl_sync(0xffffffffu, own, warp);
  u32 nbytes = ((nbits + 31) / 32 * 4 + count + 2 + 31) / 32 * 32;
  if (nbytes >= raw) return 0;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < nbytes / 4; i += kSparseThreads) shared->block[i] = 0;
  __syncthreads();
  const u32* words = shared->strings + shared->begins[warp];
#pragma unroll 1
  for (u32 i = lane; i * 32 < own; i += 32) put_bits(shared->block, at + i * 32, words[i]);
  __syncthreads();
  u8* behind = (u8*)shared->block + nbytes;
  if (threadIdx.x < count) behind[(int)threadIdx.x - (int)count - 2] = (u8)(thresholds >> 8 * threadIdx.x);
  if (threadIdx.x == 32) behind[-2] = kExtendedSparse, behind[-1] = (u8)tag_of(kKindExtended, count);
  return nbytes;
}

template <class L>
DEV Change sparse_block(const u8* words, const u8* base, u32 n, u32 thresholds, SparseShared* shared) {
  SparseBlock<L> block = {words, base, n, shared};
  u32 masks[kEightsOfThread / 4], count;
  block.fill_classes(thresholds);
  __syncthreads();
  block.compare();
  __syncthreads();
  u32 to = block.add_up(masks, count);
  if (count == 0) return {kSame, 0};
  if (count > n / kSparseShare) return {kNeither, 0};
  block.list_places(masks, to);
  __syncthreads();
  Share share(count);
  block.count_classes(share);
  __syncthreads();
  block.sort(share);
  __syncthreads();
  put_parts(shared, num_thresholds(thresholds) + 1);
  __syncthreads();
  u32 nbytes = join_parts(shared, thresholds, (n * L::NBYTES + 31) / 32 * 32);
  return {nbytes ? kSparse : kNeither, nbytes};
}
