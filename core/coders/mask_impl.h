// The mask kernels over deposit(), extract(), spread() and collapse() of 64 bits, which the including source has
// defined. Everything is local to it.
#pragma once
#include <cstring>

#include "coders/mask.h"

namespace tw {
namespace {

void deposit_bits(const uint64_t* where, const uint8_t* bits, size_t numbers, uint64_t* out) {
  uint64_t at = 0;
  for (size_t i = 0; i < numbers; ++i) {
    const uint64_t places = where[i];
    const uint8_t* from = bits + at / 8;
    const unsigned shift = at % 8;
    const uint64_t next = load<uint64_t>(from) >> shift | uint64_t{from[8]} << 1 << (63 - shift);
    out[i] = deposit(next, places);
    at += static_cast<unsigned>(__builtin_popcountll(places));
  }
}

void spread_level(const uint64_t* above, size_t numbers, uint64_t* where) {
  for (size_t i = 0; i < numbers; ++i) where[i] = spread(above[i / 4] >> (16 * (i % 4)));
}

void collapse_level(const uint64_t* below, size_t numbers, uint64_t* above) {
  for (size_t i = 0; i < numbers; i += 4) {
    uint64_t bits = 0;
    for (size_t j = 0; j < 4 && i + j < numbers; ++j) bits |= collapse(below[i + j]) << (16 * j);
    above[i / 4] = bits;
  }
}

size_t count_bits(const uint64_t* mask, size_t numbers) {
  size_t sum = 0;
  for (size_t i = 0; i < numbers; ++i) sum += static_cast<size_t>(__builtin_popcountll(mask[i]));
  return sum;
}

size_t extract_bits(const uint64_t* where, const uint64_t* mask, size_t numbers, uint8_t* bits) {
  uint8_t* out = bits;
  uint64_t pending = 0;
  unsigned fill = 0;
  for (size_t i = 0; i < numbers; ++i) {
    const unsigned count = static_cast<unsigned>(__builtin_popcountll(where[i]));
    if (count == 0) continue;
    const uint64_t value = extract(mask[i], where[i]);
    pending |= value << fill;
    fill += count;
    if (fill < 64) continue;
    store(out, pending);
    out += 8;
    fill -= 64;
    pending = fill == 0 ? 0 : value >> (count - fill);
  }
  const size_t last = bit_string_nbytes(fill);
  std::memcpy(out, &pending, last);
  return static_cast<size_t>(out - bits) + last;
}

}  // namespace
}  // namespace tw
