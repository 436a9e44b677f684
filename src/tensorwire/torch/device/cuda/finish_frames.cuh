// New frames finished: the encoder's number, the checksum of the index, the hashes and the header of each frame, and
// its size: 0 where it does not fit into its slot. A relative frame whose blocks are all same has no index.
//
//   frames, ends, leaves  as in new_frames.cuh
//   headers  u64: the fixed part and the shape of each frame, zero where this kernel writes
//   hashes   u64: the content hash of each tensor, two numbers each; null: it follows from the leaves
//   base_hashes  u64: the same of the bases
//   sizes    i64
// Grid: as many blocks as tensors, of kWriters threads. Shared memory: kSumsNbytes + kHeaderNbytes.
#pragma once
#include "labels.cuh"
#include "new_frames.cuh"

constexpr u32 kHeaderNbytes = 768;  // of the longest fixed part and shape, padded for H
static_assert(kHeaderNbytes == 768, "new_frames.py asks for so much");

GLOBAL void BOUNDS(kWriters, 3) finish_frames(const NewFrame* __restrict__ frames, const u64* __restrict__ headers,
                                              const u64* __restrict__ ends, u64* leaves, const u64* __restrict__ hashes,
                                              const u64* __restrict__ base_hashes, long long* __restrict__ sizes) {
  SHARED(u8, shared);
  u64 *sums = (u64*)shared, *header = (u64*)(shared + kSumsNbytes);
  NewFrame frame = frames[blockIdx.x];
  bool relative = headers[frame.header + 1] >> 32 & 1;  // bit 0 of required_features
  u64 end = frame.num_blocks ? ends[frame.ends + frame.num_blocks - 1] : first_place(frame, true);
  if (relative && nbytes_of(end) == header_nbytes(frame, end)) frame.num_blocks = 0, end = first_place(frame, false);
  u64 nbytes = nbytes_of(end);
  bool fits = nbytes <= frame.slot_nbytes;
  u32 t = threadIdx.x;
  if (t == 0) sizes[blockIdx.x] = fits ? (long long)nbytes : 0;
  if (!fits) return;

  u8* slot = (u8*)frame.slot;
  u64 begin = header_nbytes(frame, end);
  if (t < (begin - index_end(frame)) / 8) {
    u64 number = t == 0 ? pair64(kEncoderTag, 4) : t == 1 ? kEncoderNumber : 0;
    ((u64*)(slot + index_end(frame)))[t] = end & kNumbered ? number : 0;
  }
  u32 num_words = frame.index_at / 8;
  if (t < kHeaderNbytes / 8) header[t] = t < num_words ? headers[frame.header + t] : 0;
  // The hashes of the tensor, of its base and of the index.
#pragma unroll 1
  for (u32 which = 0; which < 3; which++) {
    const u64* known = which == 0 ? hashes : which == 1 ? base_hashes : nullptr;
    u64 *message = leaves + frame.leaves + which * leaf_numbers(frame), hash;
    u32 message_nbytes = 8 * leaf_numbers(frame);
    if (which == 1 && !relative) continue;
    if (which == 2) message = (u64*)(slot + frame.index_at), message_nbytes = (u32)begin - frame.index_at;
    if (which < 2 && t == 0 && !known) message[0] = frame.nbytes;
    __syncthreads();
    if (known)
      hash = known[2 * blockIdx.x + (t & 1)];
    else
      hash = hash_by_block<kWritingWarps>((const u8*)message, message_nbytes, sums);
    if (which < 2 && t < 2) header[(which ? kFieldBaseHash : kFieldContentHash) + t] = hash;
    if (which == 2 && t == 0) header[kFieldIndexChecksum] = hash;
  }
  if (t >= 32) return;
  if (t == 0) header[kFieldHeader] = begin, header[kFieldData] = nbytes - begin;
  __syncwarp();
  u64 checksum = hash_by_warp(header, hash_padded(frame.index_at));
  __syncwarp();
  if (t == 0) header[kFieldHeaderChecksum] = checksum;
  __syncwarp();
  for (u32 i = t; i < num_words; i += 32) ((u64*)slot)[i] = header[i];
}
