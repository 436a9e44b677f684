// The classes of the words of a tensor that is encoded relative to a base: about a quarter of the changed words in
// each. So the chance that a word changes is about the same within a class, which is what Rice codes want.
//
// choose_thresholds<L>:
//   L           Bf16, F16, F8E4M3 or F8E5M2
//   frames      NewFrame, on the device as all that follows
//   numbers     u64: which tensors, all of this layout
//   thresholds  u32, for each tensor of the call: up to three ascending exponents, a byte each, and in the highest byte
//               how many they are
// Grid: as many blocks as numbers, of kWriters threads; no dynamic shared memory.
//
// It looks at kSampledEights times eight words, or at all. Where none of these changed, there is one class.
#pragma once
#include "encode_sparse.cuh"
#include "new_frames.cuh"

constexpr u32 kSampledLog2 = 13, kSampledEights = 1 << kSampledLog2;

// The eight to look at: one in each of as many equal parts, not at the same place in all, which might be one column of
// a matrix.
DEV u64 sampled_eight(u32 number, u64 full) {
  if (full <= kSampledEights) return number;
  u64 begin = number * full >> kSampledLog2, length = full >> kSampledLog2;
  return begin + ((u64)(number * 0x9E3779B1u >> 16) * length >> 16);
}

template <class L>
GLOBAL void BOUNDS(kWriters, 4)
    choose_thresholds(const NewFrame* __restrict__ frames, const u64* __restrict__ numbers, u32* thresholds) {
  typedef Packed<L> P;
  SHARED_ARRAY(u32, changed, 256);  // by exponent; then of all lower exponents
  SHARED_ARRAY(uint2, sums, kWritingWarps);
  SHARED_ARRAY(u32, nearest, kLimits);
  u32 t = threadIdx.x, number = (u32)numbers[blockIdx.x];
  const u8 *words = (const u8*)frames[number].content, *base = (const u8*)frames[number].base;
  u64 full = frames[number].nbytes / (8 * L::NBYTES);
  changed[t] = 0;
  if (t < kLimits) nearest[t] = ~0u;
  __syncthreads();
#pragma unroll 4
  for (u32 i = t; i < min(full, (u64)kSampledEights); i += kWriters) {
    u32 own[P::NREGISTERS], old[P::NREGISTERS];
    u64 at = sampled_eight(i, full) * (8 * L::NBYTES);
    P::load(own, words + at), P::load(old, base + at);
#pragma unroll
    for (u32 j = 0; j < P::NREGISTERS; j++) {
      u32 differ = P::differ(own[j], old[j]) & P::TOP;
      for (; differ; differ &= differ - 1)
        atomicAdd(changed + exponent_of<L>(old[j] >> (__ffs(differ) - 8 * L::NBYTES)), 1u);
    }
  }
  __syncthreads();
  uint2 total, before = sums_before({changed[t], 0}, sums, total);
  changed[t] = before.x;
#pragma unroll
  for (u32 i = 0; i < kLimits; i++) {  // the exponent below which there are about (i + 1) / 4
    int far = (int)(kClasses * before.x - (i + 1) * total.x);
    if (before.x && before.x < total.x) atomicMin(nearest + i, (u32)(far < 0 ? -far : far) << 8 | t);
  }
  __syncthreads();
  if (t) return;
  u32 found = 0, count = 0, last = 0;
  for (u32 i = 0; i < kLimits; i++) {
    u32 exponent = nearest[i] & 255;
    if (nearest[i] == ~0u || exponent == last) continue;
    found |= exponent << 8 * count, count++, last = exponent;
  }
  thresholds[number] = found | count << 24;
}
