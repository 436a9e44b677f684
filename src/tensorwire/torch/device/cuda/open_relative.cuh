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

// What fields say that are right.
DEV void read_fields(const Head& head, Opened* opened) {
  u64 block_nbytes = (u64)head.block_words() * head.word_nbytes();
  u64 blocks = (head.content_nbytes() + block_nbytes - 1) / block_nbytes;
  opened->header_nbytes = head.header_nbytes();
  opened->data_nbytes = head.data_nbytes();
  opened->index_at = head.nbytes();
  opened->block_words = head.block_words();
  opened->num_blocks = !head.features() || head.data_nbytes() ? (u32)blocks : 0;
  opened->alignment_log2 = head.unit_log2();
  opened->exponent_bits = head.exponent_bits();
  opened->is_ordered = head.is_ordered();
}

// What the tail of a coded block says; its bytes are there.
DEV Status kind_status(const Head& head, const u8* bytes, u32 nbytes) {
  u32 tail = tail_of(bytes, nbytes), classes = classes_of(tail);
  if (is_unknown(tail)) return kUnsupportedVersion;
  if (kind_of(tail) == kKindConstant)
    return tail >> 24 == tag_of(kKindConstant) && nbytes == 1u << head.unit_log2() ? kDone : kCorrupt;
  bool of_steps = is_of(tail, kExtendedSparse) || is_of(tail, kExtendedDense);
  if (!of_steps || head.word_nbytes() > 2) return kHostOnly;
  if (rest_coding_of(tail) || (classes > 1 && head.split() != 1)) return kCorrupt;
  for (u32 c = 0; c + 1 < classes; c++) {
    u32 own = threshold_of(bytes, nbytes, classes, c);
    if (own >> head.exponent_bits() || (c && own <= threshold_of(bytes, nbytes, classes, c - 1))) return kCorrupt;
  }
  return kDone;
}

// The entries of the index, each by a thread; what their blocks' kinds give goes to *late.
DEV bool are_entries_right(const Pair& pair, const Opened& opened, const Head& head, u32* late) {
  u32 unit = opened.alignment_log2, units = (u32)(opened.data_nbytes >> unit);
  bool right = true;
  for (u32 block = threadIdx.x; block < opened.num_blocks; block += kRelativeThreads) {
    const Entry* entries = (const Entry*)(pair.frame + opened.index_at) + block;
    Entry entry = entries[0];
    u32 end = block + 1 < opened.num_blocks ? entries[1].place() : units;
    u32 raw = (words_of(pair, opened, block) * pair.word_nbytes + (1u << unit) - 1) >> unit;
    if (is_wrong(entry, block == 0, end, units, raw, true)) right = false;
    if (!right || entry.is_stored() || entry.place() == end) continue;
    u64 place = opened.header_nbytes + ((u64)entry.place() << unit);
    u32 nbytes = (end - entry.place()) << unit;
    if (place + nbytes > pair.room) continue;
    u32 status = kind_status(head, (const u8*)pair.frame + place, nbytes);
    if (status > *late) *late = status;
  }
  return right;
}

GLOBAL void BOUNDS(kRelativeThreads, 1)
    open_frames(const Pair* pairs, Opened* opened_frames, u64* messages, int* status, u32 verify) {
  SHARED_ARRAY(Head, heads, 1);
  SHARED_ARRAY(u64, sums, 8 * kPiecesAtOnce);
  SHARED_ARRAY(Opened, shared_opened, 1);
  SHARED_ARRAY(u32, said, 3);  // a status, by what is not right; that of kinds; where zeros begin
  Pair pair = pairs[blockIdx.x];
  Head& head = heads[0];
  const u8* frame = (const u8*)pair.frame;
  const u64* words = (const u64*)frame;
  Opened* own = shared_opened;
  u32 t = threadIdx.x, most = kFixedNbytes + 8 * kMostDims;
  for (u32 i = t; i < kHeadNwords; i += kRelativeThreads)
    head.words[i] = 8 * i < most ? hashed_at(frame, 8 * i, (u32)min(pair.room, (u64)most)) : 0;
  if (t == 0) *own = {}, said[1] = kDone;
  __syncthreads();
  if (t < 32) {
    Status found = check_fields(head.words, pair.room);
    if (t == 0) said[0] = found;
    if (t == 0 && !found) read_fields(head, own);
  }
  __syncthreads();
  u32 found = said[0], late = kDone;
  __syncthreads();
  if (!found) {  // the same for all threads, here and below
    u64 checksum = head.words[kFieldHeaderChecksum], index_checksum = head.words[kFieldIndexChecksum];
    u32 nbytes = own->index_at;
    __syncthreads();
    for (u32 i = t; i < kHeadNwords; i += kRelativeThreads)
      if (i == kFieldHeaderChecksum || i >= nbytes / 8) head.words[i] = 0;
    __syncthreads();
    if (t < 32) {
      u64 hash = hash_by_warp(head.words, hash_padded(nbytes));
      if (t == 0) {
        if (hash != checksum)
          said[0] = kCorrupt;
        else if (!head.features())
          said[0] = kHostOnly;
        else if (head.words[4] != pair.dtype[0] || head.words[5] != pair.dtype[1] ||
                 head.content_nbytes() != pair.nbytes)
          said[0] = kAnotherTensor;
        else if (head.word_nbytes() != pair.word_nbytes || own->header_nbytes >> 32 || pair.nbytes >> 40)
          said[0] = kHostOnly;
        else if (pair.room < own->header_nbytes)
          said[0] = kTruncated;
      }
    }
    __syncthreads();
    found = said[0];
    if (!found) {
      u64 hash = hash_by_block<kRelativeWarps>(frame + nbytes, (u32)own->header_nbytes - nbytes, sums);
      const u64 *content = head.words + kFieldContentHash, *base = head.words + kFieldBaseHash;
      bool is_same = content[0] == base[0] && content[1] == base[1];
      bool right = (t || hash == index_checksum) && (own->data_nbytes || is_same);
      right &= !own->data_nbytes || own->num_blocks;
      if (!are_entries_right(pair, *own, head, &late)) right = false;
      if (t == 0) {
        said[2] = extensions_end(words, nbytes / 8 + own->num_blocks, (u32)(own->header_nbytes / 8));
        if (said[2] == 0) right = false;
      }
      if (!right) atomicMax(&said[0], (u32)kCorrupt);
      if (late) atomicMax(&said[1], late);
      __syncthreads();
      u64 data_end = own->header_nbytes + own->data_nbytes, end = data_end + head.padding_nbytes();
      u32 zeros = said[2];
      found = said[0];
      __syncthreads();
      if (!found && !are_zeros(words, zeros, own->header_nbytes / 8, t, kRelativeThreads))
        atomicMax(&said[0], (u32)kCorrupt);
      __syncthreads();
      found = said[0];
      __syncthreads();
      if (!found && pair.room < end) {
        found = kTruncated;
      } else if (!found) {
        if (!are_zeros(words, data_end / 8, end / 8, t, kRelativeThreads)) atomicMax(&said[0], (u32)kCorrupt);
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
