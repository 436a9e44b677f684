// Whether frames are relative ones that kernels can apply: header, index, extensions, kinds of blocks; each rule of
// docs/format.md, steps 1 to 8.
//
// open_frames: a block of kRelativeThreads threads for each pair.
//   pairs    Pair: launch data
//   opened   Opened: one for each pair
//   messages u64: for each pair what its content hash is a hash of, 2 * leaves + 1 numbers. The size is written here
//   status   int: for each pair. Behind this launch it is right unless bases are to be checked
//   verify   u32: whether they are; else frames that are right are to be applied at once
//
// Nothing is read outside of the frames' memory, whatever it holds.
#pragma once
#include "header_fields.cuh"
#include "relative.cuh"

template <class T>
DEV T at(const u8* header, u32 offset) {
  return *(const T*)(header + offset);
}

DEV bool is_relative(const u8* header) { return at<u32>(header, 12) == 1; }

// What fields say that are right.
DEV void read_fields(const u8* header, Opened* opened) {
  u64 header_nbytes = at<u64>(header, 56), data_nbytes = at<u64>(header, 64);
  u64 block_nbytes = (u64)at<u32>(header, 72) * header[24];
  u64 blocks = (at<u64>(header, 48) + block_nbytes - 1) / block_nbytes;
  bool has_index = !is_relative(header) || data_nbytes;
  opened->header_nbytes = header_nbytes;
  opened->data_nbytes = data_nbytes;
  opened->index_at = kFixedNbytes + 8 * header[11];
  opened->block_words = at<u32>(header, 72);
  opened->num_blocks = has_index ? (u32)blocks : 0;
  opened->alignment_log2 = header[21];
  opened->exponent_bits = header[25];
  opened->is_ordered = header[28];
}

// What the tail of a coded block says; its bytes are there.
DEV Status kind_status(const u8* header, const u8* bytes, u32 nbytes) {
  u32 tail = tail_of(bytes, nbytes), rest = tail >> 27 & 3, extended = extended_of(tail), classes = classes_of(tail);
  if (kind_of(tail) == 0 || rest == 3) return kUnsupportedVersion;
  if (kind_of(tail) == kKindConstant) return rest == 0 && classes == 1 && nbytes == 1u << header[21] ? kDone : kCorrupt;
  if (kind_of(tail) != kKindExtended) return kHostOnly;
  if (extended == 0 || extended > kExtendedLast) return kUnsupportedVersion;
  bool of_steps = extended == kExtendedSparse || extended == kExtendedDense;
  if (!of_steps || header[24] > 2) return kHostOnly;
  if (rest || (classes > 1 && header[27] != 1)) return kCorrupt;
  for (u32 c = 0; c + 1 < classes; c++) {
    u32 own = threshold_of(bytes, nbytes, classes, c);
    if (own >> header[25] || (c && own <= threshold_of(bytes, nbytes, classes, c - 1))) return kCorrupt;
  }
  return kDone;
}

// The entries of the index, each by a thread; what their blocks' kinds give goes to *late.
DEV bool are_entries_right(const Pair& pair, const Opened& opened, const u8* header, u32* late) {
  u64 unit = 1ull << opened.alignment_log2, units = opened.data_nbytes >> opened.alignment_log2;
  bool right = true;
  for (u32 block = threadIdx.x; block < opened.num_blocks; block += kRelativeThreads) {
    const uint2* entry = (const uint2*)(pair.frame + opened.index_at) + block;
    u64 begin = entry[0].x & 0x7fffffff, end = units;
    if (block + 1 < opened.num_blocks) end = entry[1].x & 0x7fffffff;
    u64 raw = ((u64)words_of(pair, opened, block) * pair.word_nbytes + unit - 1) >> opened.alignment_log2;
    bool stored = entry[0].x >> 31;
    if ((block == 0 && begin) || begin > end || end > units || end - begin > raw) right = false;
    if ((stored && end - begin != raw) || (begin == end && entry[0].y)) right = false;
    if (!right || stored || begin == end) continue;
    u64 place = opened.header_nbytes + (begin << opened.alignment_log2);
    u32 nbytes = (u32)(end - begin) << opened.alignment_log2;
    if (place + nbytes > pair.room) continue;
    u32 status = kind_status(header, (const u8*)pair.frame + place, nbytes);
    if (status > *late) *late = status;
  }
  return right;
}

// Where the extensions end and zeros begin; 0 if one is not right.
DEV u64 extensions_end(const u8* frame, u64 begin, u64 header_nbytes) {
  u32 before = 0;
  while (begin < header_nbytes) {
    u32 tag = at<u32>(frame + begin, 0), length = at<u32>(frame + begin, 4);
    if (tag == 0) break;
    u64 content = begin + 8, padded = content + ((u64)length + 7 & ~7ull);
    if (tag <= before || padded > header_nbytes || (tag == 1 && length != 4)) return 0;
    for (u64 i = content + length; i < padded; i++)
      if (frame[i]) return 0;
    before = tag;
    begin = padded;
  }
  return begin;
}

