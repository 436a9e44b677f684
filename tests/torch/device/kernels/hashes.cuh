// H of messages: one for each block of threads, in all ways.
#include "hash_long.cuh"

// `shared_nbytes` is what the sums of the longest message take.
template <int WARPS>
GLOBAL void hashes(const u8* __restrict__ data, const u32* __restrict__ sizes, u32 room, u64* __restrict__ out) {
  SHARED(u64, sums);
  const u8* message = data + (u64)blockIdx.x * room;
  u32 nbytes = sizes[blockIdx.x], padded = hash_padded(nbytes), lane = threadIdx.x & 31;
  hash_sums(message, nbytes, WARPS, sums);
  __syncthreads();
  if (threadIdx.x < 32) {
    u64 hash = hash_of_sums(sums, padded, last_of(message, nbytes));
    if (lane < 2) out[6 * blockIdx.x + lane] = hash;
  }
  __syncthreads();
  u64 hash = hash_by_block<WARPS>(message, nbytes, sums);
  if (threadIdx.x >= 32) return;
  if (lane < 2) out[6 * blockIdx.x + 4 + lane] = hash;
  hash = hash_by_warp((const u64*)message, padded);  // which reads the zeros behind it
  if (lane < 2) out[6 * blockIdx.x + 2 + lane] = hash;
}
