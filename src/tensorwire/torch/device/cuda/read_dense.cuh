// The streams of a block of kind dense, read: tables of frequencies by a warp; symbols by a warp, a state in each lane;
// signs and low bits by all threads, each those of 16 words.
#pragma once
#include "dense.cuh"
#include "step_tiles.cuh"

constexpr u32 kWordsOfThread = kTileWords / kRelativeThreads;
static_assert(kWordsOfThread == 16, "four registers of symbols, and as many signs as a lane takes at once");
static_assert(kMostClasses == kRelativeWarps, "a warp fills the slots of a class");

struct DenseShared {
  uint4 tile[kRelativeThreads];  // bytes: classes of words, then their symbols
  u8 slots[kMostClasses * kSlots];
  u32 codes[kMostClasses *
            kSymbols];  // of a symbol in a class: its frequency, and where its slots begin in the low half
  u8 classes[256];      // by exponent
  u32 sums[kRelativeWarps];
  u32 states_at, units_at, signs_at;  // in numbers of 32, 16 and 32 bits
  u32 num_units, num_changed, streams_nbytes;
  u32 wrong;
};

// The tables -------------------------------------------------------------------------------------------------------

// A table, by a warp: the frequency of the symbol that is the lane's number. False if it is not valid.
DEV bool read_table(Bits& bits, u32* frequency) {
  u32 lane = threadIdx.x & 31, head = take(bits, 24), first = head & 255, last = head >> 8 & 255, implied = head >> 16;
  u32 length = 0, sum = 0, own = 0;
  if (first > implied || implied > last) return false;
#pragma unroll 1
  for (u32 symbol = first; symbol <= last; symbol++) {
    if (symbol == implied) continue;
    u32 code = window(bits), step = code ? __ffs(code) - 1 : 32;
    if (step > 2 * kMostLength || bits.at >= bits.end) return false;
    length += step & 1 ? 0 - (step + 1) / 2 : step / 2;  // what would be below 0 becomes too large
    if (length > kMostLength) return false;
    bits.at += step + 1;
    if (length == 0) continue;
    u32 top_bits = min(length - 1, kMostTopBits);
    u32 found = (1u << top_bits | take(bits, top_bits)) << (length - 1 - top_bits);
    sum += found;
    if (lane == min(symbol, kSymbols - 1)) own += found;
  }
  if (sum == 0 || sum >= kSlots || take(bits, (0 - bits.at) & 7)) return false;
  if (lane == min(implied, kSymbols - 1)) own += kSlots - sum;
  *frequency = own;
  return bits.at <= bits.end;
}

// Tables, and where the streams stand, by warp 0. False if that is not valid. Nothing but low bits may end too late
// then.
DEV bool open_dense(const u8* block, u32 nbytes, u32 classes, u32 n, DenseShared* s) {
  u32 lane = threadIdx.x, streams_nbytes = nbytes - kDenseParams + 1 - classes, total;
  const u32* words = (const u32*)block;
  Bits bits = {words, 32, nbytes / 4 - 2, 8 * streams_nbytes};
#pragma unroll 1
  for (u32 c = 0; c < classes; c++) {
    u32 frequency;
    if (!read_table(bits, &frequency)) return false;
    s->codes[c * kSymbols + lane] = frequency << 16 | sum_before(frequency, lane, &total);
  }
  u32 num_units = words[0], num_changed = 0;
  for (u32 i = 0; i < 4; i++) num_changed |= (u32)block[streams_nbytes + i] << 8 * i;
  if (num_units > n || num_changed > n) return false;
  u32 states_at = (bits.at + 31) / 32, units_at = 2 * (states_at + 32), units_end = units_at + num_units;
  u32 signs_at = (units_end + 1) / 2, low_at = signs_at + (num_changed + 31) / 32;
  if (4 * low_at > streams_nbytes) return false;
  if (lane == 0) {
    s->states_at = states_at, s->units_at = units_at, s->signs_at = signs_at;
    s->num_units = num_units, s->num_changed = num_changed, s->streams_nbytes = streams_nbytes;
  }
  return are_zero_bits(words, bits.at, 32 * states_at) && are_zero_bits(words, 16 * units_end, 32 * signs_at) &&
         are_zero_bits(words, 32 * signs_at + num_changed, 32 * low_at);
}

