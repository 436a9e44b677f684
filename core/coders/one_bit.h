// Tiers with digits of one bit: whole runs are unpacked and expanded in one go.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

struct OneBitKernels {
  // PlaneKernels::unpack_field, then CascadeKernels::expand with escape 1; `name` is the exponent of digit 0. `field`
  // is a plane of one bit, num_runs whole runs. Writes exactly 256 bytes a run. nullptr where that is not faster.
  size_t (*expand)(const uint8_t* field, uint8_t name, const uint8_t* next, size_t num_runs, uint8_t* out);
};

extern const OneBitKernels& one_bit_kernels;

}  // namespace tw
