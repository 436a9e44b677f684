// Shuffles that spread 8 bytes over the set bits of a mask, or gather the bytes at the set bits.
#pragma once
#include <array>
#include <cstdint>

namespace tw {
namespace {

struct ByteSelect {
  uint64_t expand[256];    // byte j: the rank of bit j among the set bits; 0x80 (a shuffled zero) for a clear bit
  uint64_t compress[256];  // byte r: the index of the r-th set bit; 0x80 beyond
};

constexpr ByteSelect make_byte_select() {
  ByteSelect table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    uint64_t expand = 0, compress = 0x8080808080808080u;
    unsigned rank = 0;
    for (unsigned j = 0; j < 8; ++j) {
      if ((mask >> j & 1) == 0) {
        expand |= uint64_t{0x80} << (8 * j);
        continue;
      }
      expand |= uint64_t{rank} << (8 * j);
      compress &= ~(uint64_t{0xff} << (8 * rank));
      compress |= uint64_t{j} << (8 * rank);
      ++rank;
    }
    table.expand[mask] = expand;
    table.compress[mask] = compress;
  }
  return table;
}

constexpr ByteSelect kByteSelect = make_byte_select();

}  // namespace
}  // namespace tw