// Which symbol each slot of a class has, by a warp.
DEV void fill_slots(DenseShared* s, u32 c) {
#pragma unroll 1
  for (u32 symbol = 0; symbol < kSymbols; symbol++) {
    u32 code = s->codes[c * kSymbols + symbol], end = (code & 0xffff) + (code >> 16);
#pragma unroll 1
    for (u32 i = (code & 0xffff) + (threadIdx.x & 31); i < end; i += 32) s->slots[c * kSlots + i] = (u8)symbol;
  }
}

// Symbols ----------------------------------------------------------------------------------------------------------

// The entropy stream, read by a warp.
struct SymbolReader {
  u32 state, next;

  // Symbols of the words whose classes are in the tile, to the same places; zeros behind them.
  METHOD void read(const u8* block, u32 count, DenseShared* s) {
    const u16* units = (const u16*)block + s->units_at;
    u8* tile = (u8*)s->tile;
    u32 lane = threadIdx.x & 31, below = (1u << lane) - 1;
#pragma unroll 1
    for (u32 i = lane; i - lane < count; i += 32) {
      bool exists = i < count;
      u32 c = tile[i], slot = state & (kSlots - 1), symbol = s->slots[c * kSlots + slot];
      u32 code = s->codes[c * kSymbols + symbol];
      if (exists) state = (code >> 16) * (state >> kSlotsLog2) + slot - (code & 0xffff);
      u32 hungry = __ballot_sync(0xffffffffu, exists && state < kLowestState);
      u32 place = min(next + __popc(hungry & below), s->num_units);  // one behind the last is in the block
      if (hungry >> lane & 1) state = state << 16 | units[place];
      next += __popc(hungry);
      tile[i] = exists ? (u8)symbol : 0;
    }
  }

  METHOD bool is_through(u32 num_units) const {
    return !__any_sync(0xffffffffu, state != kLowestState || next != num_units);
  }
};

// Words ------------------------------------------------------------------------------------------------------------

DEV u32 symbol_of(const u32* symbols, u32 i) { return symbols[i / 4] >> i % 4 * 8 & 255; }

// Move a thread's words. False if a step is not valid.
template <class T>
DEV bool move_sixteen(Sixteen<sizeof(T)>& words, const u32* symbols, Bits signs, Bits low, bool ordered) {
  constexpr u32 MOST = 1u << (8 * sizeof(T) - 1);
  u32 negative = take(signs, 16);
  bool right = true;
#pragma unroll
  for (u32 i = 0; i < 16; i++) {
    u32 symbol = symbol_of(symbols, i), size = symbol;
    if (symbol > kLastPlain) {
      u32 width = low_bits_of(symbol);
      size = (2 | (symbol & 1)) << width | take(low, width);
      right &= size + 1 - (negative & 1) <= MOST;
    }
    words.set(i, moved_word((T)words.word(i), negative & 1 ? 0 - size : size, ordered));
    if (symbol) negative >>= 1;
  }
  return right;
}

// How many of the words before a thread's have changed, and in the high half how many low bits their sizes have;
// `total` gets the same of a tile. A barrier stands inside.
DEV u32 places_of(const u32* symbols, DenseShared* s, u32* total) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, own = 0, sum = 0;
#pragma unroll
  for (u32 i = 0; i < 16; i++) {
    u32 symbol = symbol_of(symbols, i);
    own += (symbol ? 1 : 0) + (low_bits_of(symbol) << 16);
  }
  own = sum_before(own, lane, &sum);
  if (lane == 0) s->sums[warp] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (u32 w = 0; w < kRelativeWarps; w++) {
    if (w == warp) own += sum;
    sum += s->sums[w];
  }
  *total = sum;
  return own;
}

// Whether streams end where signs and low bits do, by a warp.
DEV bool ends_well(const u8* block, u32 signs_end, u32 low_end, u32 alignment, const SymbolReader& reader,
                   const DenseShared* s) {
  u32 used = (low_end + 31) / 32 * 4, end = s->streams_nbytes;
  if (!reader.is_through(s->num_units) || signs_end != 32 * s->signs_at + s->num_changed) return false;
  return used <= end && end - used < alignment && are_zero_bits((const u32*)block, low_end, 8 * end);
}
