// H of docs/format.md: XXH3-128 (seed 0, default secret; xxHash 0.8) of messages with a multiple of 256 bytes, and of
// 256 at least. Within 1,024 bytes, a piece, the stripes of 64 bytes only add to the accumulators: in any order, by any
// thread. The accumulators are scrambled between pieces; that chain alone is serial.
//
// A long message: all threads of a block write the sums of its pieces (hash_sums), and one warp makes the chain of them
// behind a barrier (hash_of_sums). The last stripe has a key of its own, so sums leave it out.
#pragma once
#include "dev.h"

CONSTANT u64 kSecret[24] = {0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
                            0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
                            0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
                            0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
                            0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
                            0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

constexpr u32 kPiece = 1024, kStripe = 64, kHashPad = 256;
constexpr u32 kLeafNbytes = 131072;  // of content
constexpr u64 kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
              kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;
constexpr u32 kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr u32 kLastKey = 121, kScrambleKey = 128, kLowKey = 11, kHighKey = 117;  // where they begin in the secret

FOLDED u64 pair64(u32 low, u32 high) { return low | (u64)high << 32; }

// The 8 bytes of the secret from byte `at` on.
DEV u64 secret_at(u32 at) {
  u32 word = at / 8, shift = at % 8 * 8;
  return shift ? kSecret[word] >> shift | kSecret[word + 1] << (64 - shift) : kSecret[word];
}

// Plus what 8 bytes of a stripe add to the accumulator of their lane, besides the bytes of the lane beside it.
DEV u64 hash_product(u64 value, u64 key, u64 sum = 0) {
  u64 mixed = value ^ key;
  return add_product((u32)mixed, (u32)(mixed >> 32), sum);
}

DEV u64 scrambled(u64 acc, u64 key) { return ((acc ^ acc >> 47) ^ key) * kPrime32_1; }

// Bytes of a message of nbytes, with the zeros behind it.
FOLDED u32 hash_padded(u32 nbytes) { return nbytes ? (nbytes + kHashPad - 1) / kHashPad * kHashPad : kHashPad; }

// Pieces of a message; of each there are 8 sums.
FOLDED u32 hash_pieces(u32 padded) { return (padded + kPiece - 1) / kPiece; }

// The 8 bytes from `at` on of a message of nbytes, and the zeros behind it. ALIGNED: it begins at a multiple of 8
// bytes.
template <bool ALIGNED = true>
DEV u64 hashed_at(const u8* data, u32 at, u32 nbytes) {
  if (ALIGNED && at + 8 <= nbytes) return *(const u64*)(data + at);
  u64 value = 0;
#pragma unroll 1
  for (u32 b = 0; b < 8 && at + b < nbytes; b++) value |= (u64)data[at + b] << 8 * b;
  return value;
}

// From the products and the bytes of all lanes of a warp, 8 bytes each: what lane & 7 adds.
DEV u64 stripe_sum(u64 products, u64 plain) {
  products += __shfl_xor_sync(0xffffffffu, plain, 1);
  products += __shfl_xor_sync(0xffffffffu, products, 8);
  return products + __shfl_xor_sync(0xffffffffu, products, 16);
}

// The sum of stripes [begin, end) of a message of nbytes, in bytes, all of one piece; by one warp.
template <bool ALIGNED = true>
DEV u64 sum_of_stripes(const u8* data, u32 nbytes, u32 begin, u32 end) {
  u32 lane = threadIdx.x & 31;
  u64 products = 0, plain = 0;
#pragma unroll 1
  for (u32 at = begin + 8 * lane; at < end; at += 256) {
    u64 value = hashed_at<ALIGNED>(data, at, nbytes);
    products = hash_product(value, secret_at(8 * (at % kPiece / kStripe + lane % 8)), products), plain += value;
  }
  __syncwarp();
  return stripe_sum(products, plain);
}

// The sums of all pieces of a message of nbytes to sums[8 * piece + lane]. All `warps` warps of a block take part; a
// barrier has to follow.
template <bool ALIGNED = true>
DEV void hash_sums(const u8* data, u32 nbytes, u32 warps, u64* sums) {
  u32 lane = threadIdx.x & 31, last = hash_padded(nbytes) - kStripe, whole = min(nbytes, last) / kPiece;
  u32 piece = threadIdx.x >> 5;
  u64 key[4];
#pragma unroll
  for (int j = 0; j < 4; j++) key[j] = secret_at(8 * (4 * j + (lane >> 3) + (lane & 7)));
#pragma unroll 1
  for (; piece < whole; piece += warps) {
    u64 products = 0, plain = 0;
    const u8* at = data + (u64)piece * kPiece + lane * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u64 value = hashed_at<ALIGNED>(at, 256 * j, kPiece);
      products = hash_product(value, key[j], products), plain += value;
    }
    products = stripe_sum(products, plain);
    if (lane < 8) sums[8 * piece + lane] = products;
  }
  for (; piece * kPiece <= last; piece += warps) {
    u64 sum = sum_of_stripes<ALIGNED>(data, nbytes, piece * kPiece, min((piece + 1) * kPiece, last));
    if (lane < 8) sums[8 * piece + lane] = sum;
  }
}

CONSTANT u64 kFirstAccumulators[8] = {kPrime32_3, kPrime1, kPrime2, kPrime3, kPrime4, kPrime32_2, kPrime5, kPrime32_1};

DEV u64 first_accumulator(u32 lane) { return kFirstAccumulators[lane]; }

// The 128 bits of the accumulators of eight lanes: the low 64 in even lanes, the high ones in odd lanes. So it is with
// all that follows: each eight lanes of a warp may make a hash of their own.
DEV u64 merged(u64 acc, u32 padded) {
  u32 lane = threadIdx.x & 7,
      odd = lane & 1;  // even lanes take the products for one half, odd ones those for the other
  u32 at = (odd ? kHighKey : kLowKey) + 8 * (lane - odd);
  u64 other = __shfl_xor_sync(0xffffffffu, acc, 1);
  u64 a = (odd ? other : acc) ^ secret_at(at), b = (odd ? acc : other) ^ secret_at(at + 8);
  u64 hash = a * b ^ __umul64hi(a, b);
  hash += __shfl_xor_sync(0xffffffffu, hash, 2);
  hash += __shfl_xor_sync(0xffffffffu, hash, 4);
  hash += odd ? ~(padded * kPrime2) : padded * kPrime1;
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

// H of a message of `padded` bytes by one warp, from the sums of its pieces and the 8 bytes of its last stripe that
// belong to lane & 7: as `merged` gives it.
DEV u64 hash_of_sums(const u64* sums, u32 padded, u64 last) {
  u32 i = threadIdx.x & 7, full = (padded - 1) / kPiece;
  u64 acc = first_accumulator(i), key = secret_at(kScrambleKey + 8 * i);
#pragma unroll 8
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
    acc = hash_product(value, secret_at(s + 1 < stripes ? at : kLastKey + 8 * i), acc) + message[8 * s + (i ^ 1)];
    if (s % 16 == 15 && s + 1 < stripes) acc = scrambled(acc, scramble_key);
  }
  return merged(acc, padded);
}
