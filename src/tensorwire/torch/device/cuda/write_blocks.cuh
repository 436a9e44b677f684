// The blocks of new frames. Two launches:
//
// write_blocks<ENCODER>: a block of threads makes a block of whole runs, or hashes a leaf of a tensor, as the next item
// says. The items of a tensor are in order, leaves among blocks, so that words are read from memory once. A block is
// encoded into shared memory, and copied when all before it have told their sizes.
// write_others<ENCODER>: the blocks that are left: the last one of a tensor, if its last run is short; and such as
// shared memory had no room for. Their places are known, and they are encoded there.
//   frames, ends, leaves  as in new_frames.cuh; ends are zero before the first launch
//   items    two numbers each: the tensor, and its block, or its leaf with kLeaf
//   count    of the items
//   tickets  u32, zero
//   hashed   bytes of shared memory for the encoder, and then for hashes of what it has encoded
//   room     bytes of shared memory behind that, for the block; a multiple of 32
// Grid of the first: as many blocks as items, of kWriters threads; shared memory: hashed + room, and kSumsNbytes at
// least. Of the second: any number of blocks; what the encoder needs, and kSumsNbytes at least.
//
// An encoder has WORD_NBYTES and AT_ONCE, how many blocks of threads a processor has at once, and encodes n words at a
// multiple of 16 bytes, as encode_block of encode.cuh does; WHOLE says that n is a multiple of 256:
//   Encoded encode<WHOLE>(const u8* words, u32 n, u8* out, u32 capacity, u8* shared)
#pragma once
#include "copy.cuh"
#include "encode.cuh"
#include "new_frames.cuh"

constexpr u32 kLeaf = 1u << 31;
constexpr u32 kListNbytes = 256;  // of shared memory, for escapes of a warp
static_assert(encode_room_nbytes(kListNbytes) == 3248, "new_frames.py asks for so much");

template <class L>
struct Resident {
  static constexpr u32 WORD_NBYTES = L::NBYTES, AT_ONCE = 3;

  template <bool WHOLE>
  DEV Encoded encode(const u8* words, u32 n, u8* out, u32 capacity, u8* shared) {
    EncodeRoom room = room_for(shared, kListNbytes);
    Sampled sampled = sample_block<L, WHOLE>(words, n, room);
    return encode_block<L, WHOLE, false>(words, n, sampled, kAlignment, out, capacity, room, nullptr);
  }
};

// What a block of threads makes, in shared memory: registers are for words.
struct Work {
  NewFrame frame;
  const u8* words;  // of the block
  u64 place;        // where it begins
  u32 num_words;
  u32 tensor;    // its number
  u32 item;      // the block, or a leaf
  u32 checksum;  // of the block

  METHOD void begin(u32 word_nbytes) {
    u64 first = (u64)item * frame.block_words;
    words = (const u8*)frame.content + first * word_nbytes;
    num_words = (u32)min(frame.nbytes / word_nbytes - first, (u64)frame.block_words);
  }

  METHOD u64* end(u64* ends) const { return ends + frame.ends + item; }

  METHOD bool fits(u32 nbytes) const { return nbytes_of(place) + nbytes <= frame.slot_nbytes; }

  METHOD u8* at() const { return (u8*)frame.slot + nbytes_of(place); }

  METHOD void write_entry(bool stored) const {
    u64 units = (nbytes_of(place) - header_nbytes(frame, place)) / kAlignment;
    u64* index = (u64*)((u8*)frame.slot + frame.index_at);
    index[item] = pair64((u32)units | (stored ? kIsStored : 0), checksum);
  }
};

// Let one item be the work of all threads, by one warp.
DEV void begin_work(Work& work, const NewFrame* frames, const u32* item, u32 word_nbytes) {
  const u64* from = (const u64*)(frames + item[0]);
  if (threadIdx.x < sizeof(NewFrame) / 8) ((u64*)&work.frame)[threadIdx.x] = from[threadIdx.x];
  __syncwarp();
  if (threadIdx.x == 0) work.tensor = item[0], work.item = item[1], work.begin(word_nbytes);
}

DEV void write_leaf(const NewFrame& frame, u32 leaf, u64* leaves, u64* sums) {
  u64* hash = leaves + frame.leaves + 1 + 2 * leaf;
  hash_leaf<kWritingWarps>((const u8*)frame.content, frame.nbytes, leaf, sums, hash);
}

// Copy the first 16 of so many bytes, and each 16 that all threads together come to, four at a time.
DEV void copy_shared(u8* to, const u8* from, u32 nbytes) {
  constexpr u32 STEP = 16 * kWriters, AT_ONCE = 4;
  u32 at = 0;
#pragma unroll 1
  for (; at + (AT_ONCE - 1) * STEP < nbytes; at += AT_ONCE * STEP, to += AT_ONCE * STEP)
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) *(uint4*)(to + i * STEP) = *(const uint4*)(from + at + i * STEP);
#pragma unroll 1
  for (; at < nbytes; at += STEP, to += STEP) *(uint4*)to = *(const uint4*)(from + at);
}

