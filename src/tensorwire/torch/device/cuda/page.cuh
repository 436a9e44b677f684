// Pages as frames: one block each, of profile resident.
//
// encode_pages<L, WHOLE>
//   L             Bf16, F16, F8E4M3 or F8E5M2
//   WHOLE         whether each page begins at a multiple of 16 bytes and has whole runs
//   pool          u8: num_pages pages of page_words words, 1 to 65,536, one behind the other
//   page_ids      i32 or i64, as id_nbytes says: which page each frame is of
//   out           u8: slots, slot_stride bytes apart, each at a multiple of 16 bytes
//   sizes         u32: of each frame; 0 if there is no such page, or if its frame is larger than slot_nbytes. The slot
//                 may hold anything then; nothing is written behind it.
//   slot_nbytes   bytes of a slot that may be written, at least frame_nbytes
//   frame_nbytes  a multiple of 32 bytes: of a frame, by padding, unless its block takes more
//   Grid (frames, 1, 1), kEncoders threads. Shared memory: 64 bytes for each KiB of a page, and kPageRoom.
#pragma once
#include "encode.cuh"
#include "labels.cuh"

constexpr u32 kPageHeader = 160;  // fixed part, one dimension, one entry of the index, the encoder's number
constexpr u32 kPageAlignment = 32;
constexpr u32 kHeaderWords = 17, kIndexWords = 3;  // of 8 bytes: what each checksum is of
constexpr u32 kMessage = kHashPad / 8;

// Bytes of each warp's list of escapes. The sums of the block take their place, 64 bytes for each KiB of it.
constexpr u32 kPageList = 1024, kPageRoom = encode_room_nbytes(kPageList);
static_assert(kPageRoom == 9392, "page_writing.py asks for so much");

// The header, by one warp: all its hashes and the frame's, from the sums of content and block. Hashes that need nothing
// of each other are made side by side, by eight lanes each. `messages` has room for three.
template <class L>
DEV void write_header(u8* frame, const Encoded& block, u32 n, u32 padding, const u64* content_sums, u64 content_last,
                      const u64* block_sums, u64 block_last, u64* messages) {
  u32 lane = threadIdx.x & 31, nbytes = n * L::NBYTES;
  u64 *header = messages, *index = messages + kMessage, *root = index + kMessage;
#pragma unroll 1
  for (u32 i = lane; i < 3 * kMessage; i += 32) messages[i] = 0;
  bool of_block = lane & 8;
  u64 hash = hash_of_sums(of_block ? block_sums : content_sums, hash_padded(of_block ? block.nbytes : nbytes),
                          of_block ? block_last : content_last);
  __syncwarp();
  if (lane < 2) root[1 + lane] = hash;
  if (lane == 8) index[0] = pair64(block.stored ? kIsStored : 0, (u32)hash);
  if (lane == 0) {
    root[0] = nbytes;
    index[1] = kEncoderTag | (u64)sizeof(u32) << 32, index[2] = kEncoderNumber;
    header[0] = kMagic;
    header[1] = 1 | 3 << 8 | 1 << 24;           // version, profile, one dimension
    header[2] = (u64)(5 << 8 | 5 << 16) << 32;  // alignments
    header[3] = layout_bytes<L>();
    header[4] = dtype_name<L>();
    header[6] = nbytes;
    header[kFieldHeader] = kPageHeader;
    header[kFieldData] = block.nbytes;
    header[9] = pair64((n + 255) & ~255u, padding);
    header[16] = n;
  }
  __syncwarp();
  hash = hash_by_warp(of_block ? index : root, kHashPad);
  if (lane < 2) header[kFieldContentHash + lane] = hash;
  if (lane == 8) header[kFieldIndexChecksum] = hash;
  __syncwarp();
  hash = hash_by_warp(header, kHashPad);
  __syncwarp();
  if (lane == 0) header[kFieldHeaderChecksum] = hash;
  __syncwarp();
  if (lane < kHeaderWords + kIndexWords)
    ((u64*)frame)[lane] = lane < kHeaderWords ? header[lane] : index[lane - kHeaderWords];
}

template <class L, bool WHOLE>
GLOBAL void BOUNDS(kEncoders, 3)
    encode_pages(const u8* __restrict__ pool, const u8* __restrict__ page_ids, u8* out, u32* sizes, u32 num_pages,
                 u32 page_words, u32 id_nbytes, u32 slot_stride, u32 slot_nbytes, u32 frame_nbytes) {
  SHARED(u8, shared);
  SHARED_ARRAY(u64, messages, 3 * kMessage);
  u32 n = page_words, nbytes = n * L::NBYTES, t = threadIdx.x;
  u64 id = page_id(page_ids, blockIdx.x, id_nbytes);
  if (id >= num_pages) {
    if (t == 0) sizes[blockIdx.x] = 0;
    return;
  }
  const u8* words = pool + id * nbytes;
  u8 *frame = out + (u64)blockIdx.x * slot_stride, *data = frame + kPageHeader;
  u64* content_sums = (u64*)shared;
  EncodeRoom room = room_for(shared + hash_pieces(hash_padded(nbytes)) * 64, kPageList);
  Sampled sampled = sample_block<L, WHOLE>(words, n, room);
  Encoded block = encode_block<L, WHOLE, true>(words, n, sampled, kPageAlignment, data, slot_nbytes - kPageHeader, room,
                                               content_sums);
  if (block.nbytes > slot_nbytes - kPageHeader) {
    if (t == 0) sizes[blockIdx.x] = 0;
    return;
  }
  u32 whole = kPageHeader + block.nbytes, padding = frame_nbytes > whole ? frame_nbytes - whole : 0;
#pragma unroll 1
  for (u32 i = 16 * t; i < padding; i += 16 * kEncoders) *(uint4*)(data + block.nbytes + i) = {0, 0, 0, 0};
  __syncthreads();
  u64* block_sums = (u64*)room.lists;  // which are copied
  hash_sums(data, block.nbytes, kEncodingWarps, block_sums);
  __syncthreads();
  if (t >= 32) return;
  write_header<L>(frame, block, n, padding, content_sums, last_of<WHOLE>(words, nbytes), block_sums,
                  last_of(data, block.nbytes), messages);
  if (t == 0) sizes[blockIdx.x] = whole + padding;
}
