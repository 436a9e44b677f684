// Blocks of profile resident, encoded: kind cascade2 with one tier and the rest verbatim, constant, or stored.
//
//   Sampled sampled = sample_block<L, WHOLE>(words, n, room);
//   Encoded block = encode_block<L, WHOLE, SUMS>(words, n, sampled, align, out, capacity, room, sums);
//
//   L         Bf16, F16, F8E4M3 or F8E5M2
//   WHOLE     whether the words begin at a multiple of 16 bytes, and all runs are full; else they begin anywhere
//   SUMS      whether `sums` gets those of H of the words (hash.cuh), complete for hash_of_sums
//   n         of the words, 1 to kMostEncodedWords
//   align     A of the frame
//   out       at a multiple of 16 bytes, in global or in shared memory
//   capacity  bytes of it that may be written
//   room      of shared memory, by room_for
//
// All kEncoders threads of a block of threads take part. Warps take consecutive runs, so that their lists of escapes
// stand in order, and meet once, when all have counted theirs. What they write is there behind a barrier.
#pragma once
#include "blocks.cuh"
#include "encode_runs.cuh"

constexpr u32 kEncoders = 256, kEncodingWarps = kEncoders / 32;
constexpr u32 kMostEncodedWords = 1 << 17;
constexpr u32 kOneTierDescriptor = 15;  // lo, a2 to a5, n2 to n6, extended kind, tag
constexpr u32 kMostEscapes = 65535;
constexpr u32 kSampled = 1024, kSamplesOfThread = kSampled / kEncoders;

// Shared memory of an encoder. A warp with more escapes than `list_nbytes` goes over its runs that have some twice.
struct EncodeRoom {
  u32* counters;  // kCounters
  u8* lists;
  u32 list_nbytes;
};
// Exponents, and zeros behind them; the choice; escapes of warps.
constexpr u32 kCounters = 256 + 32 + 4 + kEncodingWarps;
constexpr u32 kChoice = 256 + 32, kUnlike = kChoice + 1, kNotConstant = kChoice + 2, kFound = kChoice + 4;

FOLDED u32 pairs_of_warp(u32 n) { return ((n / 256 + 1) / 2 + kEncodingWarps - 1) / kEncodingWarps; }
static_assert(pairs_of_warp(kMostEncodedWords) == 32, "a warp has a bit for each of its pairs of runs");

FOLDED u32 encode_room_nbytes(u32 list_nbytes) { return kCounters * 4 + kEncodingWarps * list_nbytes; }

DEV EncodeRoom room_for(u8* shared, u32 list_nbytes) { return {(u32*)shared, shared + kCounters * 4, list_nbytes}; }

struct Sampled {
  u32 lo;
  bool alike;  // all words that were looked at are equal
};

struct Encoded {
  u32 nbytes;  // that the block takes; more than the capacity: it was not written, or in part
  u32 stored;  // 1 if it is
  u32 escapes;
};

// The interval -----------------------------------------------------------------------------------------------------

// Choose the interval by up to kSampled words, and see whether they are equal. Where intervals have as many words, the
// lowest is taken, as exponents reach farther down than up; but one that does not need its last exponent before others.
template <class L, bool WHOLE>
DEV Sampled sample_block(const u8* words, u32 n, const EncodeRoom& room) {
  typedef OneTier<L> Tier;
  u32 t = threadIdx.x, share = n / kEncoders, first = word_at<L>(words, 0);
  u32* counters = room.counters;
  counters[t] = 0;
  if (t < 36) counters[256 + t] = 0;
  __syncthreads();
  u32 unlike = 0;
  const auto count = [&](u32 place) {
    u32 word = word_at<L>(words, place);
    unlike |= word ^ first;
    atomicAdd(&counters[exponent_of<L>(word)], 1u);
  };
  if (n > kSampled) {
    // Four neighbours from a place in each share that is never the same: content may repeat from one share to the next.
    u32 place = t * share + (t * 158 % 256 * (share - kSamplesOfThread) >> 8);
#pragma unroll
    for (u32 i = 0; i < kSamplesOfThread; i++) count(place + i);
  } else {
#pragma unroll 1
    for (u32 place = t; place < n; place += kEncoders) count(place);
  }
  if (__any_sync(0xffffffffu, unlike) && (t & 31) == 0) atomicOr(&counters[kUnlike], 1u);
  __syncthreads();
  u32 most = 0;
  if (t <= Tier::MOST_LO) {
#pragma unroll
    for (u32 i = 0; i < Tier::NAMED; i++) most += counters[t + i];
    most = (2 * most + (counters[t + Tier::NAMED - 1] == 0)) << 8 | (255 - t);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if ((t & 31) == 0) atomicMax(&counters[kChoice], most);
  __syncthreads();
  return {255 - (counters[kChoice] & 255), counters[kUnlike] == 0};
}

// Blocks ------------------------------------------------------------------------------------------------------------

// Whether all words are equal.
template <class L>
DEV bool is_constant(const u8* words, u32 n, const EncodeRoom& room) {
  u32 first = word_at<L>(words, 0);
  bool unlike = false;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < n; i += kEncoders) unlike |= word_at<L>(words, i) != first;
  if (unlike) atomicOr(&room.counters[kNotConstant], 1u);
  __syncthreads();
  return room.counters[kNotConstant] == 0;
}

