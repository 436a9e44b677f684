// Bit strings of docs/format.md: codes one after the other, from the lowest bit of the first byte.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/bits.h"

namespace tw {

constexpr unsigned kMaxGolombBits = 63;  // of q + g
constexpr unsigned kMaxRice = 31;

// Reads codes from `nbytes` bytes and touches none behind them, whatever they say. What stands there reads as zeros; a
// reader that has gone there is not ok(). A caller bounds its loops by what it has room for, and asks ok() at the end.
class BitReader {
 public:
  BitReader(const uint8_t* src, size_t nbytes) : src_(src), nbytes_(nbytes) {}

  // width is 0 to 64.
  uint64_t bits(unsigned width) {
    if (width > kWindow) {
      const uint64_t low = bits(32);
      return low | bits(width - 32) << 32;
    }
    const uint64_t value = window() & ((uint64_t{1} << width) - 1);
    at_ += width;
    return value;
  }
  // The number of zeros before the next one.
  uint64_t unary() {
    uint64_t zeros = 0;
    for (;;) {
      const uint64_t next = window();
      if (next != 0) {
        const unsigned last = trailing_zeros(next, 0);
        at_ += last + 1;
        return zeros + last;
      }
      zeros += kWindow;
      at_ += kWindow;
      if (!ok()) return zeros;
    }
  }
  // unary() * 2^k + bits(k), k at most kMaxRice.
  uint64_t rice(unsigned k) {
    const uint64_t high = unary() << k;
    return high | bits(k);
  }
  // rice(k), then a bit: at one look where both are seen.
  uint64_t rice_and_bit(unsigned k, unsigned* bit) {
    const uint64_t next = window();
    const unsigned zeros = trailing_zeros(next, kWindow), width = zeros + k + 2;
    if (width > kWindow) {
      const uint64_t value = rice(k);
      *bit = static_cast<unsigned>(bits(1));
      return value;
    }
    at_ += width;
    *bit = static_cast<unsigned>(next >> (width - 1)) & 1;
    return uint64_t{zeros} << k | (next >> (zeros + 1) & ((uint64_t{1} << k) - 1));
  }
  // kCount times rice_and_bit(k), if one look shows all of them. Otherwise false, and nothing is read.
  template <unsigned kCount>
  bool rices_and_bits(unsigned k, uint64_t gaps[kCount], unsigned bits[kCount]) {
    const uint64_t low = (uint64_t{1} << k) - 1;
    uint64_t next = window();
    unsigned used = 0;
#pragma GCC unroll 4
    for (unsigned i = 0; i < kCount; ++i) {
      const unsigned zeros = static_cast<unsigned>(__builtin_ctzll(next | uint64_t{1} << 63));
      const unsigned width = zeros + k + 2;
      gaps[i] = uint64_t{zeros} << k | (next >> 1 >> zeros & low);
      bits[i] = static_cast<unsigned>(next >> ((width - 1) % 64)) & 1;
      next >>= width % 64;
      used += width;
    }
    if (used > kWindow) return false;
    at_ += used;
    return true;
  }
  // Exponential Golomb of order g. One that is too long makes the reader not ok.
  uint64_t golomb(unsigned g) {
    const uint64_t q = unary();
    if (q + g > kMaxGolombBits) return spoil();
    return (((uint64_t{1} << q) - 1) << g) + bits(static_cast<unsigned>(q) + g);
  }
  void skip(uint64_t nbits) { at_ += nbits; }
  // Whether all that was read stands in the bytes.
  bool ok() const { return at_ <= 8 * uint64_t{nbytes_}; }
  // Makes the reader not ok; gives 0.
  uint64_t spoil() {
    at_ = 8 * uint64_t{nbytes_} + 1;
    return 0;
  }
  // After the last code: whether it was ok and zeros follow up to a multiple of 4 bytes; *nbytes is that multiple.
  bool finish(size_t* nbytes);

 private:
  static constexpr unsigned kWindow = 57;  // bits that a load gives at least, wherever it begins in a byte

  uint64_t window() const {
    const uint64_t byte = at_ / 8;
    if (byte + 8 <= nbytes_) return load<uint64_t>(src_ + byte) >> at_ % 8;
    return last_bytes() >> at_ % 8;
  }
  uint64_t last_bytes() const;

  const uint8_t* src_;
  size_t nbytes_;
  uint64_t at_ = 0;  // bits read
};

// Writes codes to `capacity` bytes at most. No branch hangs on how long a code is: no processor foresees that.
class BitWriter {
 public:
  BitWriter(uint8_t* dst, size_t capacity) : dst_(dst), capacity_(capacity) {}

