// Shuffles of bytes that spread words over the set bits of a mask, or gather the words at the set bits: as
// coders/byte_select.h, for words of W bytes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {
namespace {

// For COUNT words of W bytes: COUNT * W bytes of control for each mask of COUNT bits.
template <unsigned COUNT, unsigned W>
struct WordSelect {
  static constexpr size_t kNbytes = COUNT * W;
  alignas(32) uint8_t expand[1u << COUNT][kNbytes];   // 0x80 in each byte of a word that is not in the mask
  alignas(32) uint8_t compact[1u << COUNT][kNbytes];  // 0x80 behind the last one
};

template <unsigned COUNT, unsigned W>
constexpr WordSelect<COUNT, W> make_word_select() {
  WordSelect<COUNT, W> table{};
  for (unsigned mask = 0; mask < 1u << COUNT; ++mask) {
    unsigned rank = 0;
    for (unsigned byte = 0; byte < COUNT * W; ++byte) table.compact[mask][byte] = 0x80;
    for (unsigned j = 0; j < COUNT; ++j) {
      const bool set = (mask >> j & 1) != 0;
      for (unsigned b = 0; b < W; ++b) {
        table.expand[mask][j * W + b] = static_cast<uint8_t>(set ? rank * W + b : 0x80);
        if (set) table.compact[mask][rank * W + b] = static_cast<uint8_t>(j * W + b);
      }
      rank += set;
    }
  }
  return table;
}

}  // namespace
}  // namespace tw
