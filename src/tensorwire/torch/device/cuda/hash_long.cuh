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
