// By which exponents the encoder parts the words of a block into classes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/bits.h"
#include "transforms/steps.h"

namespace tw {

// Ascending exponents: class c + 1 begins at thresholds[c].
struct Thresholds {
  unsigned num_classes = 1;
  uint8_t thresholds[kMaxClasses - 1];
};

StepClasses classes_of(const Layout& dtype, const Thresholds& thresholds);

// Costs are bits in units of 2^-8.
constexpr unsigned kCostFraction = 8;

constexpr unsigned kLogFraction = 6;

// The bits of a float of x, which has nearly its logarithm below the sign; exact for x below 2^24.
static inline uint32_t float_bits(uint32_t x) {
  const float number = static_cast<float>(static_cast<int32_t>(x));
  return load<uint32_t>(&number);
}
constexpr unsigned kFloatMantissa = 23, kFloatBias = 127;

// Ones or zeros: no branches.
static inline uint32_t all_if(bool flag) { return 0u - flag; }

// bit_length(x), for x below 2^24.
static inline uint32_t float_length(uint32_t x) {
  return ((float_bits(x) >> kFloatMantissa) - (kFloatBias - 1)) & all_if(x != 0);
}

// log2(x) in units of 2^-6, for x of 1 to 2^24: off by less than 1. Some number for x of 0.
static inline uint32_t log2_64ths(uint32_t x) {
  constexpr uint32_t kOne = 1u << kLogFraction;
  const uint32_t log = (float_bits(x) >> (kFloatMantissa - kLogFraction)) - kFloatBias * kOne, i = log % kOne;
  // log2(1 + i / 64) - i / 64, rounded to the nearest.
  return log + ((i * (kOne - i) * (6750 - 38 * i) + 566231) >> 20);
}

constexpr unsigned kMaxGapLog = 20 << kLogFraction;
// By log2(n / m): what each of m of n words at random places takes as a gap in Rice's code with the best k.
extern const std::array<uint16_t, kMaxGapLog> kGapCosts;
// Where that stands, by the logarithms of both.
static inline uint32_t gap_log(uint32_t log_n, uint32_t log_m) {
  const uint32_t log = log_n > log_m ? log_n - log_m : 0;
  return log < kMaxGapLog ? log : kMaxGapLog - 1;
}

// Choose thresholds: the cheapest way to cut the exponents into up to max_classes ranges. costs(last, of) gives those
// of the ranges of cuts [first, last) for each first; cuts are exponents in ascending order, 1 to kMaxCuts of them.
// More than 16 change nothing; 12 cost 0.8 % in compact where 0.5 % of the words changed.
constexpr unsigned kMaxCuts = 16;

template <class Costs>
Thresholds choose_thresholds(const uint8_t* cuts, unsigned num_cuts, unsigned max_classes, Costs&& costs,
                             uint64_t* chosen_cost) {
  uint64_t best[kMaxClasses + 1][kMaxCuts + 1];
  uint8_t from[kMaxClasses + 1][kMaxCuts + 1];
  for (unsigned last = 1; last <= num_cuts; ++last) {
    uint64_t ranges[kMaxCuts];
    costs(last, ranges);
    best[1][last] = ranges[0];
    for (unsigned c = 2; c <= max_classes; ++c) {
      // No branches: no processor foresees which is best.
      uint64_t least = UINT64_MAX;
      unsigned at = 0;
      for (unsigned first = c - 1; first < last; ++first) {
        const uint64_t cost = best[c - 1][first] + ranges[first];
        at = cost < least ? first : at;
        least = cost < least ? cost : least;
      }
      best[c][last] = least;
      from[c][last] = static_cast<uint8_t>(at);
    }
  }
  unsigned num_classes = 1;
  for (unsigned c = 2; c <= max_classes; ++c) {
    if (best[c][num_cuts] < best[num_classes][num_cuts]) num_classes = c;
  }
  *chosen_cost = best[num_classes][num_cuts];
  Thresholds chosen = {num_classes, {}};
  unsigned last = num_cuts;
  for (unsigned t = kMaxClasses - 1; t-- > 0;) {
    if (t + 1 >= num_classes) continue;  // not in the loop's bounds, which GCC would not believe
    last = from[t + 2][last];
    chosen.thresholds[t] = cuts[last];
  }
  return chosen;
}

}  // namespace tw
