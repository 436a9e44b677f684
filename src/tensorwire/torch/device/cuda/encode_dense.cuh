// Blocks of relative frames of which many words changed, encoded: extended kind dense, or neither.
//
//   Change change = dense_block<L>(words, base, n, thresholds, shared);
//
// All is as in encode_sparse.cuh, but for shared, DenseShared; it may hold anything, behind a barrier too.
//
// Steps: (1) symbols of all words, counted by class; (2) a warp for each class chooses its table and writes it; (3) one
// warp encodes the symbols from the last one on, a state in each lane. What it writes grows down from the end of the
// room for the block, into that of symbols that it has done with; (4) it is moved to its place; (5) signs and low bits.
#pragma once
#include "dense.cuh"
#include "encode_sparse.cuh"
#include "read_bits.cuh"

constexpr u32 kDenseNbytes = 44832;  // a block that would be larger is stored
constexpr u32 kTableWords = 29;      // of a table of as many symbols, 28 bits each at most, and what put_bits may touch
constexpr u32 kHashedNumbers = 360;  // for the hash of a block, see hash.cuh

// Reciprocal of a frequency; the frequency, and where its slots begin in the low half.
typedef uint2 DenseCode;

struct DenseShared {
  union {
    u64 hashed[kHashedNumbers];
    struct {
      DenseCode codes[kClasses * kSymbols];
      u32 tables[kClasses * kTableWords];
      u8 classes[256];  // by exponent
      uint2 sums[kSparseWarps];
      u32 nbytes[kClasses];                       // of tables
      u32 changed[kClasses], low_bits[kClasses];  // words, and bits of their sizes
      u32 num_units;                              // all ones, if there was no room
    };
  };
  u32 block[kDenseNbytes / 4];

  METHOD u8* symbols() { return (u8*)block; }
  // What a warp counts, by class and symbol, where the first units come to lie.
  METHOD u32* counts(u32 warp) { return block + kDenseNbytes / 4 - (warp + 1) * kClasses * kSymbols; }
};
static_assert(sizeof(DenseShared) <= sizeof(SparseShared), "what a launch asks for");
static_assert(kDenseNbytes - kSparseWarps * kClasses * kSymbols * 4 >= kSparseWords, "symbols and their counts");
static_assert(kSparseWarps >= kClasses, "a warp for each");

// The steps of sixteen words of a thread.
template <class L>
struct SixteenSteps {
  typedef Packed<L> P;
  Sixteen<L::NBYTES> own, old;

  METHOD void load(const u8* words, const u8* base, u32 first, u32 n) {
    u32 count = first < n ? min(n - first, 16u) : 0;
    own.load(words + first * L::NBYTES, count);
    old.load(base + first * L::NBYTES, count);
  }
  METHOD u32 size(u32 i, u32* negative) const {
    u32 step = P::order(own.word(i)) - P::order(old.word(i));
    *negative = step & P::SIGN ? 1 : 0;
    return (*negative ? 0 - step : step) & (2 * P::SIGN - 1);
  }
  static METHOD u32 symbol(u32 size) {
    u32 high = bit_length(size | 2) - 1;
    return size < 2 ? size : 2 * high + (size >> (high - 1) & 1);
  }
};

// (1) -------------------------------------------------------------------------------------------------------------

template <class L>
DEV void find_symbols(const u8* words, const u8* base, u32 n, DenseShared* s) {
  u32* counts = s->counts(threadIdx.x >> 5);
#pragma unroll 1
  for (u32 first = threadIdx.x * 16; first < n; first += kSparseThreads * 16) {
    SixteenSteps<L> steps;
    steps.load(words, base, first, n);
    u32 found[4] = {0, 0, 0, 0}, negative;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
      u32 symbol = SixteenSteps<L>::symbol(steps.size(i, &negative));
      symbol |= (u32)s->classes[exponent_of<L>(steps.old.word(i))] << kSymbolsLog2;
      found[i / 4] |= symbol << i % 4 * 8;
      if (first + i < n) atomicAdd(counts + symbol, 1u);
    }
    ((uint4*)s->symbols())[first / 16] = {found[0], found[1], found[2], found[3]};
  }
}

// (2) -------------------------------------------------------------------------------------------------------------

// The largest frequency that can be written and is not above this one: four significant bits.
DEV u32 written_below(u32 frequency) {
  u32 shift = max(bit_length(frequency), 4u) - 4;
  return frequency >> shift << shift;
}