// Whether bytes are zeros, as far as this thread looks: all of a block do. Multiples of 8.
DEV bool are_zeros(const u8* frame, u64 begin, u64 end) {
  u64 any = 0;
  for (u64 i = begin + 8 * threadIdx.x; i < end; i += 8 * kRelativeThreads) any |= *(const u64*)(frame + i);
  return any == 0;
}

GLOBAL void BOUNDS(kRelativeThreads, 1)
    open_frames(const Pair* pairs, Opened* opened_frames, u64* messages, int* status, u32 verify) {
  SHARED_ARRAY(u64, header_words, kHeadNwords);
  SHARED_ARRAY(u64, sums, 8 * kPiecesAtOnce);
  SHARED_ARRAY(Opened, shared_opened, 1);
  SHARED_ARRAY(u32, said, 3);  // a status, by what is not right; that of kinds; where zeros begin, 0 for nowhere
  Pair pair = pairs[blockIdx.x];
  u8* header = (u8*)header_words;
  const u8* frame = (const u8*)pair.frame;
  Opened* own = shared_opened;
  u32 t = threadIdx.x, most = kFixedNbytes + 8 * kMostDims;
  for (u32 i = t; i < kHeadNwords; i += kRelativeThreads)
    header_words[i] = 8 * i < most ? hashed_at(frame, 8 * i, (u32)min(pair.room, (u64)most)) : 0;
  if (t == 0) *own = {}, said[1] = kDone;
  __syncthreads();
  if (t < 32) {
    Status found = check_fields(header_words, pair.room);
    if (t == 0) said[0] = found;
    if (t == 0 && !found) read_fields(header, own);
  }
  __syncthreads();
  u32 found = said[0], late = kDone;
  u64 zeros_from = 0;
  __syncthreads();
  if (!found) {  // the same for all threads, here and below
    u64 checksum = header_words[kFieldHeaderChecksum], index_checksum = header_words[kFieldIndexChecksum];
    u32 nbytes = own->index_at;
    __syncthreads();
    for (u32 i = t; i < kHeadNwords; i += kRelativeThreads)
      if (i == kFieldHeaderChecksum || i >= nbytes / 8) header_words[i] = 0;
    __syncthreads();
    if (t < 32) {
      u64 hash = hash_by_warp(header_words, hash_padded(nbytes));
      if (t == 0) {
        u32 word = header[24];
        if (hash != checksum)
          said[0] = kCorrupt;
        else if (!is_relative(header))
          said[0] = kHostOnly;
        else if (at<u64>(header, 32) != pair.dtype[0] || at<u64>(header, 40) != pair.dtype[1] ||
                 at<u64>(header, 48) != pair.nbytes)
          said[0] = kAnotherTensor;
        else if (word != pair.word_nbytes || own->header_nbytes >> 32 || pair.nbytes >> 40)
          said[0] = kHostOnly;
        else if (pair.room < own->header_nbytes)
          said[0] = kTruncated;
      }
    }
    __syncthreads();
    found = said[0];
    if (!found) {
      u64 hash = hash_by_block<kRelativeWarps>(frame + nbytes, (u32)own->header_nbytes - nbytes, sums);
      bool is_same = at<u64>(header, 80) == at<u64>(header, 96) && at<u64>(header, 88) == at<u64>(header, 104);
      u64 blocks_end = nbytes + 8ull * own->num_blocks;
      bool right = (t || hash == index_checksum) && (own->data_nbytes || is_same);
      right &= !own->data_nbytes || own->num_blocks;
      if (!are_entries_right(pair, *own, header, &late)) right = false;
      if (t == 0) {
        zeros_from = extensions_end(frame, blocks_end, own->header_nbytes);
        said[2] = (u32)zeros_from;
        if (zeros_from == 0) right = false;
      }
      if (!right) atomicMax(&said[0], (u32)kCorrupt);
      if (late) atomicMax(&said[1], late);
      __syncthreads();
      u64 data_end = own->header_nbytes + own->data_nbytes, end = data_end + at<u32>(header, 76);
      found = said[0], zeros_from = said[2];
      __syncthreads();
      if (!found && !are_zeros(frame, zeros_from, own->header_nbytes)) atomicMax(&said[0], (u32)kCorrupt);
      __syncthreads();
      found = said[0];
      __syncthreads();
      if (!found && pair.room < end) {
        found = kTruncated;
      } else if (!found) {
        if (!are_zeros(frame, data_end, end)) atomicMax(&said[0], (u32)kCorrupt);
        __syncthreads();
        found = said[0];
      }
    }
  }
  if (t) return;
  own->open = !found;
  own->late = said[1];
  own->left = pair.leaves;
  own->goes = !verify && !found && !own->late;
  opened_frames[blockIdx.x] = *own;
  messages[2ull * pair.first_leaf + blockIdx.x] = pair.nbytes;
  status[pair.number] = found ? (int)found : (int)own->late;
}
