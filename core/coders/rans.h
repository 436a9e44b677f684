// The rANS steps and their kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/bits.h"

namespace tw {

constexpr unsigned kRansBits = 12;
constexpr uint32_t kRansTotal = 1u << kRansBits;  // the sum of all frequencies
constexpr size_t kRansStates = 32;
constexpr uint32_t kRansLow = 1u << 16;  // states are not below
constexpr size_t kRansSlack = 64;        // what kernels may read past the words

// The decoding table has an entry for each slot: frequency << 20 | (slot - start) << 8 | symbol.

// A stream in the middle of being decoded. It has one table; or one for each class, one behind the other, and for each
// symbol to come the class that says which one it is coded by.
struct RansStream {
  const uint32_t* tables;
  const uint8_t* classes;  // nullptr: one table
  uint32_t* states;
  const uint8_t* next;
  const uint8_t* end;
  uint8_t* out;
};

// One symbol: the reference for all kernels. It has no branches, since a processor cannot predict whether a word is
// read.
static inline uint8_t rans_decode_symbol(const uint32_t* table, uint32_t* state, const uint8_t** next) {
  const uint32_t entry = table[*state % kRansTotal];
  const uint32_t x = (entry >> 20) * (*state >> kRansBits) + (entry >> 8) % kRansTotal;
  const uint32_t refill = x < kRansLow;
  *state = x << (16 * refill) | (load<uint16_t>(*next) & (0 - refill));
  *next += 2 * refill;
  return static_cast<uint8_t>(entry);
}

// What encoding a symbol takes. With q = floor(x / frequency) the state x becomes
// q * 4096 + x mod frequency + start = x + start + q * (4096 - frequency).
struct RansCode {
  uint32_t reciprocal;  // floor(2^32 / frequency), at most 2^32 - 1: the product with x is q or q - 1
  uint16_t frequency, start;
};

struct RansKernels {
  // num_groups times 32 symbols, one of each state; next moves on, out and classes do not. Once next is beyond `end`,
  // zeros are written and nothing more is read. Reads up to kRansSlack past end, writes 32 * num_groups bytes.
  void (*decode)(RansStream* stream, size_t num_groups);
  // The same for two streams at once, which hides the latency of each behind the other; both have classes or neither
  // has. Stops when one of them is beyond its end. Returns the groups decoded of each. Null where it gains nothing.
  size_t (*decode_two)(RansStream* a, RansStream* b, size_t num_groups);
  // num_groups times 32 symbols, the last one first; next moves down. Returns where it ends.
  uint16_t* (*encode)(const RansCode codes[256], const uint8_t* symbols, size_t num_groups,
                      uint32_t states[kRansStates], uint16_t* next);
};

extern const RansKernels& rans_kernels;

// Encoders that the kernels of several targets share.
uint16_t* rans_encode_scalar(const RansCode codes[256], const uint8_t* symbols, size_t num_groups,
                             uint32_t states[kRansStates], uint16_t* next);
uint16_t* rans_encode_avx2(const RansCode codes[256], const uint8_t* symbols, size_t num_groups,
                           uint32_t states[kRansStates], uint16_t* next);

// One symbol: the reference for all kernels.
static inline void rans_encode_symbol(const RansCode& code, uint32_t* state, uint16_t** next) {
  uint32_t x = *state;
  const uint32_t full = x >= uint32_t{code.frequency} << (32 - kRansBits);
  (*next)[-1] = static_cast<uint16_t>(x);
  *next -= full;
  x >>= 16 * full;
  const uint32_t q = static_cast<uint32_t>(uint64_t{code.reciprocal} * x >> 32);
  const uint32_t missing = x - q * code.frequency >= code.frequency;
  *state = x + code.start + (q + missing) * (kRansTotal - code.frequency);
}

}  // namespace tw
