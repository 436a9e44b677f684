// H of docs/format.md: XXH3-128 (seed 0, default secret; xxHash 0.8) of messages with a multiple of 256 bytes, and of
// 256 at least. Within 1,024 bytes, a piece, the stripes of 64 bytes only add to the accumulators: in any order, by any
// thread. The accumulators are scrambled between pieces; that chain alone is serial.
//
// A long message: all threads of a block write the sums of its pieces (hash_sums, or a kernel that has the bytes in
// registers, by hash_stripe), and one warp makes the chain of them behind a barrier (hash_of_sums). The last stripe has
// a key of its own, so sums leave it out.
#pragma once
#include "dev.h"

CONSTANT u8 kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

constexpr u32 kPiece = 1024, kStripe = 64, kHashPad = 256;
constexpr u32 kLeafNbytes = 131072;  // of content
constexpr u64 kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
              kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;
constexpr u32 kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr u32 kLastKey = 121, kScrambleKey = 128, kLowKey = 11, kHighKey = 117;  // where they begin in the secret

FOLDED u64 pair64(u32 low, u32 high) { return low | (u64)high << 32; }

// The 8 bytes of the secret from byte `at` on.
DEV u64 secret_at(u32 at) {
  u64 value = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) value |= (u64)kSecret[at + i] << 8 * i;
  return value;
}

// Of 8 bytes of a stripe: what the accumulator of their lane adds, besides the bytes of the lane beside it.
DEV u64 hash_product(u64 value, u64 key) {
  u64 mixed = value ^ key;
  return (u64)(u32)mixed * (u32)(mixed >> 32);
}

DEV u64 scrambled(u64 acc, u64 key) { return ((acc ^ acc >> 47) ^ key) * kPrime32_1; }

// Bytes of a message of nbytes, with the zeros behind it.
FOLDED u32 hash_padded(u32 nbytes) { return nbytes ? (nbytes + kHashPad - 1) / kHashPad * kHashPad : kHashPad; }

// Pieces of a message; of each there are 8 sums.
FOLDED u32 hash_pieces(u32 padded) { return (padded + kPiece - 1) / kPiece; }

// The 8 bytes from `at` on of a message of nbytes, or zeros behind it. ALIGNED: `data` is at a multiple of 8 bytes.
template <bool ALIGNED = true>
DEV u64 hashed_at(const u8* data, u32 at, u32 nbytes) {
  if (ALIGNED && at + 8 <= nbytes) return *(const u64*)(data + at);
  u64 value = 0;
#pragma unroll
  for (u32 b = 0; b < 8; b++)
    if (at + b < nbytes) value |= (u64)data[at + b] << 8 * b;
  return value;
}

// The sums of all pieces of a message of nbytes to sums[8 * piece + lane]. All `warps` warps of a block take part; a
// barrier has to follow.
template <bool ALIGNED = true>
DEV void hash_sums(const u8* data, u32 nbytes, u32 warps, u64* sums) {
  u32 lane = threadIdx.x & 31, padded = hash_padded(nbytes), pieces = hash_pieces(padded);
  u64 key[4];
#pragma unroll
  for (int j = 0; j < 4; j++) key[j] = secret_at(8 * (4 * j + (lane >> 3)) + 8 * (lane & 7));
  for (u32 piece = threadIdx.x >> 5; piece < pieces; piece += warps) {
    u64 sum = 0, plain = 0;
    u32 begin = piece * kPiece + lane * 8;
    if ((piece + 1) * kPiece + kStripe <= nbytes) {  // without the last stripe
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u64 value = hashed_at<ALIGNED>(data, begin + 256 * j, nbytes);
        sum += hash_product(value, key[j]), plain += value;
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 at = begin + 256 * j;
        u64 value = hashed_at<ALIGNED>(data, at, nbytes);
        if (at < padded - kStripe) sum += hash_product(value, key[j]), plain += value;
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, plain, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane < 8) sums[8 * piece + lane] = sum;
  }
}

DEV u64 first_accumulator(u32 lane) {
  const u64 values[8] = {kPrime32_3, kPrime1, kPrime2, kPrime3, kPrime4, kPrime32_2, kPrime5, kPrime32_1};
  u64 value = values[0];
#pragma unroll
  for (int i = 1; i < 8; i++) value = lane == i ? values[i] : value;
  return value;
}

// The 128 bits of the accumulators of eight lanes: the low 64 in even lanes, the high ones in odd lanes. So it is with
// all that follows: each eight lanes of a warp may make a hash of their own.
DEV u64 merged(u64 acc, u32 padded) {
  u32 odd = threadIdx.x & 1, at = odd ? kHighKey : kLowKey;
  u64 hash = odd ? ~(padded * kPrime2) : padded * kPrime1;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    u64 a = __shfl_sync(0xffffffffu, acc, i, 8) ^ secret_at(at + 8 * i);
    u64 b = __shfl_sync(0xffffffffu, acc, i + 1, 8) ^ secret_at(at + 8 * i + 8);
    hash += a * b ^ __umul64hi(a, b);
  }
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

// H of a message of `padded` bytes by one warp, from the sums of its pieces and the 8 bytes of its last stripe that
// belong to lane & 7: as `merged` gives it.
DEV u64 hash_of_sums(const u64* sums, u32 padded, u64 last) {
  u32 i = threadIdx.x & 7, full = (padded - 1) / kPiece;
  u64 acc = first_accumulator(i), key = secret_at(kScrambleKey + 8 * i);
  for (u32 piece = 0; piece < full; piece++) acc = scrambled(acc + sums[8 * piece + i], key);
  __syncwarp();  // others may have had more pieces
  acc += sums[8 * full + i];
  acc += hash_product(last, secret_at(kLastKey + 8 * i)) + __shfl_xor_sync(0xffffffffu, last, 1);
  return merged(acc, padded);
}

// The 8 bytes of the last stripe of a message with its zeros that belong to lane & 7, for hash_of_sums.
template <bool ALIGNED = true>
DEV u64 last_of(const u8* data, u32 nbytes) {
  return hashed_at<ALIGNED>(data, hash_padded(nbytes) - kStripe + 8 * (threadIdx.x & 7), nbytes);
}

// H of `padded` bytes by one warp, read 8 bytes at a time: for headers and indexes.
DEV u64 hash_by_warp(const u64* message, u32 padded) {
  u32 i = threadIdx.x & 7, stripes = padded / kStripe;
  u64 acc = first_accumulator(i), scramble_key = secret_at(kScrambleKey + 8 * i);
  for (u32 s = 0; s < stripes; s++) {
    u32 at = s % 16 * 8 + 8 * i;
    u64 value = message[8 * s + i];
    acc += hash_product(value, secret_at(s + 1 < stripes ? at : kLastKey + 8 * i)) + message[8 * s + (i ^ 1)];
    if (s % 16 == 15 && s + 1 < stripes) acc = scrambled(acc, scramble_key);
  }
  return merged(acc, padded);
}