// The frequency of the symbol that is the lane's number, by how often it occurs among `total`. The implied symbol gets
// what the others leave.
DEV u32 choose_frequency(u32 count, u32 total, bool is_implied, bool must) {
  u32 twice = 2 * count * kSlots / total, own = written_below(min(twice / 2, kSlots - 1));
  u32 above = own + (1u << (max(bit_length(own), 4u) - 4));
  if (twice > own + above && above < kSlots) own = above;
  if (must) own = max(own, 1u);
  if (is_implied) own = 0;
  u32 lane = threadIdx.x & 31, sum = __reduce_add_sync(0xffffffffu, own);
#pragma unroll 1
  while (sum >= kSlots) {  // rare symbols have more than their share: the largest frequency gives it
    if (__reduce_max_sync(0xffffffffu, own << 5 | lane) == (own << 5 | lane)) own = written_below(own - 1);
    sum = __reduce_add_sync(0xffffffffu, own);
  }
  return is_implied ? kSlots - sum : own;
}

// The table and codes of a class, by a warp.
DEV void choose_table(DenseShared* s, u32 c) {
  u32 lane = threadIdx.x & 31, count = 0, total;
#pragma unroll
  for (u32 warp = 0; warp < kSparseWarps; warp++) count += s->counts(warp)[c * kSymbols + lane];
  u32 changed = __reduce_add_sync(0xffffffffu, lane ? count : 0);
  u32 low_bits = __reduce_add_sync(0xffffffffu, count * low_bits_of(lane));
  total = __reduce_add_sync(0xffffffffu, count);
  if (total == 0) count = lane == 0, total = 1;  // a table has to have some
  u32 occur = __ballot_sync(0xffffffffu, count != 0), first = __ffs(occur) - 1, last = 31 - __clz(occur);
  u32 implied = 31 - (__reduce_max_sync(0xffffffffu, count << 5 | (31 - lane)) & 31);
  bool single = first == last;  // which may not have all slots
  if (single) first ? first-- : last++;
  bool is_in = lane >= first && lane <= last, is_implied = lane == implied;
  u32 frequency = choose_frequency(count, total, is_implied, is_in && (count || single));
  u32 begin = sum_before(frequency, lane, &total);
  s->codes[c * kSymbols + lane] = {~0u / max(frequency, 1u), frequency << 16 | begin};

  BitString string = {s->tables + c * kTableWords, 0};
  if (lane < kTableWords) string.words[lane] = 0;
  __syncwarp();
  Codes head;
  head.add(first | last << 8 | implied << 16, 24);
  string.put(head);
  u32 length = is_implied ? 0 : bit_length(frequency), before = __shfl_up_sync(0xffffffffu, length, 1);
  u32 farther = __shfl_up_sync(0xffffffffu, length, 2);
  if (lane == implied + 1) before = lane > 1 ? farther : 0;
  if (lane == 0) before = 0;
  u32 zeros = length >= before ? 2 * (length - before) : 2 * (before - length) - 1;
  u32 top_bits = length ? min(length - 1, kMostTopBits) : 0;
  u32 top = length ? frequency >> (length - 1 - top_bits) & ((1u << top_bits) - 1) : 0;
  string.put_each(zeros, 1 | top << 1, is_in && !is_implied ? zeros + 1 + top_bits : 0);
  if (lane == 0) s->nbytes[c] = (string.nbits + 7) / 8, s->changed[c] = changed, s->low_bits[c] = low_bits;
}

// (3) -------------------------------------------------------------------------------------------------------------

// The units, by a warp. Returns the lane's state.
DEV u32 put_units(DenseShared* s, u32 n) {
  u32 lane = threadIdx.x & 31, below = (1u << lane) - 1, state = kLowestState, next = kDenseNbytes / 2;
  u16* units = (u16*)s->block;
#pragma unroll 1
  for (u32 i = (n - 1) / 32 * 32 + lane; (int)i >= 0; i -= 32) {
    bool exists = i < n;
    DenseCode code = s->codes[exists ? s->symbols()[i] : 0];
    u32 frequency = code.y >> 16;
    u32 full = __ballot_sync(0xffffffffu, exists && state >= frequency << 20);
    next -= __popc(full);
    if (2 * next < i - lane + 32) {  // where symbols are still
      next = kDenseNbytes / 2 + 1;
      break;
    }
    if (full >> lane & 1) units[next + __popc(full & below)] = (u16)state, state >>= 16;
    if (!exists) continue;
    u32 quotient = __umulhi(state, code.x), rest = state - quotient * frequency;
    if (rest >= frequency) quotient++, rest -= frequency;
    state = (quotient << kSlotsLog2) + rest + (code.y & 0xffff);
  }
  if (lane == 0) s->num_units = kDenseNbytes / 2 - next;
  return state;
}

// (4) -------------------------------------------------------------------------------------------------------------

// Where streams stand in the block, in numbers of 32 bits.
struct DensePlaces {
  u32 states, units, signs, low, end;
  u32 num_changed;

