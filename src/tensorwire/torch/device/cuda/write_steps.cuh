// The blocks of new relative frames, as write_blocks.cuh makes those of plain ones: all of it holds here too. Blocks
// are same, of extended kind sparse, or stored.
//
// write_steps<L>:
//   L           Bf16, F16, F8E4M3 or F8E5M2
//   frames, ends, leaves  as in new_frames.cuh; ends are zero
//   items       two numbers each: the tensor, and its block, or its leaf with kLeaf, or that of its base with kBaseLeaf
//   tickets     u32, zero
//   thresholds  of tensors, by choose_thresholds
// Grid: as many blocks as items, of kWriters threads. Shared memory: sizeof(SparseShared).
#pragma once
#include "thresholds.cuh"
#include "write_blocks.cuh"

constexpr u32 kBaseLeaf = 3u << 30;

static_assert(sizeof(SparseShared) == 47712, "what a launch asks for");
static_assert(kSumsNbytes <= sizeof(SparseShared::eights), "sums of hashes take the place of what was counted");

template <class L>
GLOBAL void BOUNDS(kWriters, 4) write_steps(const NewFrame* __restrict__ frames, const u32* __restrict__ items,
                                            u64* ends, u64* leaves, u32* tickets, const u32* __restrict__ thresholds) {
  SHARED(u8, memory);
  SHARED_ARRAY(Work, works, 1);
  Work& work = works[0];
  SparseShared* shared = (SparseShared*)memory;
  u64* sums = (u64*)memory;
  u32 t = threadIdx.x;
  if (t < 32) {
    u32 ticket = t == 0 ? atomicAdd(tickets, 1u) : 0;
    begin_work(work, frames, items + 2 * __shfl_sync(0xffffffffu, ticket, 0));
  }
  __syncthreads();
  if (work.item & kLeaf) {
    NewFrame frame = work.item >= kBaseLeaf ? base_of(work.frame) : work.frame;
    return write_leaf(frame, work.item & ~kBaseLeaf, leaves, sums);
  }

  const u8 *words = work.words(L::NBYTES), *base = (const u8*)work.frame.base + (words - (const u8*)work.frame.content);
  Change change = sparse_block<L>(words, base, work.num_words(L::NBYTES), thresholds[work.tensor], shared);
  bool stored = change.kind == kNeither;
  u32 nbytes = stored ? work.num_words(L::NBYTES) * L::NBYTES : change.nbytes, size = (u32)aligned(nbytes);
  if (t == 0 && work.item) tell(work.end(ends), told(size, kOwn));
  __syncthreads();
  auto find_place = [&] {
    u64 place = work.item ? end_before(ends + work.frame.ends, work.item) : first_place(work.frame, stored);
    if (t == 0) work.place = place, tell(work.end(ends), place + told(size, 0));
  };
  const u8* bytes = stored ? words : (const u8*)shared->block;
  if (nbytes) sums_of(bytes, nbytes, sums);
  __syncthreads();
  if (t < 32) find_place();
  if (t / 32 == 1) {
    u64 hash = nbytes ? hash_of(bytes, nbytes, sums) : 0;
    if (t == 32) work.checksum = (u32)hash;
  }
  __syncthreads();
  if (!work.fits(size)) return;
  copy_block(work, bytes, nbytes, size);
  if (t == 0) work.write_entry(stored);
}
