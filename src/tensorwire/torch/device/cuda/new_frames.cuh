// Frames of tensors, in slots, made in two steps: kernels write the blocks and tell where each ends (write_blocks.cuh;
// write_steps.cuh of relative frames), then finish_frames writes the encoder's number, the checksum of the index, the
// content hash and the header of each frame, and its size: 0 where it does not fit into its slot. Nothing is written
// behind a slot.
//
//   frames   NewFrame: the launch data of tensors, on the device as all that follows
//   headers  u64: the fixed part and the shape of each frame, zero where this kernel writes
//   ends     u64: for each block of all tensors where it ends in its frame, as places.cuh tells it
//   leaves   u64: of each tensor a number for its size, then the hashes of its leaves, two numbers each; in a relative
//            frame then the same of its base
//   hashes   u64: the content hash of each tensor, two numbers each; null: it follows from the leaves
//   base_hashes  u64: the same of bases
//   sizes    i64
// Grid: as many blocks as tensors, of kWriters threads. Shared memory: kFinishNbytes.
//
// A frame has its encoder's number (an extension) but in one case: the header has no room for it among its zeros, and
// the first block is stored. So no frame is larger than one of the host whose blocks are all stored.
#pragma once
#include "hash.cuh"
#include "places.cuh"

constexpr u32 kWriters = 256, kWritingWarps = kWriters / 32;
constexpr u32 kMostPieces = kLeafNbytes / kPiece - 1;  // whose sums are made at once
constexpr u32 kSumsNbytes = (kMostPieces + 1) * kStripe,
              kFinishNbytes = kSumsNbytes + 768;  // the longest header, padded
constexpr u32 kAlignment = 32;                    // of blocks and frames
constexpr u32 kNumberNbytes = 16;
constexpr u64 kNumberTag = 1, kEncoderNumber = 2;

// The launch data of a tensor.
struct NewFrame {
  u64 content, slot;  // addresses, at multiples of 16
  u64 slot_nbytes, nbytes;
  u64 base;                  // the same; 0 for a plain frame
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

DEV u32 num_leaves(const NewFrame& frame) { return (u32)((frame.nbytes + kLeafNbytes - 1) / kLeafNbytes); }

// The tensor that a frame is relative to, in place of its own.
DEV NewFrame base_of(NewFrame frame) {
  frame.content = frame.base, frame.leaves += 1 + 2 * num_leaves(frame);
  return frame;
}

// The content hash of a tensor, in warp 0 as `merged` gives it.
DEV u64 content_hash(const NewFrame& frame, const u64* known, u64* leaves, u64* sums) {
  if (known) return known[2 * blockIdx.x + (threadIdx.x & 1)];
  u64* message = leaves + frame.leaves;
  if (threadIdx.x == 0) message[0] = frame.nbytes;
  __syncthreads();
  return hash_by_block<kMostPieces>((const u8*)message, 8 + 16 * num_leaves(frame), kWritingWarps, sums);
}

// What the fixed part has besides what the host knows, by numbers of 64 bits.
enum Field : u32 {
  kFieldHeader = 7,
  kFieldData = 8,
  kFieldContentHash = 10,
  kFieldBaseHash = 12,
  kFieldIndexChecksum = 14,
  kFieldHeaderChecksum = 15
};

GLOBAL void BOUNDS(kWriters, 3)
    finish_frames(const NewFrame* __restrict__ frames, const u64* __restrict__ headers, const u64* __restrict__ ends,
                  u64* leaves, const u64* __restrict__ hashes, const u64* __restrict__ base_hashes,
                  long long* __restrict__ sizes) {
  SHARED(u8, shared);
  u64 *sums = (u64*)shared, *header = (u64*)(shared + kSumsNbytes);
  NewFrame frame = frames[blockIdx.x];
  u64 end = frame.num_blocks ? ends[frame.ends + frame.num_blocks - 1] : first_place(frame, true);
  if (frame.base && nbytes_of(end) == header_nbytes(frame, end)) frame.num_blocks = 0, end = first_place(frame, false);
  u64 nbytes = nbytes_of(end);
  bool fits = nbytes <= frame.slot_nbytes;
  u32 t = threadIdx.x;
  if (t == 0) sizes[blockIdx.x] = fits ? (long long)nbytes : 0;
  if (!fits) return;

  u8* slot = (u8*)frame.slot;
  u64 begin = header_nbytes(frame, end);
  if (t < (begin - index_end(frame)) / 8) {
    u64 number = t == 0 ? pair64(kNumberTag, 4) : t == 1 ? kEncoderNumber : 0;
    ((u64*)(slot + index_end(frame)))[t] = end & kNumbered ? number : 0;
  }
  u32 num_words = frame.index_at / 8;
  if (t < (kFinishNbytes - kSumsNbytes) / 8) header[t] = t < num_words ? headers[frame.header + t] : 0;
  __syncthreads();
  u64 hash = content_hash(frame, hashes, leaves, sums), base_hash = 0, checksum;
  if (frame.base) base_hash = content_hash(base_of(frame), base_hashes, leaves, sums);
  checksum = hash_by_block<kMostPieces>(slot + frame.index_at, (u32)begin - frame.index_at, kWritingWarps, sums);
  if (t >= 32) return;
  if (t < 2) header[kFieldContentHash + t] = hash, header[kFieldBaseHash + t] = base_hash;
  if (t == 0) {
    header[kFieldHeader] = begin;
    header[kFieldData] = nbytes - begin;
    header[kFieldIndexChecksum] = checksum;
  }
  __syncwarp();
  checksum = hash_by_warp(header, hash_padded(frame.index_at));
  __syncwarp();
  if (t == 0) header[kFieldHeaderChecksum] = checksum;
  __syncwarp();
  for (u32 i = t; i < num_words; i += 32) ((u64*)slot)[i] = header[i];
}
