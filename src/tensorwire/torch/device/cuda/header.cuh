// The header of a frame, checked by a block of threads in the order of docs/format.md: steps 1 to 8.
//
//   copy_header(frame, nbytes, room);       // all threads
//   __syncthreads();
//   check_header_by_warps(room, nbytes);    // all threads; then a barrier, and room.verdict
//   check_index(frame, room, nbytes);       // all threads, of a plain frame with no more than one block a thread;
//   likewise
//
// `nbytes` is what there is to read from the frame's first byte on, which is at a multiple of 16 bytes: a multiple of
// 32, as frames have. Bytes may follow the frame. Nothing is read behind `nbytes`, whatever the bytes say.
#pragma once
#include "frame.cuh"
#include "hash.cuh"
#include "status.h"

// Checks in their order. Of several that fail the first one counts, with its status.
enum Check : u32 {
  kOfHeader,
  kOfHeaderSum,
  kOfPlace,
  kOfIndexSum,
  kOfIndex,
  kOfExtensions,
  kOfEnd,
  kOfPadding,
  kOfBlockSum,
  kOfKind,
  kOfBlock,
  kOfKernel
};
constexpr u32 kNoneFails = 0xffffffff;

DEV void refuse(u32* verdict, Check check, Status status) { atomicMin(verdict, check << 8 | status); }

DEV Status status_of(u32 verdict) { return verdict == kNoneFails ? kDone : (Status)(verdict & 255); }

constexpr u32 kFixedNbytes = 128, kMostDims = 64, kProfileEnec = 0, kProfileResident = 3;
constexpr u32 kHeadNwords = (kFixedNbytes + 8 * kMostDims + kHashPad) / kHashPad * kHashPad / 8;
constexpr u32 kIndexSumWord = 14, kChecksumWord = 15;  // of the fixed part
constexpr u32 kNotCopied = 0xffffffff;
constexpr u32 kMostIndexNbytes = 4096;  // with extensions, and with what the frame's alignment adds
constexpr u64 kMagic = 0x0a1a0a0d46575493;
constexpr u64 kMostContent = 1ull << 53, kMostHeaderNbytes = 1ull << 37;
constexpr u32 kMostPadding = 1 << 22, kMostBlockWords = 1 << 18, kLeastBlockWords = 256, kMostBits = 1024;

// What a block of threads keeps of a header in shared memory, 8 bytes at a time.
struct HeaderRoom {
  u64 head[kHeadNwords];                         // fixed part and shape, with 0 as checksum; then zeros
  u64 index[(kMostIndexNbytes + kHashPad) / 8];  // what stands behind the shape; then zeros
  u64 checksum;                                  // of the header
  u32 index_nbytes;                              // kNotCopied if it is too long, or not all there
  u32 verdict;                                   // the first check that fails << 8 | its status

  METHOD u32 ndim() const { return (u32)(head[1] >> 24) & 255; }
  METHOD u32 unit_log2() const { return (u32)(head[2] >> 40) & 255; }
  METHOD u32 features() const { return (u32)(head[1] >> 32); }
  METHOD u32 profile() const { return (u32)(head[1] >> 8) & 255; }
  METHOD u32 bits() const { return (u32)(head[3] >> 48); }
  METHOD u64 layout() const { return head[3] & 0xffffffffff; }
  METHOD u64 content_nbytes() const { return head[6]; }
  METHOD u64 header_nbytes() const { return head[7]; }
  METHOD u64 data_nbytes() const { return head[8]; }
  METHOD u32 block_words() const { return (u32)head[9]; }
  METHOD u32 padding_nbytes() const { return (u32)(head[9] >> 32); }
  // Of a block: where it begins behind the header, in units, and what else the index says of it.
  METHOD u32 entry(u32 block) const { return ((const u32*)index)[2 * block]; }
  METHOD u32 place(u32 block) const { return entry(block) & 0x7fffffff; }
  METHOD bool is_stored(u32 block) const { return entry(block) >> 31; }
  METHOD u32& checksum_of(u32 block) { return ((u32*)index)[2 * block + 1]; }
};

DEV u32 dims_of(const u8* frame, u32 nbytes) { return nbytes < kFixedNbytes ? 0 : min((u32)frame[11], kMostDims); }

