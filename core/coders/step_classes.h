// By which exponents the encoder parts the words of a block into classes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "transforms/steps.h"

namespace tw {

// Ascending exponents: class c + 1 begins at thresholds[c].
struct Thresholds {
  unsigned num_classes = 1;
  uint8_t thresholds[kMaxClasses - 1];
};

StepClasses classes_of(const Dtype& dtype, const Thresholds& thresholds);

// Costs are bits in units of 2^-8.
constexpr unsigned kCostFraction = 8;

// log2(x) in units of 2^-6, for x of at least 1: off by less than 1.
uint32_t log2_64ths(uint64_t x);
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
  Thresholds chosen;
  for (unsigned c = 2; c <= max_classes; ++c) {
    if (best[c][num_cuts] < best[chosen.num_classes][num_cuts]) chosen.num_classes = c;
  }
  *chosen_cost = best[chosen.num_classes][num_cuts];
  unsigned last = num_cuts;
  for (unsigned c = chosen.num_classes; c > 1; --c) {
    last = from[c][last];
    chosen.thresholds[c - 2] = cuts[last];
  }
  return chosen;
}

}  // namespace tw
