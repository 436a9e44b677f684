// The blocks of new frames. A block of threads makes one, or hashes a leaf of a tensor, as the next item says. The
// items of a tensor are in order, leaves among blocks, so that words are read from memory once. A block is encoded
// into shared memory, and copied when all before it have told their sizes. One that is longer than that is encoded once
// more, to its place.
//
// write_blocks<ENCODER>:
//   frames, ends, leaves  as in new_frames.cuh; ends are zero
//   items    two numbers each: the tensor, and its block, or its leaf with kLeaf
//   tickets  u32, zero
//   hashed   bytes of shared memory for the encoder, and then for hashes of what it has encoded
//   room     bytes of shared memory behind that, for the block; a multiple of 32
// Grid: as many blocks as items, of kWriters threads. Shared memory: hashed + room, and kSumsNbytes at least.
//
// An encoder has WORD_NBYTES, and encodes n words at a multiple of 16 bytes, as encode_block of encode.cuh does; WHOLE
// says that n is a multiple of 256:
//   Encoded encode<WHOLE>(const u8* words, u32 n, u8* out, u32 capacity, u8* shared)
#pragma once
#include "copy.cuh"
#include "encode.cuh"
#include "new_frames.cuh"

constexpr u32 kLeaf = 1u << 31, kStored = 1u << 31;
constexpr u32 kListNbytes = 256;  // of shared memory, for escapes of a warp

template <class L>
struct Resident {
  static constexpr u32 WORD_NBYTES = L::NBYTES;

  template <bool WHOLE>
  DEV Encoded encode(const u8* words, u32 n, u8* out, u32 capacity, u8* shared) {
    EncodeRoom room = room_for(shared, kListNbytes);
    Sampled sampled = sample_block<L, WHOLE>(words, n, room);
    return encode_block<L, WHOLE, false>(words, n, sampled, kAlignment, out, capacity, room, nullptr);
  }
};

DEV void write_leaf(const NewFrame& frame, u32 leaf, u64* leaves, u64* sums) {
  const u8* content = (const u8*)frame.content + (u64)leaf * kLeafNbytes;
  u32 nbytes = (u32)min(frame.nbytes - (u64)leaf * kLeafNbytes, (u64)kLeafNbytes), t = threadIdx.x;
  hash_sums(content, nbytes, kWritingWarps, sums);
  __syncthreads();
  if (t >= 32) return;
  u64 hash = hash_of_sums(sums, hash_padded(nbytes), last_of(content, nbytes));
  if (t < 2) leaves[frame.leaves + 1 + 2 * leaf + t] = hash;
}

// The hash of a block's bytes to `checksum`, and by the first warp what `place` does meanwhile.
template <class Place>
DEV void hash_block(const u8* bytes, u32 nbytes, u64* sums, u32* checksum, Place place) {
  hash_sums(bytes, nbytes, kWritingWarps, sums);
  __syncthreads();
  if (threadIdx.x < 32) place();
  if (threadIdx.x / 32 == 1) {
    u64 hash = hash_of_sums(sums, hash_padded(nbytes), last_of(bytes, nbytes));
    if (threadIdx.x == 32) *checksum = (u32)hash;
  }
  __syncthreads();
}

// What few blocks need: one that is short, or that shared memory did not hold.
template <class ENCODER>
COLD Encoded encode_any(const u8* words, u32 n, u8* to, u32 nbytes, u8* shared) {
  return ENCODER::template encode<false>(words, n, to, nbytes, shared);
}

// What a block of threads makes, in shared memory: registers are for words.
struct Work {
  NewFrame frame;
  u64 place;     // where the block begins
  u32 tensor;    // its number
  u32 item;      // the block, or a leaf
  u32 checksum;  // of the block

  METHOD u32 num_words(u32 word_nbytes) const {
    u64 words = frame.nbytes / word_nbytes - (u64)item * frame.block_words;
    return (u32)min(words, (u64)frame.block_words);
  }

  METHOD const u8* words(u32 word_nbytes) const {
    return (const u8*)frame.content + (u64)item * frame.block_words * word_nbytes;
  }
};

// The work of the next ticket, for all threads.
DEV void take_work(Work& work, const NewFrame* frames, const u32* items, u32* tickets) {
  if (threadIdx.x < 32) {
    u32 ticket = 0;
    if (threadIdx.x == 0) ticket = atomicAdd(tickets, 1u);
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    const u64* from = (const u64*)(frames + items[2 * ticket]);
    if (threadIdx.x < sizeof(NewFrame) / 8) ((u64*)&work.frame)[threadIdx.x] = from[threadIdx.x];
    if (threadIdx.x == 0) work.tensor = items[2 * ticket], work.item = items[2 * ticket + 1];
  }
  __syncthreads();
}

template <class ENCODER>
GLOBAL void BOUNDS(kWriters, 4) write_blocks(const NewFrame* __restrict__ frames, const u32* __restrict__ items,
                                             u64* ends, u64* leaves, u32* tickets, u32 hashed, u32 room) {
  SHARED(u8, shared);
  SHARED_ARRAY(Work, works, 1);
  constexpr u32 W = ENCODER::WORD_NBYTES;
  Work& work = works[0];
  u64* sums = (u64*)shared;
  u8* coded = shared + hashed;
  u32 t = threadIdx.x;
  take_work(work, frames, items, tickets);
  if (work.item & kLeaf) return write_leaf(work.frame, work.item & ~kLeaf, leaves, sums);

  u32 n = work.num_words(W);
  Encoded encoded = n % 256 ? encode_any<ENCODER>(work.words(W), n, coded, room, shared)
                            : ENCODER::template encode<true>(work.words(W), n, coded, room, shared);
  if (t == 0 && work.item) tell(ends + work.frame.ends + work.item, told(encoded.nbytes, kOwn));
  __syncthreads();
  auto find_place = [&] {
    u64* first = ends + work.frame.ends;
    u64 place = work.item ? end_before(first, work.item) : first_place(work.frame, encoded.stored);
    if (t == 0) work.place = place, tell(first + work.item, place + told(encoded.nbytes, 0));
  };
  bool moved = encoded.stored || encoded.nbytes <= room;
  const u8* bytes = encoded.stored ? work.words(W) : coded;
  u32 nbytes = encoded.stored ? work.num_words(W) * W : encoded.nbytes;
  if (moved) {
    hash_block(bytes, nbytes, sums, &work.checksum, find_place);
  } else {
    if (t < 32) find_place();
    __syncthreads();
  }
  u64 at = nbytes_of(work.place);
  if (at + encoded.nbytes > work.frame.slot_nbytes) return;
  u8* slot = (u8*)work.frame.slot;
  if (moved) {
    copy_bytes(slot + at, bytes, nbytes, t, kWriters);
    if (t < encoded.nbytes - nbytes) slot[at + nbytes + t] = 0;
  } else {
    encode_any<ENCODER>(work.words(W), work.num_words(W), slot + at, nbytes, shared);
    __syncthreads();
    hash_block(slot + at, nbytes, sums, &work.checksum, [] {});
  }
  if (t == 0) {
    u32 entry = (u32)((at - header_nbytes(work.frame, work.place)) / kAlignment) | (encoded.stored ? kStored : 0);
    ((u64*)(slot + work.frame.index_at))[work.item] = pair64(entry, work.checksum);
  }
}
