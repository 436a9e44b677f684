// Masks, and strings of bits, one at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tests {

using Mask = std::vector<uint64_t>;

inline bool bit(const Mask& mask, size_t i) { return (mask[i / 64] >> i % 64 & 1) != 0; }
inline void set_bit(Mask* mask, size_t i) { (*mask)[i / 64] |= uint64_t{1} << i % 64; }

// Bits one behind the other, from the lowest of the first byte on, in units of 4 bytes.
struct Bits {
  std::vector<uint8_t> bytes;
  size_t count = 0;

  void push(uint64_t value, unsigned width = 1) {
    for (unsigned i = 0; i < width; ++i, ++count) {
      if (count % 32 == 0) bytes.resize(bytes.size() + 4);
      bytes[count / 8] = static_cast<uint8_t>(bytes[count / 8] | (value >> i & 1) << count % 8);
    }
  }
};

}  // namespace tests