// Zeros from byte `end` of a block of nbytes on, and what stands at its end: descriptor(i) is the i-th of so many
// bytes, 15 at most. Blocks have a multiple of 32 bytes.
template <class Descriptor>
DEV void finish_block(u8* out, u32 end, u32 nbytes, u32 descriptor_nbytes, Descriptor descriptor) {
#pragma unroll 1
  for (u32 at = end + threadIdx.x, begin = nbytes - descriptor_nbytes; at < nbytes; at += kEncoders)
    out[at] = at < begin ? 0 : (u8)descriptor(at - begin);
}

template <class L, bool WHOLE>
DEV void store_block(const u8* words, u32 n, u8* out, u32 raw) {
  u32 nbytes = n * L::NBYTES;
#pragma unroll 1
  for (u32 at = 16 * threadIdx.x; at < raw; at += 16 * kEncoders) {
    u32 four[4] = {0, 0, 0, 0};
    if constexpr (WHOLE) {
      if (at < nbytes) load_words<4>(four, (const u32*)(words + at));
    } else {
#pragma unroll
      for (u32 b = 0; b < 16; b++)
        if (at + b < nbytes) four[b / 4] |= (u32)words[at + b] << 8 * (b % 4);
    }
    store_words<4>((u32*)(out + at), four);
  }
}

// Streams of a block but its escapes.
template <class L>
DEV u32 one_tier_nbytes(u32 n) {
  return 4 * (field_nwords(n, L::REST_BITS) + field_nwords(n, OneTier<L>::WIDTH));
}

// What escapes of the pairs of a warp that `escaping` tells, from `first` on, and of the run that is short; how many.
// The list gets as many as it has room for.
template <class L, bool WHOLE>
DEV u32 list_escapes(const u8* words, u32 n, u32 lo, u8* out, u32 first, u32 escaping, u8* list, u32 list_nbytes) {
  Encoding<L, WHOLE> block(words, (u32*)out, n, lo);
  u32 found = 0;
#pragma unroll 1
  for (; escaping; escaping &= escaping - 1)
    found = list_pair(block, first + __ffs(escaping) - 1, list, list_nbytes, found);
  if (!WHOLE && threadIdx.x >> 5 == kEncodingWarps - 1 && n % 256)
    found = encode_short_run(block, lo, list, list_nbytes, found);
  return found;
}

// The same for a warp whose list was too short: to where all of them go.
template <class L, bool WHOLE>
COLD void write_escapes(const u8* words, u32 n, u32 lo, u8* out, u32 first, u32 escaping, u8* to, u32 found) {
  list_escapes<L, WHOLE>(words, n, lo, out, first, escaping, to, found);
}

// The escapes of a warp.
struct Escapes {
  u32 first, escaping;  // as list_escapes takes them
  u32 found, earlier;   // how many there are, and in all warps before
};

