// Blocks of several tiers, each encoded by a block of threads to a slot of its own.
#include "encode_tiers.cuh"

// From `starts` on, in words, the words of a block; what encode_tiers gives goes to `sizes`, two numbers each.
template <class L, u32 WIDTHS>
GLOBAL void BOUNDS(kEncoders, 2) tiers_alone(const u8* __restrict__ words, const u32* __restrict__ starts, u32 align,
                                             u32 slot, u32 capacity, u8* out, u32* sizes) {
  SHARED(u8, shared);
  TiersRoom room = tiers_room_for(shared);
  u32 start = starts[blockIdx.x], n = starts[blockIdx.x + 1] - start;
  words += (u64)start * L::NBYTES;
  out += (u64)blockIdx.x * slot;
  Tiers<WIDTHS> tiers = sample_tiers<L, WIDTHS>(words, n, room);
  bool whole = n % 256 == 0 && start * L::NBYTES % 16 == 0;
  Encoded block = whole ? encode_tiers<L, WIDTHS, true>(words, n, tiers, align, out, capacity, room)
                        : encode_tiers<L, WIDTHS, false>(words, n, tiers, align, out, capacity, room);
  if (threadIdx.x == 0) sizes[2 * blockIdx.x] = block.nbytes, sizes[2 * blockIdx.x + 1] = block.stored;
}
