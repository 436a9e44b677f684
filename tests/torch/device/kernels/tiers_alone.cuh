// Blocks of several tiers, each encoded by a block of threads to a slot of its own.
#include "encode_tiers.cuh"

// From `starts` on, in words, the words of a block; what encode_tiers gives goes to `sizes`, two numbers each.
template <class L, u32 WIDTHS, bool WHOLE>
GLOBAL void BOUNDS(kEncoders, 3)
    tiers_alone(const u8* __restrict__ words, const u32* __restrict__ starts, u32 align, u32 slot, u32 capacity, u8* out,
                u32* sizes) {
  SHARED(u8, shared);
  TiersRoom room = tiers_room_for(shared);
  u32 start = starts[blockIdx.x], n = starts[blockIdx.x + 1] - start;
  words += (u64)start * L::NBYTES;
  Tiers<WIDTHS> tiers = sample_tiers<L, WIDTHS>(words, n, room);
  Encoded block = encode_tiers<L, WIDTHS, WHOLE>(words, n, tiers, align, out + (u64)blockIdx.x * slot, capacity, room);
  if (threadIdx.x == 0) sizes[2 * blockIdx.x] = block.nbytes, sizes[2 * blockIdx.x + 1] = block.stored;
}
