// Planes and fields of docs/format.md: arrays of small numbers, interleaved in runs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

// Kernels may read this many bytes past the end of a stream and write this many past the end of scratch output.
constexpr size_t kSlack = 64;
constexpr size_t kRun = 256;
constexpr unsigned kMaxPlaneBits = 64;

// Bytes of a plane of n numbers of p bits: whole 32-bit words. (A full run is some of those in any case.)
static inline constexpr size_t plane_nbytes(unsigned p, size_t n) { return (n * p + 31) / 32 * 4; }

// F(n, w) of the format: bytes of n fields of w bits.
static inline constexpr size_t field_nbytes(size_t n, unsigned width) {
  size_t nbytes = 0;
  for (; width != 0; width &= width - 1) nbytes += plane_nbytes(width & -width, n);  // a bit at a time, from the lowest
  return nbytes;
}

// Whether all bits of a field that belong to no number are zero: those of last runs, the padding of wide planes.
bool filler_is_zero(const uint8_t* field, size_t n, unsigned width);

// Kernels, one set per target, for fields of 1 to 8 bits (a plane of 1, 2 or 4 bits is one). Each number takes a byte.
// unpack writes up to kSlack bytes past n and reads up to kSlack past the field. pack reads exactly n numbers, since
// the caller of the library may have given us no more, writes exactly the field, and ignores high bits.
struct PlaneKernels {
  void (*unpack_field)(unsigned width, const uint8_t* field, size_t n, uint8_t* numbers);
  // Numbers [first, first + count) alone; first is a multiple of kRun, and count too unless the tile ends the field.
  void (*unpack_field_tile)(unsigned width, const uint8_t* field, size_t n, size_t first, size_t count,
                            uint8_t* numbers);
  void (*pack_field)(unsigned width, const uint8_t* numbers, size_t n, uint8_t* field);
  // `numbers` are those of the tile.
  void (*pack_field_tile)(unsigned width, const uint8_t* numbers, size_t n, size_t first, size_t count, uint8_t* field);
};

extern const PlaneKernels& plane_kernels;

}  // namespace tw
