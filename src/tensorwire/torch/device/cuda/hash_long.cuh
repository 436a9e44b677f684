// H of docs/format.md of a message of any length, by all threads of a block: blocks of frames, indexes, leaves.
#pragma once
#include "hash.cuh"

CONSTANT u64 kFirst[8] = {kPrime32_3, kPrime1, kPrime2, kPrime3, kPrime4, kPrime32_2, kPrime5, kPrime32_1};
constexpr u32 kPiecesAtOnce = 128;  // of which the sums are in shared memory: those of a leaf

COLD u64 few_of(const u8* data, u32 nbytes, u32 at) {
  u64 value = 0;
  for (u32 i = 0; at + i < nbytes; i++) value |= (u64)data[at + i] << 8 * i;
  return value;
}

// The 8 bytes of a message at `at`, a multiple of 8, and the zeros behind it.
DEV u64 eight_of(const u8* data, u32 nbytes, u32 at) {
  return at + 8 <= nbytes ? *(const u64*)(data + at) : few_of(data, nbytes, at);
}

// H of a message, in warp 0 as `merged` gives it, by WARPS warps. `data` is at a multiple of 8 bytes, `sums` is room for
// 8 * kPiecesAtOnce numbers in shared memory. A barrier stands before it ends, behind all that reads `sums`.
template <u32 WARPS>
DEV u64 hash_by_block(const u8* data, u32 nbytes, u64* sums) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = lane & 7, padded = hash_padded(nbytes);
  u32 pieces = hash_pieces(padded);
  u64 key[4], acc = kFirst[i], scramble_key = secret_at(kScrambleKey + 8 * i), hash = 0;
#pragma unroll
  for (int j = 0; j < 4; j++) key[j] = secret_at(8 * (4 * j + (lane >> 3)) + 8 * i);
#pragma unroll 1
  for (u32 first = 0; first < pieces; first += kPiecesAtOnce) {
    u32 count = min(pieces - first, kPiecesAtOnce);
#pragma unroll 1
    for (u32 piece = warp; piece < count; piece += WARPS) {
      u64 sum = 0, plain = 0;
      u32 begin = (first + piece) * kPiece + lane * 8;
      if ((first + piece + 1) * kPiece + kStripe <= nbytes) {  // without the last stripe
#pragma unroll
        for (int j = 0; j < 4; j++) {
          u64 value = *(const u64*)(data + begin + 256 * j);
          sum += hash_product(value, key[j]), plain += value;
        }
      } else {
#pragma unroll 1
        for (int j = 0; j < 4; j++) {
          u32 at = begin + 256 * j;
          u64 value = eight_of(data, nbytes, at);
          u64 own = j == 0 ? key[0] : j == 1 ? key[1] : j == 2 ? key[2] : key[3];
          if (at < padded - kStripe) sum += hash_product(value, own), plain += value;
        }
      }
      sum += __shfl_xor_sync(0xffffffffu, plain, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 8);
      sum += __shfl_xor_sync(0xffffffffu, sum, 16);
      if (lane < 8) sums[8 * piece + lane] = sum;
    }
    __syncthreads();
    if (warp == 0)
#pragma unroll 1
      for (u32 piece = 0; piece < count; piece++) {
        acc += sums[8 * piece + i];
        if (first + piece + 1 < pieces) acc = scrambled(acc, scramble_key);
      }
    __syncthreads();
  }
  if (warp == 0) {
    u64 last = eight_of(data, nbytes, padded - kStripe + 8 * i);
    acc += hash_product(last, secret_at(kLastKey + 8 * i)) + __shfl_xor_sync(0xffffffffu, last, 1);
    hash = merged(acc, padded);
  }
  return hash;
}
