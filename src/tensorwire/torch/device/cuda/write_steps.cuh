// The blocks of new relative frames, as write_blocks.cuh makes those of plain ones: all of it holds here too. Blocks
// are same, of extended kind sparse, or stored.
//
// write_steps<L>:
//   L           Bf16, F16, F8E4M3 or F8E5M2
//   frames, ends, leaves  as in new_frames.cuh; ends are zero
//   items       two numbers each: the tensor, and its block, or its leaf with kLeaf, or that of its base with kBaseLeaf
//   tickets     u32, zero
//   thresholds  of tensors, by choose_thresholds
// Grid: as many blocks as items, of kWriters threads. Shared memory: sizeof(SparseShared), kStepsNbytes.
#pragma once
#include "thresholds.cuh"
#include "write_blocks.cuh"

constexpr u32 kBaseLeaf = 3u << 30, kStepsNbytes = sizeof(SparseShared);

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
  take_work(work, frames, items, tickets);
  if (work.item >= kBaseLeaf) return write_leaf(base_of(work.frame), work.item & ~kBaseLeaf, leaves, sums);
  if (work.item & kLeaf) return write_leaf(work.frame, work.item & ~kLeaf, leaves, sums);

  u64 first = (u64)work.item * work.frame.block_words * L::NBYTES;
  const u8 *words = (const u8*)work.frame.content + first, *base = (const u8*)work.frame.base + first;
  Change change = sparse_block<L>(words, base, work.num_words(L::NBYTES), thresholds[work.tensor], shared);
  bool stored = change.kind == kNeither;
  u32 nbytes = stored ? work.num_words(L::NBYTES) * L::NBYTES : change.nbytes, size = (u32)aligned(nbytes);
  if (t == 0 && work.item) tell(ends + work.frame.ends + work.item, told(size, kOwn));
  __syncthreads();
  auto find_place = [&] {
    u64* all = ends + work.frame.ends;
    u64 place = work.item ? end_before(all, work.item) : first_place(work.frame, stored);
    if (t == 0) work.place = place, tell(all + work.item, place + told(size, 0));
  };
  if (change.kind == kSparse) {
    hash_block((const u8*)shared->block, nbytes, sums, &work.checksum, find_place);
  } else {
    if (t < 32) find_place();
    if (t == 0) work.checksum = 0;  // of a block that is same
    __syncthreads();
  }
  u64 at = nbytes_of(work.place);
  if (at + size > work.frame.slot_nbytes) return;
  u8* slot = (u8*)work.frame.slot;
  copy_bytes(slot + at, stored ? words : (const u8*)shared->block, nbytes, t, kWriters);
  if (t < size - nbytes) slot[at + nbytes + t] = 0;
  if (stored) {
    __syncthreads();
    hash_block(slot + at, size, sums, &work.checksum, [] {});
  }
  if (t == 0) {
    u32 entry = (u32)((at - header_nbytes(work.frame, work.place)) / kAlignment) | (stored ? kStored : 0);
    ((u64*)(slot + work.frame.index_at))[work.item] = pair64(entry, work.checksum);
  }
}