// Encode all streams but the escapes, which are listed; how many there are in all.
template <class L, bool WHOLE, bool SUMS>
DEV u32 encode_streams(const u8* words, u32 n, u32 lo, u8* out, const EncodeRoom& room, u64* sums, Escapes& own) {
  Encoding<L, WHOLE> block(words, (u32*)out, n, lo);
  u32 warp = threadIdx.x >> 5, each = pairs_of_warp(n), runs = n >> 8, first = min(warp * each, (runs + 1) / 2);
  u32 end = min(first + each, (runs + 1) / 2);
  own = {first, 0, 0, 0};
  u32 pair = encode_pairs<L, WHOLE, SUMS, 2, true>(block, first, min(end, runs / 2), own.escaping, sums);
  encode_pairs<L, WHOLE, SUMS, 1, false>(block, pair, end, own.escaping, sums);
  if (first < end) own.escaping >>= 32 - (end - first);
  u8* list = room.lists + warp * room.list_nbytes;
  if (own.escaping || !WHOLE)
    own.found = list_escapes<L, WHOLE>(words, n, lo, out, first, own.escaping, list, room.list_nbytes);
  if (block.lane == 0) room.counters[kFound + warp] = own.found;
  __syncthreads();
  u32 count = block.lane < kEncodingWarps ? room.counters[kFound + block.lane] : 0;
  own.earlier = __reduce_add_sync(0xffffffffu, block.lane < warp ? count : 0);
  return __reduce_add_sync(0xffffffffu, count);
}

// How many words escape, where the streams are not written. A barrier is in it.
template <class L>
COLD u32 count_escapes(const u8* words, u32 n, u32 lo, u32* counters) {
  u32 found = 0, lane = threadIdx.x & 31;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < n; i += kEncoders)
    found += exponent_of<L>(word_at<L>(words, i)) - lo >= OneTier<L>::NAMED;
  found = __reduce_add_sync(0xffffffffu, found);
  if (lane == 0) counters[kFound + (threadIdx.x >> 5)] = found;
  __syncthreads();
  return __reduce_add_sync(0xffffffffu, lane < kEncodingWarps ? counters[kFound + lane] : 0);
}

template <class L, bool WHOLE, bool SUMS>
DEV Encoded encode_block(const u8* words, u32 n, Sampled sampled, u32 align, u8* out, u32 capacity,
                         const EncodeRoom& room, u64* sums) {
  typedef OneTier<L> Tier;
  constexpr bool FROM_REGISTERS = SUMS && L::NBYTES == 2;
  u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  u32 raw = (n * L::NBYTES + align - 1) & ~(align - 1), streams = one_tier_nbytes<L>(n);
  const auto nbytes_with = [&](u32 escapes) {
    return (((streams + escapes + 3) & ~3u) + kOneTierDescriptor + align - 1) & ~(align - 1);
  };
  u32 nbytes = nbytes_with(0), escapes = 0;
  bool constant = sampled.alike && raw > align && is_constant<L>(words, n, room);
  bool smaller = !constant && nbytes < raw, coded = smaller && nbytes <= capacity;
  if (smaller && !coded) {
    escapes = count_escapes<L>(words, n, sampled.lo, room.counters);
    nbytes = nbytes_with(escapes);
  }
  if (coded) {
    Escapes own;
    escapes = encode_streams<L, WHOLE, FROM_REGISTERS>(words, n, sampled.lo, out, room, sums, own);
    u32 end = streams + escapes;
    nbytes = nbytes_with(escapes);
    if (nbytes < raw && escapes <= kMostEscapes && nbytes <= capacity) {
      u8 *list = room.lists + warp * room.list_nbytes, *to = out + streams + own.earlier;
      if (own.found > room.list_nbytes)
        write_escapes<L, WHOLE>(words, n, sampled.lo, out, own.first, own.escaping, to, own.found);
      else
#pragma unroll 1
        for (u32 i = lane; i < own.found; i += 32) to[i] = list[i];
      finish_block(out, end, nbytes, kOneTierDescriptor, [&](u32 i) -> u32 {
        return i == 0    ? sampled.lo
               : i == 3  ? escapes
               : i == 4  ? escapes >> 8
               : i == 13 ? kExtendedCascade2
               : i == 14 ? tag_of(kKindExtended, 4 - Tier::WIDTH)
                         : 0;
      });
    }
  }
  if (FROM_REGISTERS && coded) {
    if (warp == 0) complete_sums<L, WHOLE>(words, n, sums);
  } else if (SUMS) {
    hash_sums<WHOLE>(words, n * L::NBYTES, kEncodingWarps, sums);
  }
  if (constant) {
    u32 word = word_at<L>(words, 0);
    if (align <= capacity)
      finish_block(out, 0, align, L::NBYTES + 1,
                   [&](u32 i) -> u32 { return i == L::NBYTES ? tag_of(kKindConstant) : word >> 8 * i; });
    return {align, 0, 0};
  }
  if (nbytes < raw && escapes <= kMostEscapes) return {nbytes, 0, escapes};
  if (raw <= capacity) store_block<L, WHOLE>(words, n, out, raw);
  return {raw, 1, escapes};
}
