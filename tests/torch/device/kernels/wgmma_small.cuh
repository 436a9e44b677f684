// A product of 64 by 16 and 16 by 32 numbers by a warpgroup, to prove the stand-in: right, or with one error.
#include "dev.h"

template <int WHAT>
GLOBAL void one_product(const u32* __restrict__ a, const u32* __restrict__ b, float* __restrict__ out, u32 bits) {
  SHARED(u8, shared);
  const u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, row = (threadIdx.x >> 5) * 16 + g;
  // Matrices of 8 inputs by 16 bytes: the eight of inputs, then the half of the step.
  for (u32 i = threadIdx.x; i < 32 * 8; i += 128) {
    u32 input = i >> 3, pair = i & 7;
    if (WHAT == 8 && input == 31) continue;
    *(u32*)(shared + (input >> 3) * 256 + (pair >> 2) * 128 + (input & 7) * 16 + (pair & 3) * 4) = b[i];
  }
  if (WHAT != 1) fence_for_wgmma();
  if (WHAT != 3) sync_some(1, 128);
  u32 own[4] = {a[row * 8 + t], a[(row + 8) * 8 + t], a[row * 8 + t + 4], a[(row + 8) * 8 + t + 4]};
  float c[4][4] = {};
  u64 matrices = (u64)16 << 32 | (u64)8 << 16 | (shared_address(shared) >> 4);
  if (WHAT == 9 && threadIdx.x >= 64) matrices ^= (u64)24 << 32 | (u64)24 << 16;
  if (WHAT == 11) matrices = bits == 0x3fff ? (matrices | bits) : (matrices | (u64)bits << 32);
  if (WHAT != 2) wgmma_fence();
  if (WHAT == 10) own[0] = a[threadIdx.x & 1];
  wgmma_bf16<4>(c, own, matrices);
  wgmma_commit();
  if (WHAT == 4) own[1] = ~own[1];
  if (WHAT == 5 && threadIdx.x == 5) *(u32*)shared = 0;
  if (WHAT == 7) c[1][1] = 0;
  if (WHAT != 6) wgmma_wait<0>();
  for (u32 n = 0; n < 4; n++)
    for (u32 i = 0; i < 4; i++) out[(row + (i >> 1) * 8) * 32 + n * 8 + t * 2 + (i & 1)] = c[n][i];
}