DEV void copy_header(const u8* frame, u32 nbytes, HeaderRoom& room) {
  u32 begin = kFixedNbytes + 8 * dims_of(frame, nbytes), available = min(begin, nbytes), length = kNotCopied;
  const u64* words = (const u64*)frame;
  u64 end = available < kFixedNbytes ? 0 : words[7];
  if (end >= begin && end <= nbytes && end - begin <= kMostIndexNbytes && end % 8 == 0) length = (u32)end - begin;
  for (u32 i = threadIdx.x; i < kHeadNwords; i += blockDim.x) {
    u64 value = 8 * i < available ? words[i] : 0;
    room.head[i] = i == kChecksumWord ? 0 : value;
    if (i == kChecksumWord) room.checksum = value;
  }
  u32 padded = length == kNotCopied ? 0 : hash_padded(length);
  for (u32 i = threadIdx.x; 8 * i < padded; i += blockDim.x) room.index[i] = 8 * i < length ? words[begin / 8 + i] : 0;
  if (threadIdx.x == 0) room.index_nbytes = length, room.verdict = kNoneFails;
}

// The layout, the bits of an element, two reserved bytes and the dtype's name.
DEV bool has_valid_label(const u8* head) {
  u32 width = head[24], exponent = head[25], rest = head[26], split = head[27], bits = head[30] | head[31] << 8;
  bool valid = (width == 1 || width == 2 || width == 4 || width == 8) && exponent <= 8 && head[28] <= 1 && !head[29];
  valid = valid && rest == (exponent ? 8 * width - exponent : 0);
  valid = valid && (exponent ? split >= 1 && split <= 3 && (split != 1 || rest) : split == 0);
  valid = valid && bits >= 1 && bits <= kMostBits && (width == 1 || bits % (8 * width) == 0);
  bool ended = false;
  for (u32 i = 32; i < 48; i++) {
    u32 c = head[i];
    bool letter = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    ended = ended || c == 0;
    valid = valid && (ended ? c == 0 && i > 32 : letter);
  }
  return valid;
}

// The content of a shape whose elements have so many bits; all bits set if that is beyond the limit.
DEV u64 nbytes_of(const u64* shape, u32 ndim, u32 bits_of_element) {
  u64 bits = bits_of_element;
  bool beyond = false;
  for (u32 d = 0; d < ndim; d++) {
    if (shape[d] == 0) return 0;
    beyond = beyond || __umul64hi(bits, shape[d]) != 0 || bits * shape[d] > 8 * kMostContent;
    if (!beyond) bits *= shape[d];
  }
  return beyond ? ~0ull : (bits + 7) / 8;
}

// Steps 1 to 5: fixed part and shape.
COLD Status check_fields(const HeaderRoom& room, u32 nbytes) {
  const u64* words = room.head;
  const u8* head = (const u8*)words;
  if (words[0] != kMagic) return nbytes ? kCorrupt : kTruncated;
  if (nbytes < kFixedNbytes) return kTruncated;
  if (head[8] != 1 || room.features() & ~1u) return kUnsupportedVersion;
  bool relative = room.features();
  if (head[9] > kProfileResident || (relative && head[9] == kProfileResident)) return kCorrupt;
  if (head[10]) return kUnsupportedVersion;
  u32 ndim = head[11];
  if (ndim > kMostDims) return kLimitExceeded;
  if (head[20]) return kUnsupportedVersion;
  u32 unit = head[21], alignment = head[22];
  if (unit < 5 || unit > 12 || alignment < unit || alignment > 21 || head[23]) return kCorrupt;
  if (!has_valid_label(head)) return kCorrupt;
  u64 content = room.content_nbytes(), header = room.header_nbytes(), data = room.data_nbytes();
  u64 between = (1ull << alignment) - 1;
  if (content > kMostContent || header > kMostHeaderNbytes) return kLimitExceeded;
  if (header & between) return kCorrupt;
  if (data > 0x7fffffffull << unit) return kLimitExceeded;
  u32 block_words = room.block_words(), padding = room.padding_nbytes();
  if (data & ((1ull << unit) - 1)) return kCorrupt;
  if (block_words == 0 || block_words % kLeastBlockWords || block_words > kMostBlockWords) return kCorrupt;
  if (padding > kMostPadding || (header + data + padding) & between) return kCorrupt;
  if (!relative && (words[12] | words[13])) return kCorrupt;
  if (nbytes < kFixedNbytes + 8 * ndim) return kTruncated;
  u64 expected = nbytes_of(words + 16, ndim, room.bits());
  if (expected == ~0ull) return kLimitExceeded;
  if (expected != content) return kCorrupt;
  u64 num_blocks = (content / head[24] + block_words - 1) / block_words;
  if (num_blocks > 1ull << 32) return kLimitExceeded;
  if (!relative && num_blocks > data >> unit) return kCorrupt;
  u64 entries = relative && data == 0 ? 0 : num_blocks;
  return header < kFixedNbytes + 8 * (ndim + entries) ? kCorrupt : kDone;
}

