// Kernels that prove the stand-in. Most have one error each.
#include "dev.h"

// Each thread stores its number.
template <int NOTHING>
GLOBAL void stores(const u32* __restrict__ numbers, u32* __restrict__ out) {
  u32 own = blockIdx.x * blockDim.x + threadIdx.x;
  out[own] = numbers[own];
}

// Each thread stores the number of its neighbour. BARRIER: 0 none, 1 of the block, 2 of the warp.
template <int BARRIER, int DISTANCE>
GLOBAL void neighbours(const u32* __restrict__ numbers, u32* __restrict__ out) {
  SHARED(u32, shared);
  shared[threadIdx.x] = numbers[threadIdx.x];
  if (BARRIER == 1) __syncthreads();
  if (BARRIER == 2) __syncwarp();
  out[threadIdx.x] = shared[(threadIdx.x + DISTANCE) % blockDim.x];
}

// Each thread copies 16 bytes to shared memory, and stores what it copied. It should have waited.
template <int NOTHING>
GLOBAL void copied(const uint4* __restrict__ numbers, uint4* __restrict__ out) {
  SHARED(uint4, shared);
  copy16(shared_address(shared + threadIdx.x), numbers + threadIdx.x);
  copies_commit();
  out[threadIdx.x] = shared[threadIdx.x];
}

// Thread 0 does what `what` says.
template <int NOTHING>
GLOBAL void errs(const u32* __restrict__ in, u32* __restrict__ out, u32 count, u32 what) {
  SHARED(u32, shared);
  SHARED_ARRAY(u32, fixed, 4);
  if (threadIdx.x) return;
  if (what == 1) out[0] = in[count];
  if (what == 2) out[count] = 0;
  if (what == 3) const_cast<u32*>(in)[0] = 0;
  if (what == 4) out[0] = ((const u8*)in)[-1];
  if (what == 5) out[0] = *(const u32*)((const u8*)in + 2);
  if (what == 6) shared[count] = 0;
  if (what == 7) fixed[count] = 0;
  if (what == 8) __syncwarp();
  if (what == 9) *(uint2*)(out + 1) = *(const uint2*)in;
  if (what == 10) copy16(shared_address(shared), in + 4);
  if (what == 11) atomicAdd(out + count, 1u);
  if (what == 12) out[0] = *(volatile u32*)16;
  if (what == 13) kept(shared)[0] = 0;
}

// A vote that half of a warp does not reach.
template <int NOTHING>
GLOBAL void diverges(u32* __restrict__ out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __ballot_sync(0xffffffffu, true);
  else
    __syncthreads();
}
