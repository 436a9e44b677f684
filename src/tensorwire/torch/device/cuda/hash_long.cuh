// H of docs/format.md of a message of any length, by all threads of a block: blocks of frames, indexes, leaves.
#pragma once
#include "hash.cuh"

constexpr u32 kPiecesAtOnce = 128;  // of which the sums are in shared memory: those of a leaf

// H of a message, in warp 0 as `merged` gives it, by WARPS warps. `data` is at a multiple of 8 bytes, `sums` is room
// for 8 * kPiecesAtOnce numbers in shared memory. A barrier stands before it ends, behind all that reads `sums`.
template <u32 WARPS>
DEV u64 hash_by_block(const u8* data, u32 nbytes, u64* sums) {
  constexpr u32 MOST = kPiecesAtOnce - 1;  // behind the pieces of a part stands some of the next one
  u32 i = threadIdx.x & 7, padded = hash_padded(nbytes), at = 0;
  u64 acc = first_accumulator(i), key = secret_at(kScrambleKey + 8 * i);
#pragma unroll 1
  for (;; at += MOST * kPiece) {
    u32 rest = nbytes - at;
    bool ends = rest <= kPiecesAtOnce * kPiece;
    hash_sums(data + at, ends ? rest : MOST * kPiece + kHashPad, WARPS, sums);
    __syncthreads();
    if (threadIdx.x < 32) {
      u32 full = ends ? (padded - at - 1) / kPiece : MOST;
#pragma unroll 1
      for (u32 piece = 0; piece < full; piece++) acc = scrambled(acc + sums[8 * piece + i], key);
      if (ends) {
        u64 last = last_of(data, nbytes);
        acc += sums[8 * full + i];
        acc = hash_product(last, secret_at(kLastKey + 8 * i), acc) + __shfl_xor_sync(0xffffffffu, last, 1);
        acc = merged(acc, padded);
      }
    }
    __syncthreads();
    if (ends) return acc;
  }
}

// Write the two numbers of the hash of a leaf of content to `hash`, by WARPS warps. `content` and `sums` are as above.
// A barrier has to follow.
template <u32 WARPS>
DEV void hash_leaf(const u8* content, u64 nbytes, u32 leaf, u64* sums, u64* hash) {
  u64 begin = (u64)leaf * kLeafNbytes;
  u32 own = (u32)min(nbytes - begin, (u64)kLeafNbytes);
  content += begin;
  hash_sums(content, own, WARPS, sums);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  u64 found = hash_of_sums(sums, hash_padded(own), last_of(content, own));
  if (threadIdx.x < 2) hash[threadIdx.x] = found;
}
