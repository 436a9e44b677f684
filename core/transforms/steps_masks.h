// What the step kernels ask about 64 words at a time, for targets without instructions of their own for it. Everything
// is local to the including source.
#pragma once
#include <cstring>

#include "common/prefetch.h"
#include "transforms/deposit.h"
#include "transforms/steps.h"

namespace tw {
namespace {

inline uint64_t low_bits(size_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }
inline unsigned count_bits(uint64_t mask) { return static_cast<unsigned>(__builtin_popcountll(mask)); }

template <class T>
inline T magnitude_of(T word) {
  return static_cast<T>(word & static_cast<T>(static_cast<T>(~T{0}) >> 1));
}

// What apply_sparse() keeps in registers, as far as it can.
template <unsigned kClasses>
struct Cursor {
  uint64_t limits[kClasses];  // one less than classes
  const uint64_t* ranks[kClasses];
  const uint8_t* steps[kClasses];
  uint64_t seen[kClasses];
};

// The changed words of each class among 64 of the base.
template <unsigned kClasses>
struct Changed {
  uint64_t of[kClasses];
};

// body(words, base, g, mask of what there is) for each 64 words. The last ones, if they are fewer, are handed out in a
// copy.
template <class T, class Body>
inline void for_groups(const uint8_t* words, const uint8_t* base, size_t n, Body&& body) {
  constexpr size_t nbytes = kMaskWords * sizeof(T);
  size_t g = 0;
  for (; g < n / kMaskWords; ++g) body(words + g * nbytes, base + g * nbytes, g, ~uint64_t{0});
  const size_t left = n % kMaskWords;
  if (left == 0) return;
  uint8_t last_words[nbytes] = {}, last_base[nbytes] = {};
  std::memcpy(last_words, words + g * nbytes, left * sizeof(T));
  std::memcpy(last_base, base + g * nbytes, left * sizeof(T));
  body(last_words, last_base, g, low_bits(left));
}

// How far ahead of its use the base is fetched: processors do not go on by themselves into the next page.
constexpr size_t kAhead = 4096;

template <class T>
inline __attribute__((always_inline)) void fetch_ahead(const uint8_t* group) {
  prefetch(group + kAhead, group + kAhead + kMaskWords * sizeof(T));
}

// Writes bits. Stores 8 bytes at a time, so that as many must have room behind the last one.
class BitSink {
 public:
  explicit BitSink(uint8_t* out) : out_(out) {}
  // width is at most 56, value below 2^width.
  void put(uint64_t value, unsigned width) {
    pending_ |= value << fill_;
    store(out_, pending_);
    fill_ += width;
    out_ += fill_ / 8;
    pending_ >>= fill_ / 8 * 8;
    fill_ %= 8;
  }
  // width is at most 64. No branch: how many of 64 words changed, no processor foresees.
  inline __attribute__((always_inline)) void put_long(uint64_t value, unsigned width) {
    const unsigned lower = width < 32 ? width : 32;
    put(value & UINT32_MAX, lower);
    put(value >> 32, width - lower);
  }
  // The last bits, and zeros behind them. Returns how many bits there are from `start` on.
  uint64_t finish(const uint8_t* start) {
    store(out_, pending_);
    return 8 * static_cast<uint64_t>(out_ - start) + fill_;
  }

 private:
  uint8_t* out_;
  uint64_t pending_ = 0;
  unsigned fill_ = 0;  // bits in pending_, below 8
};

// The next bits of a string, at least 8 * kNbytes - 7 of them, from bit `source->at % 8` on: in place, or a copy with
// zeros behind it where the string ends.
template <size_t kNbytes>
inline const uint8_t* next_bytes(const BitSource& source, uint8_t* copy) {
  const uint64_t byte = source.at / 8;
  if (byte + kNbytes <= source.nbytes) return source.src + byte;
  std::memset(copy, 0, kNbytes);
  if (byte < source.nbytes) std::memcpy(copy, source.src + byte, source.nbytes - byte);
  return copy;
}

// What targets have in common that lack the instructions for it.
struct PortableMasks {
  static uint64_t at_least(const uint8_t* bytes, uint8_t limit) {
    uint8_t flags[kMaskWords];
    for (size_t i = 0; i < kMaskWords; ++i) flags[i] = bytes[i] >= limit;
    return gather(flags);
  }
  template <class T>
  static uint64_t differ(const uint8_t* a, const uint8_t* b) {
    uint8_t flags[kMaskWords];
    for (size_t i = 0; i < kMaskWords; ++i) flags[i] = load<T>(a + i * sizeof(T)) != load<T>(b + i * sizeof(T));
    return gather(flags);
  }
  template <class T>
  static uint64_t reach(const uint8_t* words, T limit) {
    uint8_t flags[kMaskWords];
    for (size_t i = 0; i < kMaskWords; ++i) flags[i] = magnitude_of(load<T>(words + i * sizeof(T))) >= limit;
    return gather(flags);
  }
  static uint64_t deposit(uint64_t bits, uint64_t mask) {
    bits &= low_bits(count_bits(mask));
    return bits == 0 ? 0 : portable_deposit(bits, mask);  // mostly 0 where few words changed
  }
  static uint64_t extract(uint64_t bits, uint64_t mask) { return portable_extract(bits, mask); }
  // The numbers of a mask's `bits` ones, the first bit being number `first`. Writes up to 64 numbers.
  static void list(uint64_t mask, unsigned bits, uint32_t first, uint32_t* places) {
    constexpr unsigned kAtOnce = 4;  // and those always: then nearly all masks take the same way
    unsigned i = 0;
    do {
      for (const unsigned end = i + kAtOnce; i < end; ++i, mask &= mask - 1) {
        places[i] = first + static_cast<uint32_t>(__builtin_ctzll(mask | uint64_t{1} << 63));
        asm volatile("" ::: "memory");  // else GCC puts four of them into a vector, one by one
      }
    } while (i < bits);
  }
  // Whether the target has an add(), which moves 64 words by their steps.
  static constexpr bool kAdds = false;
  // Whether the words of this type are among those that the target's Dense is for (dense_steps_avx2.h).
  template <class T>
  static constexpr bool kDense = false;

 private:
  // Bit i from byte i, each 0 or 1: a product moves 8 of them into its highest byte.
  static uint64_t gather(const uint8_t flags[kMaskWords]) {
    uint64_t mask = 0;
    for (size_t i = 0; i < kMaskWords; i += 8) mask |= load<uint64_t>(flags + i) * 0x0102040810204080u >> 56 << i;
    return mask;
  }
};

}  // namespace
}  // namespace tw