// Steps 1 to 6, and the checksum of step 7 unless the index was not copied, by three warps.
DEV void check_header_by_warps(HeaderRoom& room, u32 nbytes) {
  u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp == 0) {
    Status status = check_fields(room, nbytes);
    if (status != kDone && lane == 0) refuse(&room.verdict, kOfHeader, status);
  } else if (warp == 1 || (warp == 2 && room.index_nbytes != kNotCopied)) {
    bool of_index = warp == 2;
    u32 length = of_index ? room.index_nbytes : kFixedNbytes + 8 * min(room.ndim(), kMostDims);
    u64 hash = hash_by_warp(of_index ? room.index : room.head, hash_padded(length));
    if (lane == 0 && hash != (of_index ? room.head[kIndexSumWord] : room.checksum))
      refuse(&room.verdict, of_index ? kOfIndexSum : kOfHeaderSum, kCorrupt);
  }
}

// How many blocks the content has, and the words of one of them.
DEV u32 num_blocks_of(u32 num_words, u32 block_words) { return (num_words + block_words - 1) / block_words; }
DEV u32 words_of(u32 block, u32 num_words, u32 block_words) {
  return min(num_words - block * block_words, block_words);
}

// Entries of the index, a thread for each.
DEV void check_entries(HeaderRoom& room, u32 num_words, u32 word_nbytes) {
  u32 block = threadIdx.x, block_words = room.block_words(), unit = room.unit_log2();
  u32 num_blocks = num_blocks_of(num_words, block_words), end = (u32)(room.data_nbytes() >> unit);
  if (block >= num_blocks) return;
  u32 place = room.place(block), next = block + 1 < num_blocks ? room.place(block + 1) : end;
  u32 raw = (words_of(block, num_words, block_words) * word_nbytes + (1u << unit) - 1) >> unit;
  bool valid = (block > 0 || place == 0) && place < next && next <= end && next - place <= raw;
  if (!valid || (room.is_stored(block) && next - place != raw)) refuse(&room.verdict, kOfIndex, kCorrupt);
}

// The records between index and blocks, by one warp.
DEV void check_extensions(HeaderRoom& room, u32 num_blocks) {
  u32 at = num_blocks, end = room.index_nbytes / 8, before = 0;
  bool valid = true;
  while (valid && at < end && (u32)room.index[at] != 0) {
    u32 tag = (u32)room.index[at], length = (u32)(room.index[at] >> 32), left = (end - at - 1) * 8;
    valid = tag > before && length <= left && (tag != 1 || length == 4);
    u32 odd = length & 7;
    if (valid && odd) valid = room.index[at + 1 + length / 8] >> 8 * odd == 0;
    at += 1 + (valid ? (length + 7) / 8 : 0), before = tag;
  }
  for (u32 i = at + (threadIdx.x & 31); valid && i < end; i += 32) valid = room.index[i] == 0;
  if (!valid) refuse(&room.verdict, kOfExtensions, kCorrupt);
}

// The rest of step 7, and step 8, of a plain frame whose header is right and of which `num_words` words are to come.
DEV void check_index(const u8* frame, HeaderRoom& room, u32 nbytes, u32 num_words, u32 word_nbytes) {
  check_entries(room, num_words, word_nbytes);
  if (threadIdx.x >= blockDim.x - 32) check_extensions(room, num_blocks_of(num_words, room.block_words()));
  u64 begin = room.header_nbytes() + room.data_nbytes(), end = begin + room.padding_nbytes();
  if (end > nbytes) {
    if (threadIdx.x == 0) refuse(&room.verdict, kOfEnd, kTruncated);
    return;
  }
  for (u64 at = begin + 16 * threadIdx.x; at < end; at += 16 * blockDim.x) {
    uint4 value = *(const uint4*)(frame + at);
    if (value.x | value.y | value.z | value.w) refuse(&room.verdict, kOfPadding, kCorrupt);
  }
}
