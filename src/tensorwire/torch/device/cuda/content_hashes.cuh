// The content hashes of tensors (docs/format.md), in two launches.
//
// hash_leaves: a block of threads for each leaf. hash_messages: one for each tensor, behind it.
//   tensors  Hashed: launch data
//   items    two numbers each: the tensor, and its leaf
//   messages u64: of each tensor its size, then the hashes of its leaves, two numbers each
//   hashes   u64: two numbers for each tensor
// kHashing threads, and kHashingNbytes of shared memory.
#pragma once
#include "hash_long.cuh"

constexpr u32 kHashing = 256, kHashingWarps = kHashing / 32;
constexpr u32 kHashingNbytes = kPiecesAtOnce * kStripe;
static_assert(kHashingNbytes == 8192, "hashes.py asks for so much");

struct Hashed {
  u64 content, nbytes;  // at a multiple of 16
  u64 message;          // its first number among those of all tensors
};

GLOBAL void BOUNDS(kHashing, 4)
    hash_leaves(const Hashed* __restrict__ tensors, const uint2* __restrict__ items, u64* __restrict__ messages) {
  SHARED(u64, sums);
  uint2 item = items[blockIdx.x];
  Hashed own = tensors[item.x];
  u64* hash = messages + own.message + 1 + 2 * item.y;
  hash_leaf<kHashingWarps>((const u8*)own.content, own.nbytes, item.y, sums, hash);
}

GLOBAL void BOUNDS(kHashing, 4)
    hash_messages(const Hashed* __restrict__ tensors, u64* messages, u64* __restrict__ hashes) {
  SHARED(u64, sums);
  Hashed own = tensors[blockIdx.x];
  u64* message = messages + own.message;
  if (threadIdx.x == 0) message[0] = own.nbytes;
  __syncthreads();
  u32 leaves = (u32)((own.nbytes + kLeafNbytes - 1) / kLeafNbytes);
  u64 hash = hash_by_block<kHashingWarps>((const u8*)message, 8 + 16 * leaves, sums);
  if (threadIdx.x < 2) hashes[2 * blockIdx.x + threadIdx.x] = hash;
}
