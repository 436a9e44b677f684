// Kernels that prove the stand-in: some are right, some have one error each.
#include "dev.h"

// Each thread stores the sum of all numbers of its block before its own.
template <int THREADS>
GLOBAL void BOUNDS(THREADS, 1) sums_before(const u32* __restrict__ numbers, u32* __restrict__ out) {
  SHARED_ARRAY(u32, totals, THREADS / 32);
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, own = numbers[blockIdx.x * THREADS + threadIdx.x], sum = own;
  for (u32 d = 1; d < 32; d *= 2) {
    u32 below = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += below;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  for (u32 w = 0; w < warp; w++) sum += totals[w];
  out[blockIdx.x * THREADS + threadIdx.x] = sum - own;
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

// Each thread copies 16 bytes to shared memory, two steps ahead, and stores what it copied.
template <bool WAITS>
GLOBAL void copied_ahead(const uint4* __restrict__ numbers, uint4* __restrict__ out, u32 steps) {
  SHARED(u8, shared);
  shared_at own = shared_address(shared) + threadIdx.x * 48;
  for (u32 step = 0; step < 2; step++) {
    if (step < steps) copy16(own + step * 16, numbers + step * blockDim.x + threadIdx.x);
    copies_commit();
  }
  for (u32 step = 0; step < steps; step++) {
    u32 ahead = step + 2;
    if (ahead < steps) copy16(own + ahead % 3 * 16, numbers + ahead * blockDim.x + threadIdx.x);
    copies_commit();
    if (WAITS) copies_wait<2>();
    out[step * blockDim.x + threadIdx.x] = lds128(own + step % 3 * 16);
  }
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
}

// A vote that half of a warp does not reach.
template <int NOTHING>
GLOBAL void diverges(u32* __restrict__ out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __ballot_sync(0xffffffffu, true);
  else
    __syncthreads();
}

// c = a * b for one tile.
template <bool F16>
GLOBAL void tile(const u16* __restrict__ a, const u16* __restrict__ b, float* __restrict__ c) {
  u32 g = threadIdx.x / 4, t = threadIdx.x % 4, left[4], right[2];
  float sums[4] = {0, 0, 0, 0};
  for (u32 i = 0; i < 4; i++) left[i] = *(const u32*)(a + (g + i % 2 * 8) * 16 + t * 2 + i / 2 * 8);
  for (u32 i = 0; i < 2; i++) right[i] = *(const u32*)(b + g * 16 + t * 2 + i * 8);
  F16 ? mma_f16(sums, left, right) : mma_bf16(sums, left, right);
  for (u32 i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = sums[i];
}

// How many threads of all blocks have an odd number, and the largest number of all.
template <int NOTHING>
GLOBAL void counted(const u32* __restrict__ numbers, u32* __restrict__ out) {
  SHARED_ARRAY(u32, count, 1);
  u32 own = numbers[blockIdx.x * blockDim.x + threadIdx.x];
  if (threadIdx.x == 0) count[0] = 0;
  __syncthreads();
  if (own & 1) atomicAdd(count, 1u);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(out, count[0]);
  atomicMax(out + 1, own);
}
