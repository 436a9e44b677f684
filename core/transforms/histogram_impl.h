// Histograms by vectors. Each target's source includes this once, after it has defined
// - Vector, of bytes;
// - in_window(): from values, those below 16 for one_hot() to look up, others with the upper bit;
// - any_high_bit(): whether any byte has it;
// - one_hot<UPPER>(): bit j of a byte for value j, or 8 + j; 0 for others.
// Everything is local to that source.
#pragma once
#include <cstring>

#include "common/bits.h"
#include "transforms/histogram.h"

namespace tw {
namespace {

typedef Vector UnalignedVector __attribute__((aligned(1), may_alias));
inline Vector load_vector(const uint8_t* bytes) { return *reinterpret_cast<const UnalignedVector*>(bytes); }

constexpr size_t kWindow = 16;  // values that are counted by their bits, 8 in each of two vectors
constexpr unsigned kLevels = 4;
constexpr uint32_t kGroup = 1u << kLevels;  // vectors that are added up before anything is counted
constexpr size_t kRounds = 255;             // groups that a byte can count

// Counts how often each bit is set in vectors of them: numbers of 4 bits, a bit in each of the sums, added up by full
// adders; what is carried out of them is counted in bytes. UPPER: for the upper 8 values of the window.
template <bool UPPER>
class BitCounts {
 public:
  // kGroup vectors of bytes, as in_window() gives them.
  inline void add_group(const uint8_t* bytes, uint8_t base, Vector* others) {
    const Vector carry = sum<kLevels>(bytes, base, others);
    for (unsigned bit = 0; bit < 8; ++bit) counts_[bit] += carry >> bit & 1;
  }

  void flush(uint32_t counts[8]) const {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Vector left = {};
      for (unsigned level = 0; level < kLevels; ++level) left += (sums_[level] >> bit & 1) << level;
      counts[bit] += kGroup * lanes(counts_[bit]) + lanes(left);
    }
  }

 private:
  // Adds 2^LEVEL vectors; returns what is carried out.
  template <unsigned LEVEL>
  __attribute__((always_inline)) inline Vector sum(const uint8_t* bytes, uint8_t base, Vector* others) {
    if constexpr (LEVEL == 0) {
      const Vector index = in_window(load_vector(bytes) - base);
      if (UPPER) *others |= index;
      return one_hot<UPPER>(index);
    } else {
      constexpr size_t kHalf = sizeof(Vector) << (LEVEL - 1);
      const Vector a = sum<LEVEL - 1>(bytes, base, others), b = sum<LEVEL - 1>(bytes + kHalf, base, others);
      Vector& digit = sums_[LEVEL - 1];
      const Vector half = digit ^ a, carry = (digit & a) | (half & b);
      digit = half ^ b;
      return carry;
    }
  }

  // The sum of all bytes.
  static uint32_t lanes(Vector vector) {
    constexpr uint64_t kEven = 0x00ff00ff00ff00ffu;
    uint64_t eights[sizeof(Vector) / 8];
    std::memcpy(eights, &vector, sizeof eights);
    uint64_t sums = 0;  // four of 16 bits
    for (uint64_t eight : eights) sums += (eight & kEven) + (eight >> 8 & kEven);
    return static_cast<uint32_t>(sums * 0x0001000100010001u >> 48);
  }

  Vector sums_[kLevels] = {}, counts_[8] = {};
};

constexpr size_t kGroupNbytes = kGroup * sizeof(Vector);

// Counts the bytes of a group that are outside of the window one by one.
void count_others(const uint8_t* bytes, uint8_t base, uint32_t histogram[256]) {
  for (size_t i = 0; i < kGroupNbytes; i += sizeof(Vector)) {
    const Vector index = in_window(load_vector(bytes + i) - base);
    if (!any_high_bit(index)) continue;
    uint64_t eights[sizeof(Vector) / 8];
    std::memcpy(eights, &index, sizeof eights);
    for (size_t j = 0; j < sizeof(Vector) / 8; ++j) {
      for (uint64_t left = eights[j] & 0x8080808080808080u; left != 0; left &= left - 1) {
        ++histogram[bytes[i + 8 * j + trailing_zeros(left, 0) / 8]];
      }
    }
  }
}

// A window that nearly all of the bytes seem to fall into: the best for a sample, moved up so that two values lie above
// the largest of the sample (exponents end soon above, and below they only fade). False if it misses too many.
bool choose_window(const uint8_t* bytes, size_t n, uint8_t* base) {
  constexpr size_t kSamples = 128, kEnough = 102, kAbove = 2;
  uint8_t sample[256] = {};
  size_t first = 255, last = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    const uint8_t byte = bytes[i * n / kSamples];
    ++sample[byte];
    first = byte < first ? byte : first;
    last = byte > last ? byte : last;
  }
  size_t sum = 0, best = 0, top = first;
  for (size_t v = first; v <= last; ++v) {
    sum += sample[v];
    if (v >= first + kWindow) sum -= sample[v - kWindow];
    if (sum > best) best = sum, top = v;
  }
  top = top + kAbove < 255 ? top + kAbove : 255;
  *base = static_cast<uint8_t>(top < kWindow ? 0 : top - kWindow + 1);
  return best >= kEnough;
}

// At most kRounds groups, the one at `last` among them if that is not nullptr: those in the window to counts, others to
// the histogram.
void count_groups(const uint8_t* bytes, size_t n, const uint8_t* last, uint8_t base, uint32_t counts[kWindow],
                  uint32_t histogram[256]) {
  BitCounts<false> lower;
  BitCounts<true> upper;
  const size_t groups = n / kGroupNbytes + (last != nullptr);
  for (size_t i = 0; i < groups; ++i, bytes += kGroupNbytes) {
    const uint8_t* group = last != nullptr && i + 1 == groups ? last : bytes;
    Vector others = {};
    lower.add_group(group, base, &others);
    upper.add_group(group, base, &others);
    if (any_high_bit(others)) count_others(group, base, histogram);
  }
  lower.flush(counts);
  upper.flush(counts + 8);
}

// Exact whatever the sample says; the sample only makes it fast.
void byte_histogram_vector(const uint8_t* bytes, size_t n, uint32_t histogram[256]) {
  uint8_t base = 0;
  if (n == 0 || !choose_window(bytes, n, &base)) return byte_histogram(bytes, n, histogram);
  std::memset(histogram, 0, 256 * sizeof *histogram);
  uint32_t counts[kWindow] = {};
  constexpr size_t kMost = kRounds * kGroupNbytes;
  for (; n >= kMost; n -= kMost, bytes += kMost) count_groups(bytes, kMost, nullptr, base, counts, histogram);
  if (n != 0) {
    const size_t rest = n % kGroupNbytes, whole = n - rest;
    uint8_t last[kGroupNbytes];
    if (rest != 0) std::memcpy(last, bytes + whole, rest);
    std::memset(last + rest, base, kGroupNbytes - rest);
    count_groups(bytes, whole, last, base, counts, histogram);
    counts[0] -= static_cast<uint32_t>(kGroupNbytes - rest);
  }
  for (unsigned j = 0; j < kWindow; ++j) histogram[static_cast<uint8_t>(base + j)] += counts[j];
}

}  // namespace
}  // namespace tw
