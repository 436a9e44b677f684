// Bit strings of docs/format.md, read: codes one by one, and numbers in Rice's code by all lanes of a warp.
#pragma once
#include "dev.h"

// A place in the bit string of a block, whose bytes are at a multiple of 4 and 8 at least.
struct Bits {
  const u32* words;
  u32 at;
  u32 last;  // the number of the last but one 32-bit word: nothing behind it is read
  u32 end;   // bits that codes may have
};

constexpr u32 kTooLarge = 1 << 18;  // a number that no code of a valid string has

// The 32 bits from here on. Behind the block's bytes they have no meaning.
DEV u32 window(const Bits& bits) {
  const u32* words = bits.words + min(bits.at >> 5, bits.last);
  return __funnelshift_r(words[0], words[1], bits.at & 31);
}

// `count` bits, below 32.
DEV u32 take(Bits& bits, u32 count) {
  u32 value = window(bits) & ((1u << count) - 1);
  bits.at += count;
  return value;
}

// How many zeros stand from here to the next one, of 32 and more. As many as there are bits, if none stands behind.
DEV u32 many_zeros(Bits bits) {
  u32 zeros = 32;
#pragma unroll 1
  for (bits.at += 32; bits.at < bits.end; bits.at += 32, zeros += 32) {
    u32 own = window(bits);
    if (own) return zeros + __ffs(own) - 1;
  }
  return kTooLarge;
}

DEV u32 unary(Bits& bits) {
  u32 own = window(bits), zeros = own ? __ffs(own) - 1 : many_zeros(bits);
  bits.at += zeros + 1;
  return zeros;
}

// The number of an exponential Golomb code of order g behind its q zeros and the one, where q + g is over 18: kTooLarge
// but for high bits that are all zeros.
DEV u32 long_golomb(Bits bits, u32 q, u32 g) {
  if (q || g > 63) return kTooLarge;
  u32 low = take(bits, 18), rest = 0;
#pragma unroll 1
  for (u32 left = g - 18; left;) {
    u32 some = min(left, 31u);
    rest |= take(bits, some);
    left -= some;
  }
  return rest ? kTooLarge : low;
}

// Exponential Golomb of order g, up to 63; kTooLarge for all numbers from there on.
DEV u32 golomb(Bits& bits, u32 g) {
  u32 q = unary(bits), value;
  if (q + g <= 18)
    value = ((1u << q) - 1 << g) + (window(bits) & ((1u << (q + g)) - 1));
  else
    value = long_golomb(bits, q, g);
  bits.at += min(q + g, kTooLarge);
  return value;
}

// The number of Rice's code of k, up to 31, and a bit behind it if SIGNS: exact below kTooLarge, and not below it for
// all others.
template <bool SIGNS>
DEV u32 rice(Bits& bits, u32 k, u32* sign) {
  u32 own = window(bits), shift = min(k, 24u);  // no sum below overflows then
  u32 q = __ffs(own) - 1, high = q << shift;
  if (own == 0) {
    q = many_zeros(bits);
    high = q > kTooLarge >> shift ? kTooLarge : q << shift;
  }
  own = own >> q >> 1;
  bits.at += q + 1;
  if (q + k + SIGNS >= 32) own = window(bits);
  bits.at += k + SIGNS;
  if (SIGNS) *sign = own >> k & 1;
  return high + (own & ((1u << k) - 1));
}

// The sum of what lanes before this one have, and that of all.
DEV u32 sum_before(u32 value, u32 lane, u32* total) {
  u32 sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) sum = add_before<32>(sum, d);
  *total = __shfl_sync(0xffffffffu, sum, 31);
  return sum - value;
}

// `count` numbers below n, ascending, each as the gap to the one before, by all lanes of a warp. Each lane begins
// somewhere. Wrong codes soon fall in with the right ones, and a lane that did not begin where the lane before it ends
// begins there again. Lane 0 begins right, so all do when nothing changes any more. What is behind the last code has
// codes as well; lanes that begin there do so for nothing, so that all take about as many bits as the codes have: half
// of the gaps that a good k is for have no more than one zero. Codes that are left then are read the same way.
//
// `numbers` gets them, with the sign in bit 15; n is at most 32,768 then. Null: only where the codes end is looked for,
// and nothing is said of the numbers. False if they are not valid.
template <bool SIGNS>
DEV bool read_numbers(Bits& bits, u32 count, u32 k, u32 n, u16* numbers) {
  u32 lane = threadIdx.x & 31, sign = 0, done = 0, next = 0;  // next: the least that the next number may be
  bool right = true;
#pragma unroll 1
  while (done < count && bits.at < bits.end && right) {
    u32 left = count - done, share = (left * (k + 2 + SIGNS) + left / 8 + 63) / 32, first = bits.at;
    u32 start = min(first + lane * share, bits.end), stop = min(first + (lane + 1) * share, bits.end);
    u32 found = 0, sum = 0, end = 0;
    bool stale = true;
#pragma unroll 1
    for (u32 round = 0; round <= 32; round++) {
      if (stale) {
        Bits own = {bits.words, start, bits.last, bits.end};
        found = sum = 0;
#pragma unroll 1
        while (own.at < stop) {
          sum += min(rice<SIGNS>(own, k, &sign), n) + 1;
          found++;
        }
        end = own.at;
      }
      __syncwarp();
      u32 before = __shfl_up_sync(0xffffffffu, end, 1);
      if (lane == 0) before = first;
      stale = before != start;
      start = before;
      if (!__any_sync(0xffffffffu, stale)) break;
    }
    u32 all, sums, i = done + sum_before(found, lane, &all), number = next + sum_before(sum, lane, &sums);
    Bits own = {bits.words, start, bits.last, bits.end};
#pragma unroll 1
    while (own.at < stop && i < count && right) {
      number += min(rice<SIGNS>(own, k, &sign), n);
      if (numbers) {
        right = number < n;
        if (right) numbers[i] = (u16)(number | sign << 15);
      }
      number++, i++;
    }
    __syncwarp();
    bits.at = __reduce_max_sync(0xffffffffu, own.at > start ? own.at : 0);
    right = !__any_sync(0xffffffffu, !right);
    done += all, next = min(next + sums, n);
  }
  return right && done >= count && bits.at <= bits.end;
}
