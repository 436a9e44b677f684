// Histograms on the compiler's vectors; each target's source includes this once. Everything is local to it.
#pragma once
#include <cstring>

#include "common/bits.h"
#include "transforms/histogram.h"

namespace tw {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(32), aligned(1), may_alias));

constexpr size_t kWindow = 16, kAtOnce = 8;  // values that are counted by comparing; so many counters fit the registers
constexpr size_t kRound = 255 * sizeof(Bytes);

// counts += lanes of `sums`.
void flush(const Bytes& sums, uint32_t* count) {
  uint8_t lanes[sizeof(Bytes)];
  std::memcpy(lanes, &sums, sizeof lanes);
  for (uint8_t lane : lanes) *count += lane;
}

// How often base + 0 .. base + 7 occur, to counts. Eight variables stay in registers, where an array would not.
void count_values(const uint8_t* bytes, size_t n, uint8_t base, uint32_t counts[kAtOnce]) {
  for (size_t start = 0; start < n; start += kRound) {
    const size_t end = n - start < kRound ? n : start + kRound;
    Bytes s0{}, s1{}, s2{}, s3{}, s4{}, s5{}, s6{}, s7{};
    for (size_t i = start; i < end; i += sizeof(Bytes)) {
      const Bytes values = *reinterpret_cast<const Bytes*>(bytes + i) - base;
      s0 -= reinterpret_cast<Bytes>(values == 0);
      s1 -= reinterpret_cast<Bytes>(values == 1);
      s2 -= reinterpret_cast<Bytes>(values == 2);
      s3 -= reinterpret_cast<Bytes>(values == 3);
      s4 -= reinterpret_cast<Bytes>(values == 4);
      s5 -= reinterpret_cast<Bytes>(values == 5);
      s6 -= reinterpret_cast<Bytes>(values == 6);
      s7 -= reinterpret_cast<Bytes>(values == 7);
    }
    flush(s0, counts + 0);
    flush(s1, counts + 1);
    flush(s2, counts + 2);
    flush(s3, counts + 3);
    flush(s4, counts + 4);
    flush(s5, counts + 5);
    flush(s6, counts + 6);
    flush(s7, counts + 7);
  }
}

// 0xff for each byte outside of [base, base + kWindow).
inline Bytes others(const uint8_t* bytes, uint8_t base) {
  return reinterpret_cast<Bytes>(*reinterpret_cast<const Bytes*>(bytes) - base >= kWindow);
}

// Counts the bytes outside of the window one by one. Most runs of 256 have none.
void count_others(const uint8_t* bytes, size_t n, uint8_t base, uint32_t histogram[256]) {
  for (size_t start = 0; start < n; start += 256) {
    const size_t end = n - start < 256 ? n : start + 256;
    Bytes any = {};
    for (size_t i = start; i < end; i += sizeof(Bytes)) any |= others(bytes + i, base);
    uint64_t eights[4];
    std::memcpy(eights, &any, sizeof eights);
    if ((eights[0] | eights[1] | eights[2] | eights[3]) == 0) continue;
    for (size_t i = start; i < end; i += sizeof(Bytes)) {
      const Bytes found = others(bytes + i, base);
      std::memcpy(eights, &found, sizeof eights);
      for (size_t j = 0; j < 4; ++j) {
        for (uint64_t left = eights[j] & 0x0101010101010101u; left != 0; left &= left - 1) {
          ++histogram[bytes[i + 8 * j + trailing_zeros(left, 0) / 8]];
        }
      }
    }
  }
}

// A window that nearly all of the bytes seem to fall into: the best for a sample, moved up so that two values lie above
// the largest of the sample (exponents end soon above, and below they only fade).
uint8_t choose_window(const uint8_t* bytes, size_t n) {
  constexpr size_t kSamples = 128, kAbove = 2;
  uint16_t sample[256] = {};
  for (size_t i = 0; i < kSamples; ++i) ++sample[bytes[i * n / kSamples]];
  size_t sum = 0, best = 0, top = 0, last = 0;
  for (size_t v = 0; v < 256; ++v) {
    sum += sample[v];
    if (v >= kWindow) sum -= sample[v - kWindow];
    if (sample[v] != 0) last = v;
    if (sum > best) best = sum, top = last;
  }
  top = top + kAbove < 255 ? top + kAbove : 255;
  return static_cast<uint8_t>(top < kWindow ? 0 : top - kWindow + 1);
}

// Exact whatever the sample says; the sample only makes it fast.
void byte_histogram_vector(const uint8_t* bytes, size_t n, uint32_t histogram[256]) {
  std::memset(histogram, 0, 256 * sizeof *histogram);
  const size_t whole = n / sizeof(Bytes) * sizeof(Bytes);
  for (size_t i = whole; i < n; ++i) ++histogram[bytes[i]];
  if (whole == 0) return;
  const uint8_t base = choose_window(bytes, whole);
  uint32_t counts[kWindow] = {};
  count_values(bytes, whole, base, counts);
  count_values(bytes, whole, static_cast<uint8_t>(base + kAtOnce), counts + kAtOnce);
  uint32_t counted = 0;
  for (unsigned j = 0; j < kWindow; ++j) {
    counted += counts[j];
    histogram[static_cast<uint8_t>(base + j)] += counts[j];
  }
  if (counted != whole) count_others(bytes, whole, base, histogram);
}

}  // namespace
}  // namespace tw
