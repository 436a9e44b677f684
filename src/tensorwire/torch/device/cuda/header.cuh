// The header of a frame, checked by a block of threads in the order of docs/format.md: steps 1 to 8.
//
// All threads call these functions, with a barrier behind each; room.verdict tells of the faults so far.
//   copy_header(frame, nbytes, room)
//   tell(header_fault(room, nbytes, place), room)
//   tell(index_fault(frame, room, nbytes, place), room)  where nothing was told
//
// `nbytes` is what there is to read from the frame's first byte on, which is at a multiple of 16 bytes: a multiple of
// 32, as frames have. Bytes may follow the frame. Nothing is read behind `nbytes`, whatever the bytes say.
#pragma once
#include "header_fields.cuh"

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

FOLDED u32 fault_of(Check check, Status status) { return status == kDone ? kNoneFails : check << 8 | status; }
FOLDED u32 fault_if(bool wrong, Check check) { return wrong ? fault_of(check, kCorrupt) : kNoneFails; }

DEV Status status_of(u32 verdict) { return verdict == kNoneFails ? kDone : (Status)(verdict & 255); }

constexpr u32 kNotCopied = 0xffffffff;
constexpr u32 kMostIndexNbytes = 4096;  // with extensions, and with what the frame's alignment adds

// What a block of threads keeps of a header in shared memory, 8 bytes at a time.
struct HeaderRoom : Head {                       // with 0 as checksum
  u64 index[(kMostIndexNbytes + kHashPad) / 8];  // what stands behind the shape; then zeros
  u64 checksum;                                  // of the header
  u32 index_nbytes;                              // kNotCopied if it is too long, or not all there
  u32 verdict;                                   // the least fault that was told

  METHOD const Entry& entry(u32 block) const { return ((const Entry*)index)[block]; }
  METHOD u32& checksum_of(u32 block) { return ((Entry*)index)[block].checksum; }
};

DEV u32 dims_of(const u8* frame, u32 nbytes) { return nbytes < kFixedNbytes ? 0 : min((u32)frame[11], kMostDims); }

DEV void copy_header(const u8* frame, u32 nbytes, HeaderRoom& room) {
  u32 begin = kFixedNbytes + 8 * dims_of(frame, nbytes), available = min(begin, nbytes), length = kNotCopied;
  const u64* words = (const u64*)frame;
  u64 end = available < kFixedNbytes ? 0 : words[kFieldHeader];
  if (end >= begin && end <= nbytes && end - begin <= kMostIndexNbytes && end % 8 == 0) length = (u32)end - begin;
  for (u32 i = threadIdx.x; i < kHeadNwords; i += blockDim.x) {
    u64 value = 8 * i < available ? words[i] : 0;
    room.words[i] = i == kFieldHeaderChecksum ? 0 : value;
    if (i == kFieldHeaderChecksum) room.checksum = value;
  }
  u32 padded = length == kNotCopied ? 0 : hash_padded(length);
  for (u32 i = threadIdx.x; 8 * i < padded; i += blockDim.x) room.index[i] = 8 * i < length ? words[begin / 8 + i] : 0;
  if (threadIdx.x == 0) room.index_nbytes = length, room.verdict = kNoneFails;
}

DEV void tell(u32 fault, HeaderRoom& room) {
  if (fault != kNoneFails) atomicMin(&room.verdict, fault);
}

// What frames are expected to hold, all of them plain.
struct Place {
  u64 name[2];  // of the dtype
  u64 layout;   // its five bytes, and the bits of an element
  u32 num_words, word_nbytes;
};

// Whether a frame is one of its place, and whether its words and its index are such as kernels read.
DEV u32 place_fault(const HeaderRoom& room, u32 nbytes, const Place& place) {
  u64 others = (room.words[4] ^ place.name[0]) | (room.words[5] ^ place.name[1]) | (room.bits() ^ place.layout >> 48);
  if (others | (room.content_nbytes() ^ place.num_words * place.word_nbytes)) return fault_of(kOfPlace, kAnotherTensor);
  if (room.features()) return fault_of(kOfPlace, kBaseMismatch);
  if (room.header_nbytes() > nbytes) return fault_of(kOfPlace, kTruncated);
  bool here = room.words[3] == place.layout && room.index_nbytes != kNotCopied;
  return here ? kNoneFails : fault_of(kOfKernel, kHostOnly);
}

// Steps 1 to 6, and the checksum of step 7 unless the index was not copied, by three warps.
DEV u32 header_fault(const HeaderRoom& room, u32 nbytes, const Place& place) {
  u32 warp = threadIdx.x >> 5, fault = kNoneFails;
  if (warp == 0) {
    Status status = check_fields(room.words, nbytes);
    fault = status == kDone ? place_fault(room, nbytes, place) : fault_of(kOfHeader, status);
  }
  bool of_index = warp == 2;
  if (warp == 1 || (of_index && room.index_nbytes != kNotCopied)) {
    u32 length = of_index ? room.index_nbytes : room.nbytes();
    u64 hash = hash_by_warp(of_index ? room.index : room.words, hash_padded(length));
    bool wrong = (threadIdx.x & 31) == 0 && hash != (of_index ? room.words[kFieldIndexChecksum] : room.checksum);
    fault = fault_if(wrong, of_index ? kOfIndexSum : kOfHeaderSum);
  }
  return fault;
}

// Entries of the index, a thread for each.
DEV bool has_wrong_entry(const HeaderRoom& room, const Place& place) {
  u32 block_words = room.block_words(), unit = room.unit_log2(), end = (u32)(room.data_nbytes() >> unit);
  bool wrong = false;
#pragma unroll 1
  for (u32 block = threadIdx.x; block * block_words < place.num_words; block += blockDim.x) {
    u32 n = min(place.num_words - block * block_words, block_words);
    u32 next = block * block_words + n < place.num_words ? room.entry(block + 1).place() : end;
    u32 raw = (n * place.word_nbytes + (1u << unit) - 1) >> unit;
    wrong |= is_wrong(room.entry(block), block == 0, next, end, raw, false);
  }
  return wrong;
}

// The records between index and blocks, by one warp.
DEV bool has_wrong_extension(const HeaderRoom& room, u32 num_blocks) {
  u32 end = room.index_nbytes / 8, zeros = extensions_end(room.index, num_blocks, end);
  return zeros == 0 || !are_zeros(room.index, zeros, end, threadIdx.x & 31, 32);
}

// The rest of step 7, and step 8.
DEV u32 index_fault(const u8* frame, const HeaderRoom& room, u32 nbytes, const Place& place) {
  u32 fault = fault_if(has_wrong_entry(room, place), kOfIndex);
  if (threadIdx.x >= blockDim.x - 32) {
    u32 num_blocks = (place.num_words + room.block_words() - 1) / room.block_words();
    fault = min(fault, fault_if(has_wrong_extension(room, num_blocks), kOfExtensions));
  }
  u64 data_end = room.header_nbytes() + room.data_nbytes();
  if (data_end + room.padding_nbytes() > nbytes) return min(fault, fault_of(kOfEnd, kTruncated));
  u32 begin = (u32)data_end / 8, end = begin + room.padding_nbytes() / 8;
  return min(fault, fault_if(!are_zeros((const u64*)frame, begin, end, threadIdx.x, blockDim.x), kOfPadding));
}