  METHOD DensePlaces(const DenseShared* s, u32 num_classes) {
    u32 nbytes = 4, low_bits = 0;
    num_changed = 0;
    for (u32 c = 0; c < num_classes; c++)
      nbytes += s->nbytes[c], num_changed += s->changed[c], low_bits += s->low_bits[c];
    states = (nbytes + 3) / 4, units = states + 32, signs = units + (s->num_units + 1) / 2;
    low = signs + (num_changed + 31) / 32, end = low + (low_bits + 31) / 32;
  }
};

// What stands before signs, and zeros from there on.
DEV void move_units(DenseShared* s, const DensePlaces& places, u32 num_classes, u32 state, u32 nbytes) {
  u32 t = threadIdx.x, count = s->num_units;
  const u16* from = (const u16*)s->block + kDenseNbytes / 2 - count;
  u16* to = (u16*)(s->block + places.units);
#pragma unroll 1
  for (u32 i = t; i - t < count; i += kSparseThreads) {  // to lower addresses: what is written over was read
    u32 unit = i < count ? from[i] : 0;
    __syncthreads();
    if (i < count) to[i] = (u16)unit;
    __syncthreads();
  }
  if (t == 0 && count % 2) to[count] = 0;
  for (u32 i = t; i < places.states; i += kSparseThreads) s->block[i] = 0;
  for (u32 i = places.signs + t; i < nbytes / 4; i += kSparseThreads) s->block[i] = 0;
  __syncthreads();
  if (t == 0) s->block[0] = count;
  if (t < 32) s->block[places.states + t] = state;
  u32 at = 32;
  for (u32 c = 0; c < num_classes; c++) {
    if (t < kTableWords) put_bits(s->block, at + 32 * t, s->tables[c * kTableWords + t]);
    at += 8 * s->nbytes[c];
  }
}

// (5) -------------------------------------------------------------------------------------------------------------

template <class L>
DEV void put_signs(const u8* words, const u8* base, u32 n, const DensePlaces& places, DenseShared* s) {
  u32 signs_at = 32 * places.signs, low_at = 32 * places.low;
#pragma unroll 1
  for (u32 first = 0; first < n; first += kSparseThreads * 16) {
    SixteenSteps<L> steps;
    steps.load(words, base, first + threadIdx.x * 16, n);
    u32 changed = 0, low_bits = 0, signs = 0, negative;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
      u32 size = steps.size(i, &negative);
      signs |= negative << changed;
      changed += size ? 1 : 0, low_bits += low_bits_of(SixteenSteps<L>::symbol(size));
    }
    uint2 total, before = sums_before({changed, low_bits}, s->sums, total);
    put_bits(s->block, signs_at + before.x, signs);
    u32 at = low_at + before.y;
    if (low_bits)
#pragma unroll
      for (u32 i = 0; i < 16; i++) {
        u32 size = steps.size(i, &negative), width = low_bits_of(SixteenSteps<L>::symbol(size));
        put_bits(s->block, at, size & ((1u << width) - 1));
        at += width;
      }
    signs_at += total.x, low_at += total.y;
    __syncthreads();
  }
}

template <class L>
DEV Change dense_block(const u8* words, const u8* base, u32 n, u32 thresholds, DenseShared* shared) {
  u32 t = threadIdx.x, number = 0, state = 0, count = num_thresholds(thresholds), raw = (n * L::NBYTES + 31) / 32 * 32;
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < kLimits; i++) number += i < count && t >= (thresholds >> 8 * i & 255);
  shared->classes[t] = (u8)number;
  for (u32 i = t & 31; i < kClasses * kSymbols; i += 32) shared->counts(t >> 5)[i] = 0;
  __syncthreads();
  find_symbols<L>(words, base, n, shared);
  __syncthreads();
  if (t / 32 <= count) choose_table(shared, t / 32);
  __syncthreads();
  if (t < 32) state = put_units(shared, n);
  __syncthreads();
  if (shared->num_units == ~0u) return {kNeither, 0};
  DensePlaces places(shared, count + 1);
  u32 nbytes = (4 * places.end + count + kDenseParams + 31) / 32 * 32;
  if (nbytes >= raw || nbytes > kDenseNbytes) return {kNeither, 0};
  move_units(shared, places, count + 1, state, nbytes);
  put_signs<L>(words, base, n, places, shared);
  u8* behind = (u8*)shared->block + nbytes - count - kDenseParams;
  if (t < 4) behind[t] = (u8)(places.num_changed >> 8 * t);
  if (t < count) behind[4 + t] = (u8)(thresholds >> 8 * t);
  if (t == 32) behind[4 + count] = kExtendedDense, behind[5 + count] = (u8)tag_of(kKindExtended, count);
  return {kDense, nbytes};
}
