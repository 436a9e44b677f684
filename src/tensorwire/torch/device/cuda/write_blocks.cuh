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

template <class ENCODER>
GLOBAL void BOUNDS(kWriters, 4)
    write_blocks(const NewFrame* __restrict__ frames, const u32* __restrict__ items, u64* ends, u64* leaves,
                 u32* tickets, u32 hashed, u32 room) {
  SHARED(u8, shared);
  SHARED_ARRAY(u64, begin, 1);
  SHARED_ARRAY(u32, checksum, 1);
  u64* sums = (u64*)shared;
  u32 ticket = take_ticket(tickets, checksum), t = threadIdx.x;
  NewFrame frame = frames[items[2 * ticket]];
  u32 block = items[2 * ticket + 1];
  if (block & kLeaf) return write_leaf(frame, block & ~kLeaf, leaves, sums);

  u64 first = (u64)block * frame.block_words;
  u32 n = (u32)min(frame.nbytes / ENCODER::WORD_NBYTES - first, (u64)frame.block_words);
  const u8* words = (const u8*)frame.content + first * ENCODER::WORD_NBYTES;
  u8 *coded = shared + hashed, *slot = (u8*)frame.slot;
  Encoded encoded = n % 256 ? encode_any<ENCODER>(words, n, coded, room, shared)
                            : ENCODER::template encode<true>(words, n, coded, room, shared);
  u64* own = ends + frame.ends + block;
  if (t == 0 && block) tell(own, told(encoded.nbytes, kOwn));
  __syncthreads();
  auto find_place = [&] {
    u64 place = block ? end_before(ends + frame.ends, block) : first_place(frame, encoded.stored);
    if (t == 0) *begin = place, tell(own, place + told(encoded.nbytes, 0));
  };
  bool moved = encoded.stored || encoded.nbytes <= room;
  const u8* bytes = encoded.stored ? words : coded;
  u32 nbytes = encoded.stored ? n * ENCODER::WORD_NBYTES : encoded.nbytes;
  if (moved) {
    hash_block(bytes, nbytes, sums, checksum, find_place);
  } else {
    if (t < 32) find_place();
    __syncthreads();
  }
  u64 place = *begin, at = nbytes_of(place);
  if (at + encoded.nbytes > frame.slot_nbytes) return;
  if (moved) {
    copy_bytes(slot + at, bytes, nbytes, t, kWriters);
    if (t < encoded.nbytes - nbytes) slot[at + nbytes + t] = 0;
  } else {
    encode_any<ENCODER>(words, n, slot + at, nbytes, shared);
    __syncthreads();
    hash_block(slot + at, nbytes, sums, checksum, [] {});
  }
  if (t == 0) {
    u32 entry = (u32)((at - header_nbytes(frame, place)) / kAlignment) | (encoded.stored ? kStored : 0);
    ((u64*)(slot + frame.index_at))[block] = pair64(entry, *checksum);
  }
}
