// Blocks of relative frames, one behind the other as far as they fit their places of the words' size.
#include "encode_sparse.cuh"

template <class L>
GLOBAL void BOUNDS(kSparseThreads, 4)
    sparse_blocks(const u8* __restrict__ words, const u8* __restrict__ base, const u32* __restrict__ sizes,
                  u32 thresholds, u32* __restrict__ out, uint2* __restrict__ found) {
  SHARED(u8, memory);
  SparseShared* shared = (SparseShared*)memory;
  u64 at = (u64)blockIdx.x * (kSparseWords * L::NBYTES);
  Change change = sparse_block<L>(words + at, base + at, sizes[blockIdx.x], thresholds, shared);
  __syncthreads();
  for (u32 i = threadIdx.x; i < change.nbytes / 4; i += kSparseThreads) out[at / 4 + i] = shared->block[i];
  if (threadIdx.x == 0) found[blockIdx.x] = {change.kind, change.nbytes};
}
