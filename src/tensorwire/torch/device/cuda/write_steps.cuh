// The blocks of new relative frames, as write_blocks.cuh makes those of plain ones: all of it holds here too. Blocks
// are same, of extended kinds sparse and dense, or stored.
//
// write_steps<L>:
//   L           Bf16, F16, F8E4M3 or F8E5M2
//   frames, ends, leaves  as in new_frames.cuh; ends are zero
//   items       two numbers each: the tensor, and its block, or its leaf with kLeaf, or that of its base with kBaseLeaf
//   tickets     u32, zero
//   thresholds  of tensors, by choose_thresholds
// Grid: as many blocks as items, of kWriters threads. Shared memory: sizeof(SparseShared).
#pragma once
#include "encode_dense.cuh"
#include "thresholds.cuh"
#include "write_blocks.cuh"

constexpr u32 kBaseLeaf = 3u << 30;

static_assert(sizeof(SparseShared) == 47712, "what a launch asks for");
static_assert(kSumsNbytes <= sizeof(SparseShared::eights), "sums of hashes take the place of what was counted");
static_assert((kDenseNbytes / kPiece + 2) * 8 <= kHashedNumbers, "and here, of what was chosen");

// What few blocks of threads do apart, so that the others need not pass it.
COLD void write_leaf_of(const Work* work, u64* leaves, u64* sums) {
  NewFrame frame = work->item >= kBaseLeaf ? base_of(work->frame) : work->frame;
  write_leaf(frame, work->item & ~kBaseLeaf, leaves, sums);
}

COLD void copy_stored(const Work* work, const u8* words, u32 nbytes, u32 size) {
  copy_bytes(work->at(), words, nbytes, threadIdx.x, kWriters);
  if (threadIdx.x < size - nbytes) work->at()[nbytes + threadIdx.x] = 0;
}

template <class L>
GLOBAL void BOUNDS(kWriters, 4) write_steps(const NewFrame* __restrict__ frames, const u32* __restrict__ items,
                                            u64* ends, u64* leaves, u32* tickets, const u32* __restrict__ thresholds) {
  SHARED(u8, memory);
  SHARED_ARRAY(Work, works, 1);
  constexpr u32 W = L::NBYTES;
  Work& work = works[0];
  SparseShared* shared = (SparseShared*)memory;
  u64* sums = (u64*)memory;
  u32 t = threadIdx.x;
  if (t < 32) {
    u32 ticket = t == 0 ? atomicAdd(tickets, 1u) : 0;
    begin_work(work, frames, items + 2 * __shfl_sync(0xffffffffu, ticket, 0), W);
  }
  __syncthreads();
  if (work.item & kLeaf) return write_leaf_of(&work, leaves, sums);

  const u8 *words = work.words, *base = (const u8*)work.frame.base + (words - (const u8*)work.frame.content);
  Change change = sparse_block<L>(words, base, work.num_words, thresholds[work.tensor], shared);
  if (change.kind == kNeither)
    change = dense_block<L>(words, base, work.num_words, thresholds[work.tensor], (DenseShared*)memory);
  bool stored = change.kind == kNeither;
  u32 nbytes = stored ? work.num_words * W : change.nbytes, size = (u32)aligned(nbytes);
  if (t == 0 && work.item) tell(work.end(ends), told(size, kOwn));
  __syncthreads();
  const u8* coded = (const u8*)(change.kind == kDense ? ((DenseShared*)memory)->block : shared->block);
  const u8* bytes = stored ? work.words : coded;
  if (nbytes) hash_sums(bytes, nbytes, kWritingWarps, sums);
  __syncthreads();
  if (!stored && t >= 64) return;  // two warps do the rest
  if (t < 32) {
    u64 place = work.item ? end_before(ends + work.frame.ends, work.item) : first_place(work.frame, stored);
    if (t == 0) work.place = place, tell(work.end(ends), place + told(size, 0));
  } else if (t < 64) {
    u64 hash = nbytes ? hash_of_sums(sums, hash_padded(nbytes), last_of(bytes, nbytes)) : 0;
    if (t == 32) work.checksum = (u32)hash;
  }
  __syncthreads();
  if (!work.fits(size)) return;
  if (t == 0) work.write_entry(stored);
  if (stored) return copy_stored(&work, bytes, nbytes, size);
#pragma unroll 1
  for (u32 i = t; i < nbytes / 16; i += 64) ((uint4*)work.at())[i] = ((const uint4*)coded)[i];
}
