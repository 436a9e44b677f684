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
inline uint64_t deposit(uint64_t bits, uint64_t places) {
  uint64_t out = 0;
  for (unsigned shift = 0; shift < 64; shift += 4) {
    const unsigned four = places >> shift & 15;
    out |= uint64_t{kNibbles.deposit[four][bits & 15]} << shift;
    bits >>= kNibbles.count[four];
  }
  return out;
}

// The bits at these places, one beside the other.
inline uint64_t extract(uint64_t number, uint64_t places) {
  uint64_t out = 0;
  unsigned count = 0;
  for (unsigned shift = 0; shift < 64; shift += 4) {
    const unsigned four = places >> shift & 15;
    out |= uint64_t{kNibbles.extract[four][number >> shift & 15]} << (count & 63);
    count += kNibbles.count[four];
  }
  return out;
}

// Each of the lowest 16 bits to 4 bits beside each other.
inline uint64_t spread(uint64_t bits) {
  bits &= 0xffff;
  bits = (bits | bits << 24) & 0x000000ff000000ff;
  bits = (bits | bits << 12) & 0x000f000f000f000f;
  bits = (bits | bits << 6) & 0x0303030303030303;
  bits = (bits | bits << 3) & 0x1111111111111111;
  return bits * 15;
}

// The other way: a bit for each 4 of which one is set.
inline uint64_t collapse(uint64_t bits) {
  bits |= bits >> 1;
  bits |= bits >> 2;
  bits &= 0x1111111111111111;
  bits = (bits | bits >> 3) & 0x0303030303030303;
  bits = (bits | bits >> 6) & 0x000f000f000f000f;
  bits = (bits | bits >> 12) & 0x000000ff000000ff;
  return (bits | bits >> 24) & 0xffff;
}

}  // namespace
}  // namespace tw

#include "coders/mask_impl.h"

namespace tw {

extern const MaskKernels kMaskScalar;
const MaskKernels kMaskScalar = {deposit_bits, spread_level, collapse_level, count_bits, extract_bits};

}  // namespace tw
