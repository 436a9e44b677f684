// Tiers with digits of two bits, as most of those of the cascade are: whole runs are unpacked and expanded, or split
// and packed, in one go.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

constexpr unsigned kMaxNames = 16;  // of a tier, its escape included

// The exponents that the digits of a tier name: low[i] that of the digit in the lowest bits of i, high[i] that of bits
// 2 and 3. For a pair of two-bit digits one index serves both.
struct DigitNames {
  uint8_t low[kMaxNames], high[kMaxNames];
};

// Kernels, one set per target. `field` is a plane of two bits, num_runs whole runs.
struct TwoBitKernels {
  // PlaneKernels::unpack_field, then CascadeKernels::expand with escape 3. Writes exactly 256 bytes a run.
  size_t (*expand)(const uint8_t* field, const DigitNames& names, const uint8_t* next, size_t num_runs, uint8_t* out);
  // CascadeKernels::split with escape 3, then PlaneKernels::pack_field.
  size_t (*split)(uint8_t start, uint8_t below, uint8_t gap, const uint8_t* exponents, size_t num_runs, uint8_t* field,
                  uint8_t* next);
  // How often the digits 1 and 2 occur: counts[0] and counts[1].
  void (*count)(const uint8_t* field, size_t num_runs, uint32_t counts[2]);
};

extern const TwoBitKernels& two_bit_kernels;

}  // namespace tw
