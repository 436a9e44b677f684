// Words that are split <-> exponents and numbers of rests; fields <-> numbers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace tw {

// The most words that are handled at a time: what passes between two kernels stays in the first-level cache.
constexpr size_t kSegment = 2048;

// Kernels, one set per target. No pointer needs alignment. `sign_mantissas` are rests as the
// page has them, numbers of dtype.rest_nbytes().
struct WordKernels {
  // Words to exponents and to rests, R bits; `runs` receives the OR of the latter for each run of 256.
  void (*split)(const Layout& dtype, const uint8_t* words, size_t n, uint8_t* exponents, uint8_t* sign_mantissas,
                uint64_t* runs);
  // The ORs of each run of 256 numbers of `nbytes` bytes each.
  void (*or_runs)(unsigned nbytes, const uint8_t* numbers, size_t n, uint64_t* runs);
  // Put words together; x = base + symbol has E + k bits, the rest R - k.
  void (*assemble)(const Layout& dtype, const uint8_t* symbols, uint16_t base, unsigned k,
                   const uint8_t* sign_mantissas, size_t n, uint8_t* words);
  // assemble() of the exponents [first, first + count) and unpack_numbers() of a field of n rests, in one go.
  // Preconditions as there.
  void (*weave)(const Layout& dtype, const uint8_t* exponents, const uint8_t* field, size_t n, size_t first,
                size_t count, uint8_t* words);
  // symbols = x - base where that is below 255, else 255; x = exponent and the k bits below it.
  void (*join)(const Layout& dtype, const uint8_t* exponents, const uint8_t* sign_mantissas, size_t n, unsigned k,
               uint16_t base, uint8_t* symbols);
  // Take these k bits out of the rests, in place: R - k bits are left.
  void (*narrow)(const Layout& dtype, uint8_t* sign_mantissas, size_t n, unsigned k);
  // Fields to numbers of `nbytes` bytes: numbers [first, first + count) of a field of n numbers of `width` bits, each
  // shifted left by `shift`. first is a multiple of kRun, count at most kSegment. Reads up to kSlack past the field.
  void (*unpack_numbers)(unsigned nbytes, unsigned width, unsigned shift, const uint8_t* field, size_t n, size_t first,
                         size_t count, uint8_t* numbers);
  // numbers[i] |= bytes[i] << shift.
  void (*or_bytes)(unsigned nbytes, const uint8_t* bytes, size_t n, unsigned shift, uint8_t* numbers);
  // Bits [shift, shift + width) of each number to a field.
  void (*pack_numbers)(unsigned nbytes, unsigned width, unsigned shift, const uint8_t* numbers, size_t n,
                       uint8_t* field);
  // The way back from weave(): words [first, first + count) of n to their exponents and to a field of n rests; `runs`
  // as in split(). first, count and n are multiples of kRun, count at most kSegment; `words`, `exponents` and `runs`
  // are those of the tile.
  void (*unweave)(const Layout& dtype, const uint8_t* words, size_t n, size_t first, size_t count, uint8_t* exponents,
                  uint8_t* field, uint64_t* runs);
  // Whether all symbols are below 2^bits, bits < 8, or the escape 255.
  bool (*fits)(const uint8_t* symbols, size_t n, unsigned bits);
  // Copy around the caches; dst is a multiple of 64. Other threads see it after this one's next locked instruction.
  void (*stream_copy)(uint8_t* dst, const uint8_t* src, size_t nbytes);
};

extern const WordKernels& word_kernels;

}  // namespace tw