template <class ENCODER>
GLOBAL void BOUNDS(kWriters, ENCODER::AT_ONCE)
    write_blocks(const NewFrame* __restrict__ frames, const u32* __restrict__ items, u64* ends, u64* leaves,
                 u32* tickets, u32 hashed, u32 room) {
  SHARED(u8, shared);
  SHARED_ARRAY(Work, works, 1);
  constexpr u32 W = ENCODER::WORD_NBYTES;
  Work& work = works[0];
  u64* sums = (u64*)shared;
  u8* coded = shared + hashed;
  u32 t = threadIdx.x;
  if (t < 32) {
    u32 ticket = t == 0 ? atomicAdd(tickets, 1u) : 0;
    begin_work(work, frames, items + 2 * __shfl_sync(0xffffffffu, ticket, 0), W);
  }
  __syncthreads();
  if (work.item & kLeaf) return write_leaf(work.frame, work.item & ~kLeaf, leaves, sums);
  u32 n = work.num_words;
  if (n % 256) return;

  Encoded block = ENCODER::template encode<true>(work.words, n, coded, room, shared);
  if (t == 0 && work.item) tell(work.end(ends), told(block.nbytes, kOwn));
  __syncthreads();
  bool left = !block.stored && block.nbytes > room;
  const u8* bytes = block.stored ? work.words : coded;
  if (!left) hash_sums(bytes, block.nbytes, kWritingWarps, sums);
  __syncthreads();
  if (t < 32) {
    u64 place = work.item ? end_before(ends + work.frame.ends, work.item) : first_place(work.frame, block.stored);
    if (t == 0) work.place = place, tell(work.end(ends), place + told(block.nbytes, left ? kLeft : 0));
  }
  if (t / 32 == 1 && !left) {
    u64 hash = hash_of_sums(sums, hash_padded(block.nbytes), last_of(bytes, block.nbytes));
    if (t == 32) work.checksum = (u32)hash;
  }
  __syncthreads();
  if (left || !work.fits(block.nbytes)) return;
  if (block.stored) {
    copy_pieces<uint4>(work.at(), bytes, block.nbytes, t, kWriters);
  } else {
    copy_shared(kept(work.at() + 16 * t), coded + 16 * t, block.nbytes - min(block.nbytes, 16 * t));
  }
  if (t == 0) work.write_entry(block.stored);
}

template <class ENCODER>
GLOBAL void BOUNDS(kWriters, 2)
    write_others(const NewFrame* __restrict__ frames, const u32* __restrict__ items, u64* ends, u32 count) {
  SHARED(u8, shared);
  SHARED_ARRAY(Work, works, 1);
  constexpr u32 W = ENCODER::WORD_NBYTES;
  Work& work = works[0];
#pragma unroll 1
  for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
    if (items[2 * number + 1] & kLeaf) continue;
    __syncthreads();
    if (threadIdx.x < 32) begin_work(work, frames, items + 2 * number, W);
    __syncthreads();
    const u8* words = work.words;
    u32 n = work.num_words, raw = (u32)aligned(n * W);
    u64 place = work.item ? work.end(ends)[-1] : first_place(work.frame, false);
    bool left = n % 256 || (*work.end(ends) & kLeft);
    __syncthreads();
    if (!left) continue;
    if (threadIdx.x == 0) work.place = place & ~kLeft;
    __syncthreads();
    u64 at = nbytes_of(place), behind = min(work.frame.slot_nbytes, at + raw - kAlignment);
    Encoded block = ENCODER::template encode<false>(words, n, work.at(), at < behind ? (u32)(behind - at) : 0, shared);
    __syncthreads();
    if (threadIdx.x == 0) {
      if (block.stored && work.item == 0) work.place = first_place(work.frame, true);
      tell(work.end(ends), work.place + told(block.nbytes, 0));
    }
    __syncthreads();
    if (!work.fits(block.nbytes)) continue;
    u32 nbytes = block.stored ? n * W : block.nbytes;
    const u8* bytes = block.stored ? words : work.at();
    hash_sums(bytes, nbytes, kWritingWarps, (u64*)shared);
    __syncthreads();
    if (block.stored) {
      copy_bytes(work.at(), words, nbytes, threadIdx.x, kWriters);
      if (threadIdx.x < raw - nbytes) work.at()[nbytes + threadIdx.x] = 0;
    }
    if (threadIdx.x >= 32) continue;
    u64 hash = hash_of_sums((u64*)shared, hash_padded(nbytes), last_of(bytes, nbytes));
    if (threadIdx.x == 0) work.checksum = (u32)hash, work.write_entry(block.stored);
  }
}
