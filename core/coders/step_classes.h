// By which exponents the encoder parts the words of a block into classes.
#pragma once
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

// log2(1 + i / 64) - i / 64 in units of 2^-6, rounded to the nearest.
constexpr uint8_t kLogErrors[64] = {0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5,
                                    5, 5, 5, 5, 5, 5, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4,
                                    4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 0};
constexpr unsigned kLogFraction = 6;

// log2(x) in units of 2^-6, for x of 1 to 2^24: off by less than 1. A float of x has nearly that below its sign, but
// for the exponent's bias. Some number for x of 0: no branches.
static inline uint32_t log2_64ths(uint32_t x) {
  constexpr unsigned kMantissaBits = 23, kBias = 127;
  const float number = static_cast<float>(static_cast<int32_t>(x));
  const uint32_t log = (load<uint32_t>(&number) >> (kMantissaBits - kLogFraction)) - (kBias << kLogFraction);
  return log + kLogErrors[log % (1u << kLogFraction)];
}
// About what m of n words at random places take as gaps in Rice's code with the best k.
uint64_t rice_cost(uint64_t n, uint64_t m);

// Choose thresholds: the cheapest way to cut the exponents into up to max_classes ranges. cost(first, last) is that of
// the range of cuts [first, last); cuts are exponents in ascending order, 1 to kMaxCuts of them.
// More than 16 change nothing; 12 cost 0.8 % in compact where 0.5 % of the words changed.
constexpr unsigned kMaxCuts = 16;

template <class Cost>
Thresholds choose_thresholds(const uint8_t* cuts, unsigned num_cuts, unsigned max_classes, Cost&& cost,
                             uint64_t* chosen_cost) {
  uint64_t best[kMaxClasses + 1][kMaxCuts + 1];
  uint8_t from[kMaxClasses + 1][kMaxCuts + 1];
  for (unsigned last = 1; last <= num_cuts; ++last) {
    best[1][last] = cost(0u, last);
    for (unsigned c = 2; c <= max_classes; ++c) best[c][last] = UINT64_MAX;
    // Two classes end at the last cut.
    for (unsigned first = 1; first < last && (max_classes > 2 || last == num_cuts); ++first) {
      const uint64_t range = cost(first, last);
      for (unsigned c = 2; c <= max_classes && c <= first + 1; ++c) {
        if (best[c - 1][first] + range >= best[c][last]) continue;
        best[c][last] = best[c - 1][first] + range;
        from[c][last] = static_cast<uint8_t>(first);
      }
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
