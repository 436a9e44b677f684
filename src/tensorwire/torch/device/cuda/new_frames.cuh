// Frames of tensors, in slots, made in two steps: kernels write the blocks, and tell where each ends (write_blocks.cuh;
// write_steps.cuh those of relative frames); then finish_frames writes what stands before the blocks
// (finish_frames.cuh). What they share:
//
//   frames   NewFrame: the launch data of tensors, on the device as all that follows
//   ends     u64: for each block of all tensors where it ends in its frame, as places.cuh tells it
//   leaves   u64: of each tensor a number for its size, then the hashes of its leaves, two numbers each; then, in a
//            relative frame, the same of its base
//
// A frame has its encoder's number (an extension) but in one case: the header has no room for it among its zeros, and
// the first block is stored. So no frame is larger than one of the host whose blocks are all stored. Nothing is written
// behind a slot.
#pragma once
#include "hash_long.cuh"
#include "places.cuh"

constexpr u32 kWriters = 256, kWritingWarps = kWriters / 32;
constexpr u32 kSumsNbytes = kPiecesAtOnce * kStripe;
static_assert(kSumsNbytes == 8192, "new_frames.py asks for so much");
constexpr u32 kAlignment = 32;  // of blocks and frames
constexpr u32 kNumberNbytes = 16;

// The launch data of a tensor.
struct NewFrame {
  u64 content, slot;  // addresses, at multiples of 16
  u64 slot_nbytes, nbytes;
  u64 base;                  // the same; of a relative frame
  u32 leaves, ends, header;  // where its numbers begin among those of all tensors
  u32 index_at;              // in the frame
  u32 num_blocks, block_words;
};

FOLDED u64 aligned(u64 nbytes) { return (nbytes + kAlignment - 1) / kAlignment * kAlignment; }

DEV u64 index_end(const NewFrame& frame) { return frame.index_at + 8 * (u64)frame.num_blocks; }

// Where the first block begins; and whether the frame has its encoder's number.
DEV u64 first_place(const NewFrame& frame, bool stored) {
  u64 end = index_end(frame), with_number = aligned(end + kNumberNbytes);
  if (stored && with_number != aligned(end)) return told(aligned(end), kEnd);
  return told(with_number, kEnd | kNumbered);
}

// The same, of a frame of which a place is known.
DEV u64 header_nbytes(const NewFrame& frame, u64 place) { return nbytes_of(first_place(frame, !(place & kNumbered))); }

// What a tensor has among the numbers of leaves: its size, and two for each of its leaves. Those of its base follow.
DEV u32 leaf_numbers(const NewFrame& frame) { return 1 + 2 * (u32)((frame.nbytes + kLeafNbytes - 1) / kLeafNbytes); }

// The tensor that a frame is relative to, in place of its own.
DEV NewFrame base_of(NewFrame frame) {
  frame.content = frame.base, frame.leaves += leaf_numbers(frame);
  return frame;
}
