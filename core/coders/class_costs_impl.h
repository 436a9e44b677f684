// The costs of classes, written for the compiler's vectoriser: each target's source includes this once. Everything is
// local to it.
#pragma once
#include "coders/class_costs.h"

namespace tw {
namespace {

void costs(const CutSums& sums, unsigned last, uint64_t costs[kMaxCuts]) {
  // By the first cut: words of the set before, the logarithm of their number, and what there is so far.
  uint32_t before[kMaxCuts], log_before[kMaxCuts], bits[kMaxCuts];
  uint32_t counts[kSizeRanges][kMaxCuts], logs[kSizeRanges][kMaxCuts];  // of gaps
  for (unsigned first = 0; first < kMaxCuts; ++first) {
    const uint32_t m = sums.steps[0][last] - sums.steps[0][first], log = log2_64ths(m);
    const uint32_t words = sums.words[last] - sums.words[first], n = words > m ? words : m;
    bits[first] = 8 + kRiceBits + 2 * float_length(m) + m;
    counts[0][first] = before[first] = m;
    logs[0][first] = gap_log(log2_64ths(n), log);
    log_before[first] = log;
  }
  for (unsigned s = 1; s < kSizeRanges; ++s) {
    for (unsigned first = 0; first < kMaxCuts; ++first) {
      const uint32_t n = before[first], m = sums.steps[s][last] - sums.steps[s][first], others = n - m;
      const uint32_t few = m <= n / 2 ? m : others;
      bits[first] += (2 * float_length(few + 1) & all_if(n != 0)) + (kRiceBits & all_if(few != 0));
      counts[s][first] = few;
      logs[s][first] = gap_log(log_before[first], log2_64ths(few));
      before[first] = m;
      log_before[first] = log2_64ths(m);
    }
  }
  for (unsigned first = 0; first < kMaxCuts; ++first) {
    bits[first] += (kGolombBits & all_if(before[first] != 0)) + 4 * before[first];
  }
  for (unsigned first = 0; first < last; ++first) {
    uint64_t cost = uint64_t{bits[first]} << kCostFraction;
    for (unsigned s = 0; s < kSizeRanges; ++s) cost += uint64_t{counts[s][first]} * kGapCosts[logs[s][first]];
    costs[first] = cost;
  }
}

}  // namespace
}  // namespace tw
