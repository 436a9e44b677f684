// The frequency table of an entropy stream: choosing, writing and reading it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

// 3 bytes for first, last and implied, then for each of 255 symbols at most 25 bits of unary and 3 bits.
constexpr size_t kMaxTableNbytes = 3 + (255 * 28 + 7) / 8;
constexpr unsigned kEntropyFraction = 16;  // costs are bits in units of 2^-16

struct EntropyTable {
  uint8_t first, last, implied;
  uint16_t frequencies[256];  // 0 outside first..last; the sum is 4096, each is at most 4095
};

struct EntropyCost {
  size_t table_nbytes;  // as written
  uint64_t payload;     // of all symbols, in units of 2^-16 bits
};

// Bits of n symbols at their entropy; up to a hundredth of a bit too many for each.
uint64_t entropy_bits(const uint32_t histogram[256], size_t n);

// Choose a table for n symbols (at least 1) of this histogram, nearly the best for payload and table together. Returns
// its costs.
EntropyCost entropy_choose(const uint32_t histogram[256], size_t n, EntropyTable* table);

// Write the table to dst, kMaxTableNbytes of room. Returns its bytes.
size_t entropy_write_table(const EntropyTable& table, uint8_t* dst);

// Read a table from src, behind whose `available` bytes 8 are readable. Returns its bytes, 0 if it is invalid.
size_t entropy_read_table(const uint8_t* src, size_t available, EntropyTable* table);

}  // namespace tw
