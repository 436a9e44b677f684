// A frame's header and its parts: what they say, and each rule of docs/format.md, steps 1 to 8, but for those that tell
// what the header has to do with its place. header.cuh checks frames of pages by it, open_relative.cuh relative ones.
#pragma once
#include "blocks.cuh"
#include "frame.cuh"
#include "hash.cuh"
#include "labels.cuh"
#include "status.h"

constexpr u32 kFixedNbytes = 128, kMostDims = 64, kProfileEnec = 0, kProfileResident = 3;
constexpr u32 kHeadNwords = (kFixedNbytes + 8 * kMostDims + kHashPad) / kHashPad * kHashPad / 8;  // of 8 bytes
constexpr u64 kMostContent = 1ull << 53, kMostHeaderNbytes = 1ull << 37;
constexpr u32 kMostPadding = 1 << 22, kMostBlockWords = 1 << 18, kLeastBlockWords = 256, kMostBits = 1024;

// The fixed part and the shape, 8 bytes at a time; then zeros.
struct Head {
  u64 words[kHeadNwords];

  METHOD u32 profile() const { return (u32)(words[1] >> 8) & 255; }
  METHOD u32 ndim() const { return (u32)(words[1] >> 24) & 255; }
  METHOD u32 features() const { return (u32)(words[1] >> 32); }
  METHOD u32 unit_log2() const { return (u32)(words[2] >> 40) & 255; }
  METHOD u32 word_nbytes() const { return (u32)words[3] & 255; }
  METHOD u32 exponent_bits() const { return (u32)(words[3] >> 8) & 255; }
  METHOD u32 split() const { return (u32)(words[3] >> 24) & 255; }
  METHOD u32 is_ordered() const { return (u32)(words[3] >> 32) & 255; }
  METHOD u32 bits() const { return (u32)(words[3] >> 48); }
  METHOD u64 content_nbytes() const { return words[6]; }
  METHOD u64 header_nbytes() const { return words[kFieldHeader]; }
  METHOD u64 data_nbytes() const { return words[kFieldData]; }
  METHOD u32 block_words() const { return (u32)words[9]; }
  METHOD u32 padding_nbytes() const { return (u32)(words[9] >> 32); }
  METHOD u32 nbytes() const { return kFixedNbytes + 8 * min(ndim(), kMostDims); }
};

// The layout, the bits of an element, two reserved bytes and the dtype's name, by a warp.
DEV bool has_valid_label(const u8* head) {
  u32 width = head[24], exponent = head[25], rest = head[26], split = head[27], bits = head[30] | head[31] << 8;
  bool valid = width <= 8 && __popc(width) == 1 && exponent <= 8 && head[28] <= 1 && !head[29];
  valid &= rest == (exponent ? 8 * width - exponent : 0) && split <= 3 && (split == 0) == (exponent == 0);
  valid &= (split != 1 || rest) && bits >= 1 && bits <= kMostBits && (width == 1 || (bits & (8 * width - 1)) == 0);
  u32 c = head[32 + (threadIdx.x & 15)];
  bool letter = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  u32 letters = __ballot_sync(0xffffffff, letter) & 0xffff, zeros = __ballot_sync(0xffffffff, c == 0) & 0xffff;
  return valid && letters && (letters & (letters + 1)) == 0 && (letters ^ zeros) == 0xffff;
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

// Steps 1 to 5: fixed part and shape, by a warp. `words` has them, and zeros for what is behind the `nbytes` that are
// there.
DEV Status check_fields(const u64* words, u64 nbytes) {
  const u8* head = (const u8*)words;
  u64 known = nbytes < 8 ? (1ull << 8 * nbytes) - 1 : ~0ull;
  if ((words[0] ^ kMagic) & known) return kCorrupt;
  if (nbytes < kFixedNbytes) return kTruncated;
  if (head[8] != 1 || words[1] >> 33) return kUnsupportedVersion;
  bool relative = words[1] >> 32;
  if (head[9] > kProfileResident || (relative && head[9] == kProfileResident)) return kCorrupt;
  if (head[10]) return kUnsupportedVersion;
  u32 ndim = head[11], unit = head[21], alignment = head[22], block_words = (u32)words[9];
  if (ndim > kMostDims) return kLimitExceeded;
  if (head[20]) return kUnsupportedVersion;
  if (unit < 5 || unit > 12 || alignment < unit || alignment > 21 || head[23]) return kCorrupt;
  if (!has_valid_label(head)) return kCorrupt;
  u64 content = words[6], header = words[7], data = words[8];
  u64 padding = words[9] >> 32, between = (1u << alignment) - 1;
  if (content > kMostContent || header > kMostHeaderNbytes) return kLimitExceeded;
  if (header & between) return kCorrupt;
  if (data > 0x7fffffffull << unit) return kLimitExceeded;
  if ((data & ((1u << unit) - 1)) || block_words % kLeastBlockWords || block_words - 1 >= kMostBlockWords)
    return kCorrupt;
  if (padding > kMostPadding || ((header + data + padding) & between)) return kCorrupt;
  if (!relative && (words[12] | words[13])) return kCorrupt;
  u32 begin = kFixedNbytes + 8 * ndim;  // of the index
  if (nbytes < begin) return kTruncated;
  u64 expected = nbytes_of(words + kFixedNbytes / 8, ndim, (u32)(words[3] >> 48));
  if (expected == ~0ull) return kLimitExceeded;
  if (expected != content) return kCorrupt;
  u64 num_words = content >> (__ffs(head[24]) - 1);
  if (num_words > (u64)block_words << 32) return kLimitExceeded;
  if (!relative && num_words > (data >> unit) * block_words) return kCorrupt;
  bool has_index = !relative || data;
  return header < begin || (has_index && num_words > (header - begin) / 8 * block_words) ? kCorrupt : kDone;
}

// Of step 7: whether an entry of the index is wrong. Its block ends at `end` of `units`, and stored it takes `raw`.
DEV bool is_wrong(Entry entry, bool first, u32 end, u32 units, u32 raw, bool relative) {
  u32 begin = entry.place(), length = end - begin;
  bool wrong = (first && begin) || begin > end || end > units || length > raw || (entry.is_stored() && length != raw);
  return wrong || (length == 0 && (!relative || entry.checksum));
}

// Of step 7: where extensions end and zeros begin, in numbers of 8 bytes from `at` on; 0 if an extension is wrong.
DEV u32 extensions_end(const u64* words, u32 at, u32 end) {
  u32 before = 0;
#pragma unroll 1
  for (; at < end && (u32)words[at] != 0;) {
    u32 tag = (u32)words[at], length = (u32)(words[at] >> 32), odd = length & 7;
    if (tag <= before || length > (end - at - 1) * 8 || (tag == kEncoderTag && length != 4)) return 0;
    if (odd && words[at + 1 + length / 8] >> 8 * odd) return 0;
    at += 1 + (length + 7) / 8, before = tag;
  }
  return at;
}

// Whether numbers are zeros, as far as this one of so many threads looks.
DEV bool are_zeros(const u64* words, u64 begin, u64 end, u32 thread, u32 threads) {
  u64 any = 0;
#pragma unroll 1
  for (u64 i = begin + thread; i < end; i += threads) any |= words[i];
  return any == 0;
}
