// What AVX2 and AVX-512 do alike with tiers of two-bit digits. Everything is local to the including source.
#pragma once
#include <cstring>

#include "coders/two_bits.h"
#include "common/x86_bytes.h"
#include "transforms/planes.h"

namespace tw {
namespace {

inline uint32_t sum_of(Bytes numbers) {
  uint64_t each[sizeof(Bytes) / 8], sum = 0;
  std::memcpy(each, &numbers, sizeof each);
  for (uint64_t number : each) sum += number;
  return static_cast<uint32_t>(sum);
}

// TwoBitKernels::count.
void count(const uint8_t* field, size_t num_runs, uint32_t counts[2]) {
  // In the lower half of a byte how many of a pair of digits are 1, in the upper half how many are 2.
  const Bytes pairs = repeat(_mm_setr_epi8(0x00, 0x01, 0x10, 0x00, 0x01, 0x02, 0x11, 0x01,  //
                                           0x10, 0x11, 0x20, 0x10, 0x00, 0x01, 0x10, 0x00));
  Bytes ones = bytes(0), twos = bytes(0);
  for (size_t run = 0; run < num_runs; ++run, field += kRun / 4) {
    Bytes sums = bytes(0);  // at most 8 in each half of a byte
    for (size_t i = 0; i < kRun / 4; i += sizeof(Bytes)) {
      const Bytes digits = load(field + i);
      sums = add(sums, add(look_up(pairs, nibbles(digits, 0)), look_up(pairs, nibbles(digits, 1))));
    }
    ones += sum_eights(nibbles(sums, 0));
    twos += sum_eights(nibbles(sums, 1));
  }
  counts[0] = sum_of(ones);
  counts[1] = sum_of(twos);
}

}  // namespace
}  // namespace tw
