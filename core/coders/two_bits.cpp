#include "coders/two_bits.h"

#include <cstring>

#include "coders/cascade.h"
#include "common/bits.h"
#include "common/cpu.h"

namespace tw {
namespace {

constexpr uint8_t kEscape = 3;
constexpr size_t kRunsAtOnce = 8;  // what stays in the first-level cache

// Where a target has no kernels of its own: those of its planes and tiers in turn, in tiles that stay in the cache.
size_t expand(const uint8_t* field, const DigitNames& names, const uint8_t* next, size_t num_runs, uint8_t* out) {
  uint8_t tile[kRunsAtOnce * kRun + kSlack];
  size_t used = 0;
  for (size_t run = 0; run < num_runs; run += kRunsAtOnce) {
    const size_t n = (num_runs - run < kRunsAtOnce ? num_runs - run : kRunsAtOnce) * kRun;
    plane_kernels.unpack_field(2, field + run * kRun / 4, n, tile);
    used += cascade_kernels.expand(kEscape, names.low, next + used, n, tile);
    std::memcpy(out + run * kRun, tile, n);
  }
  return used;
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, const uint8_t* exponents, size_t num_runs, uint8_t* field,
             uint8_t* next) {
  uint8_t digits[kRunsAtOnce * kRun + kSlack];
  size_t escapes = 0;
  for (size_t run = 0; run < num_runs; run += kRunsAtOnce) {
    const size_t n = (num_runs - run < kRunsAtOnce ? num_runs - run : kRunsAtOnce) * kRun;
    escapes += cascade_kernels.split(start, below, gap, kEscape, exponents + run * kRun, n, digits, next + escapes);
    plane_kernels.pack_field(2, digits, n, field + run * kRun / 4);
  }
  return escapes;
}

void count(const uint8_t* field, size_t num_runs, uint32_t counts[2]) {
  constexpr uint64_t kLow = 0x5555555555555555u;
  uint32_t sums[2] = {};
  for (size_t i = 0; i < num_runs * kRun / 4; i += 8) {
    const uint64_t digits = load<uint64_t>(field + i), low = digits & kLow, high = digits >> 1 & kLow;
    sums[0] += static_cast<uint32_t>(__builtin_popcountll(low & ~high));
    sums[1] += static_cast<uint32_t>(__builtin_popcountll(high & ~low));
  }
  counts[0] = sums[0], counts[1] = sums[1];
}

}  // namespace

extern const TwoBitKernels kTwoBitAvx2, kTwoBitAvx512, kTwoBitInTurn;
const TwoBitKernels kTwoBitInTurn = {expand, split, count};

const TwoBitKernels& two_bit_kernels = pick<kTwoBitInTurn, kTwoBitAvx2, kTwoBitAvx512>();

}  // namespace tw
