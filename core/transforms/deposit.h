// Bits of a number to places in another and back, for processors that have no fast instructions for it. Everything is
// local to the including source.
#pragma once
#include <cstdint>

namespace tw {
namespace {

// For each set of 4 places, where 4 bits go and how 4 bits come back.
struct Nibbles {
  uint8_t deposit[16][16], extract[16][16], count[16];
};

constexpr Nibbles make_nibbles() {
  Nibbles table{};
  for (unsigned places = 0; places < 16; ++places) {
    for (unsigned bits = 0; bits < 16; ++bits) {
      unsigned rank = 0, to = 0, from = 0;
      for (unsigned j = 0; j < 4; ++j) {
        if ((places >> j & 1) == 0) continue;
        to |= (bits >> rank & 1) << j;
        from |= (bits >> j & 1) << rank;
        ++rank;
      }
      table.deposit[places][bits] = static_cast<uint8_t>(to);
      table.extract[places][bits] = static_cast<uint8_t>(from);
      table.count[places] = static_cast<uint8_t>(rank);
    }
  }
  return table;
}

constexpr Nibbles kNibbles = make_nibbles();

// The lowest bits of a number to the places that are set.
inline uint64_t portable_deposit(uint64_t bits, uint64_t places) {
  uint64_t out = 0;
  for (unsigned shift = 0; shift < 64; shift += 4) {
    const unsigned four = places >> shift & 15;
    out |= uint64_t{kNibbles.deposit[four][bits & 15]} << shift;
    bits >>= kNibbles.count[four];
  }
  return out;
}

// The bits at these places, one beside the other.
inline uint64_t portable_extract(uint64_t number, uint64_t places) {
  uint64_t out = 0;
  unsigned count = 0;
  for (unsigned shift = 0; shift < 64; shift += 4) {
    const unsigned four = places >> shift & 15;
    out |= uint64_t{kNibbles.extract[four][number >> shift & 15]} << (count & 63);
    count += kNibbles.count[four];
  }
  return out;
}

}  // namespace
}  // namespace tw
