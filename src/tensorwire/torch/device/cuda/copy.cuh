// Blocks that need no decoding. 16 bytes are moved at a time where source and target lie so.
//
// copy_blocks<WORD_NBYTES>: stored blocks, and such as the host has decoded.
//   source       u8: the frame, or the words of the host, at a multiple of 16 bytes; a block begins at 32 * place
//   rows         Row: the launch data of blocks, at a multiple of 16 bytes
//   out          u8: where word 0 of block `first_block` goes, at a multiple of a word; nothing but words is written
//   first_block  u32
//   block_nbytes u32: of the words of a full block
// fill_blocks<WORD_NBYTES>: constant blocks. Numbers 3 and 4 of the launch data (params, n23) are eight bytes of words.
//   rows, out, first_block, block_nbytes as above
//
// Both: grid (blocks of the launch, parts, 1), any number of threads, no shared memory. The parts share a block out.
#pragma once

#include "dev.h"
#include "frame.cuh"

// Copy pieces of sizeof(T) bytes from number `first` on, one for each of `threads` threads in turn.
template <class T>
DEV void copy_pieces(u8* target, const u8* source, u64 nbytes, u32 first, u32 threads) {
  for (u64 i = first; i < nbytes / sizeof(T); i += threads) ((T*)target)[i] = ((const T*)source)[i];
}

// Copy bytes; this is thread `first` of `threads`.
DEV void copy_bytes(u8* target, const u8* source, u64 nbytes, u32 first, u32 threads) {
  u64 places = (u64)target | (u64)source, done = 0;
  if ((places & 15) == 0) {
    copy_pieces<uint4>(target, source, nbytes, first, threads);
    done = nbytes & ~(u64)15;
  } else if ((places & 3) == 0) {
    copy_pieces<u32>(target, source, nbytes, first, threads);
    done = nbytes & ~(u64)3;
  } else if ((places & 1) == 0) {
    copy_pieces<u16>(target, source, nbytes, first, threads);
    done = nbytes & ~(u64)1;
  }
  copy_pieces<u8>(target + done, source + done, nbytes - done, first, threads);
}

// Fill with a pattern of eight bytes that a word divides, whose bytes are a power of two; `target` is at a multiple of
// a word.
DEV void fill_bytes(u8* target, u32 low, u32 high, u64 nbytes, u32 word_nbytes, u32 first, u32 threads) {
  u64 pattern = low | (u64)high << 32, odd = -(u64)target & 15, head = odd < nbytes ? odd : nbytes;
  u64 vectors = (nbytes - head) / 16, tail = head + vectors * 16;
  // What stands at a multiple of 16 bytes is a whole number of words behind the begin: the pattern begins anew there.
  for (u64 i = first; i < head; i += threads) target[i] = (u8)(pattern >> 8 * (i & (word_nbytes - 1)));
  for (u64 i = first; i < vectors; i += threads) ((uint4*)(target + head))[i] = {low, high, low, high};
  for (u64 i = tail + first; i < nbytes; i += threads) target[i] = (u8)(pattern >> 8 * (i & (word_nbytes - 1)));
}

template <u32 WORD_NBYTES>
GLOBAL void copy_blocks(const u8* source, const Row* rows, u8* out, u32 first_block, u32 block_nbytes) {
  Row row = row_of(rows, blockIdx.x);
  copy_bytes(out + (u64)(row.ordinal - first_block) * block_nbytes, block_of(source, row), (u64)row.n * WORD_NBYTES,
             blockIdx.y * blockDim.x + threadIdx.x, blockDim.x * gridDim.y);
}

template <u32 WORD_NBYTES>
GLOBAL void fill_blocks(const Row* rows, u8* out, u32 first_block, u32 block_nbytes) {
  Row row = row_of(rows, blockIdx.x);
  fill_bytes(out + (u64)(row.ordinal - first_block) * block_nbytes, row.params, row.n23, (u64)row.n * WORD_NBYTES,
             WORD_NBYTES, blockIdx.y * blockDim.x + threadIdx.x, blockDim.x * gridDim.y);
}
