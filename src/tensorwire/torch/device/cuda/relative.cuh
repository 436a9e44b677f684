// Relative frames as kernels see them that change a tensor in place: what the host knows, and what a kernel has read of
// a frame's header. docs/format.md says what the bytes mean.
#pragma once
#include "blocks.cuh"
#include "hash_long.cuh"
#include "status.h"

constexpr u32 kRelativeThreads = 256, kRelativeWarps = kRelativeThreads / 32;
constexpr u32 kMostClasses = 8;

// A frame, and the tensor that it is applied to.
struct Pair {
  u64 frame, room;     // address, at a multiple of 16, and the bytes from there on
  u64 tensor, nbytes;  // the same, exactly
  u64 dtype[2];        // as it stands in a header
  u32 first_leaf;      // its first one among those of all pairs; an empty tensor has one too, of no bytes
  u32 leaves;
  u32 number;  // of the pair's status
  u32 word_nbytes;
};

// What open_frames tells those behind it, and they tell each other.
struct Opened {
  u64 header_nbytes, data_nbytes;
  u32 index_at, block_words, num_blocks;
  u32 alignment_log2;
  u32 exponent_bits, is_ordered;
  u32 open;   // header and index are right
  u32 late;   // the status that the kinds of the blocks give
  u32 wrong;  // whether a block is not right
  u32 left;   // blocks of threads that are to come, before the last one compares
  u32 goes;   // whether the frame is to be applied
  u32 unused;
};

struct BlockPlace {
  const u8* bytes;
  u32 nbytes, checksum;
  bool stored;
};

DEV BlockPlace place_of(const Pair& pair, const Opened& opened, u32 block) {
  const Entry* entry = (const Entry*)(pair.frame + opened.index_at) + block;
  Entry own = entry[0];
  u64 begin = (u64)own.place() << opened.alignment_log2, end = opened.data_nbytes;
  if (block + 1 < opened.num_blocks) end = (u64)entry[1].place() << opened.alignment_log2;
  return {(const u8*)pair.frame + opened.header_nbytes + begin, (u32)(end - begin), own.checksum, own.is_stored()};
}

DEV u64 block_nbytes_of(const Pair& pair, const Opened& opened) { return (u64)opened.block_words * pair.word_nbytes; }

// Words of a block.
DEV u32 words_of(const Pair& pair, const Opened& opened, u32 block) {
  u64 before = (u64)block * opened.block_words, all = pair.nbytes >> (__ffs(pair.word_nbytes) - 1);
  return (u32)min(all - before, (u64)opened.block_words);
}

// Kinds sparse and dense --------------------------------------------------------------------------------------------

DEV u32 classes_of(u32 tail) { return (tail >> 29) + 1; }

// Threshold c of a block with so many classes.
DEV u32 threshold_of(const u8* bytes, u32 nbytes, u32 classes, u32 c) { return bytes[nbytes - 1 - classes + c]; }