  // width is 0 to 64, value below 2^width.
  void bits(uint64_t value, unsigned width) {
    if (width <= kMost) return put(value, width);
    put(value & UINT32_MAX, 32);
    put(value >> 32, width - 32);
  }
  void unary(uint64_t zeros) {
    for (; zeros >= kMost; zeros -= kMost) put(0, kMost);
    put(uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
  }
  void rice(uint64_t value, unsigned k) {
    const uint64_t zeros = value >> k, low = value & ((uint64_t{1} << k) - 1);
    if (zeros + k + 1 <= kMost) return put((1 | low << 1) << zeros, static_cast<unsigned>(zeros) + k + 1);
    unary(zeros);
    put(low, k);
  }
  // rice(), then a bit: a code that may be too long for bits().
  struct RiceAndBit {
    uint64_t zeros, rest;  // the one, low bits, the bit
    unsigned width;        // of the rest
  };
  static RiceAndBit rice_and_bit(uint64_t value, unsigned k, uint64_t bit) {
    const uint64_t low = value & ((uint64_t{1} << k) - 1);
    return {value >> k, 1 | low << 1 | bit << (k + 1), k + 2};
  }
  void code(const RiceAndBit& code) {
    if (code.zeros + code.width <= kMost)
      return put(code.rest << code.zeros, static_cast<unsigned>(code.zeros) + code.width);
    for (uint64_t left = code.zeros; left != 0;) {
      const unsigned some = left < kMost ? static_cast<unsigned>(left) : kMost;
      put(0, some);
      left -= some;
    }
    put(code.rest, code.width);
  }
  // One after the other; at once if they are short, as nearly all are.
  void two_codes(const RiceAndBit& a, const RiceAndBit& b) {
    const uint64_t first = a.zeros + a.width, both = first + b.zeros + b.width;
    if (both <= kMost) return put(a.rest << a.zeros | b.rest << (first + b.zeros), static_cast<unsigned>(both));
    code(a);
    code(b);
  }
  // Exponential Golomb of order g; golomb_bits() must not be 0.
  void golomb(uint64_t value, unsigned g) {
    const unsigned q = bit_length((value >> g) + 1) - 1;
    unary(q);
    bits(value - (((uint64_t{1} << q) - 1) << g), q + g);
  }
  // Zeros up to a multiple of 4 bytes. False if the string does not fit; *nbytes is its size.
  bool finish(size_t* nbytes);

 private:
  static constexpr unsigned kMost = 56;  // bits that fit behind those of a byte that has begun

  void put(uint64_t value, unsigned width) {
    pending_ |= value << fill_;
    if (size_ + 8 <= capacity_) {
      store(dst_ + size_, pending_);
    } else {
      store_last();
    }
    fill_ += width;
    size_ += fill_ / 8;
    pending_ >>= fill_ / 8 * 8;
    fill_ %= 8;
  }
  // What of the pending bits has room.
  void store_last();

  uint8_t* dst_;
  size_t capacity_, size_ = 0;  // size_ goes on beyond the capacity
  uint64_t pending_ = 0;        // bits of the byte that has begun
  unsigned fill_ = 0;           // how many, below 8
};

// Bits of golomb(g) for a value; 0 if it has no such code.
inline unsigned golomb_bits(uint64_t value, unsigned g) {
  const uint64_t steps = (value >> g) + 1;
  const unsigned q = steps == 0 ? 64 : bit_length(steps) - 1;
  return q + g > kMaxGolombBits ? 0 : 2 * q + 1 + g;
}
inline constexpr uint64_t bit_string_nbytes(uint64_t nbits) { return 4 * ceil_div(nbits, 32); }

// The k of rice() for gaps that are shown to it one by one: the best of three around what their mean suggests.
class RiceChoice {
 public:
  RiceChoice(uint64_t sum, uint64_t count) : count_(count) {
    const unsigned about = count == 0 ? 0 : bit_length(sum / count);
    first_ = about < 2 ? 0 : about - 2;
    if (first_ > kMaxRice - 2) first_ = kMaxRice - 2;
  }
  void add(uint64_t gap) {
    gap >>= first_;
    for (uint64_t& quotients : quotients_) {
      quotients += gap;
      gap >>= 1;
    }
  }
  // All at once, if their sum is below 2^32.
  void add_all(const uint32_t* gaps, size_t count) {
    uint32_t sums[3] = {};
    const unsigned first = first_;
    for (size_t i = 0; i < count; ++i) {
      sums[0] += gaps[i] >> first;
      sums[1] += gaps[i] >> (first + 1);
      sums[2] += gaps[i] >> (first + 2);
    }
    for (unsigned i = 0; i < 3; ++i) quotients_[i] += sums[i];
  }
  unsigned k() const { return first_ + best(); }
  // What all gaps take with that k.
  uint64_t nbits() const { return bits_with(best()); }

 private:
  uint64_t bits_with(unsigned i) const { return quotients_[i] + count_ * (first_ + i + 1); }
  unsigned best() const {
    unsigned best = 0;
    for (unsigned i = 1; i < 3; ++i) {
      if (bits_with(i) < bits_with(best)) best = i;
    }
    return best;
  }

  uint64_t count_;
  unsigned first_;
  uint64_t quotients_[3] = {};
};

// Sets of numbers below n are masks: bit i mod 64 of word floor(i / 64), and no bits from n on.

// How a set is written.
struct SetPlan {
  bool inverted;
  unsigned k;
  size_t count;    // members, or others if inverted
  uint64_t nbits;  // of all of it
};

SetPlan plan_set(const uint64_t* mask, size_t n);
void write_set(BitWriter* writer, const uint64_t* mask, size_t n, const SetPlan& plan);
// Fills ceil(n / 64) words of the mask. False if the set is invalid; the mask has no bits from n on even then.
bool read_set(BitReader* reader, size_t n, uint64_t* mask);

}  // namespace tw
