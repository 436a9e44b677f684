// Bit strings of docs/format.md, as a warp writes them to shared memory that was zero: all lanes hold what they say of
// the string as a whole, and codes of all lanes are written at the same time.
#pragma once
#include "dev.h"

constexpr u32 kRiceBits = 5, kGolombBits = 6;  // of a k, of an order

DEV u32 bit_length(u32 value) { return 32 - __clz(value); }

// Put bits, of which `value` has the ones, from bit `at` on.
DEV void put_bits(u32* words, u32 at, u32 value) {
  u32* word = words + (at >> 5);
  u32 low = value << (at & 31), high = __funnelshift_l(value, 0, at);
  if (low) atomicOr(word, low);
  if (high) atomicOr(word + 1, high);
}

// Codes of up to 32 bits together.
struct Codes {
  u32 bits = 0, width = 0;

  METHOD void add(u32 value, u32 more) { bits |= value << width, width += more; }
  // golomb(order)
  METHOD void add_golomb(u32 value, u32 order) {
    u32 sum = value + (1u << order), more = bit_length(sum) - 1 - order;
    add(1u << more, more + 1);
    add(sum & ((1u << (more + order)) - 1), more + order);
  }
};

struct BitString {
  u32* words;
  u32 nbits;

  // Codes of the string as a whole.
  METHOD void put(const Codes& codes) {
    if ((threadIdx.x & 31) == 0) put_bits(words, nbits, codes.bits);
    nbits += codes.width;
  }

  // A code of each lane that has one: `zeros`, then the bits of `code` up to a length of all; 0 for a lane without one.
  METHOD void put_each(u32 zeros, u32 code, u32 length) {
    u32 end = length;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) end = add_before<32>(end, d);
    if (length) put_bits(words, nbits + end - length + zeros, code);
    nbits += __shfl_sync(0xffffffffu, end, 31);
  }

  // Rice's code of each lane that has a gap, and `extra` bits behind it.
  METHOD void put_gaps(bool has, u32 gap, u32 k, u32 behind, u32 extra) {
    u32 zeros = gap >> k, low = gap - (zeros << k);
    put_each(zeros, 1 | low << 1 | behind << (k + 1), has ? zeros + 1 + k + extra : 0);
  }
};

// The k of Rice's code that suits gaps of this sum below 2^16, at least one of them: the best one for gaps of members
// at random places. That is the least k with 2^k >= 0.4812 * (mean + 1 / 2): 0.4812 is the logarithm of the golden
// ratio.
DEV u32 rice_k(u32 sum, u32 count) {
  u32 wanted = (2 * sum + count) * 123 - 1, unit = 512 * count, more = bit_length(wanted), less = bit_length(unit);
  return more < less ? 0 : more - less + (wanted >= unit << (more - less));  // the bit length of wanted / unit
}
