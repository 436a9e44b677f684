// The dtype table of docs/format.md.
#pragma once
#include <cstdint>

namespace tw {

struct Dtype {
  const char* name;
  uint16_t bits;          // per element; 0 in kOpaque
  uint8_t word_nbytes;    // the unit that is coded
  uint8_t exponent_bits;  // E; 0 where words are not split
  uint8_t mantissa_bits;  // M
};

// Words of one byte: what every dtype outside the table is.
extern const Dtype kOpaque;

// The table's row, or kOpaque.
const Dtype& find_dtype(const char* name);

}  // namespace tw
