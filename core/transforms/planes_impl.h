// The plane kernels, written for the compiler's vectoriser: each target's source includes this once, so that every
// target runs the same code and only the instruction set differs. Everything is local to the including source.
#pragma once
#include <cstring>

#include "transforms/planes.h"

namespace tw {
namespace {

// Read one run: S bytes hold `8 / P` slices of S numbers each. COMBINE: add to numbers that are there, else replace.
template <unsigned P, bool COMBINE>
inline void unpack_run(const uint8_t* __restrict src, size_t lanes, unsigned shift, uint8_t* __restrict out) {
  constexpr uint8_t kMask = (1u << P) - 1;
  for (unsigned k = 0; k < 8 / P; ++k) {
    uint8_t* slice = out + k * lanes;
    for (size_t j = 0; j < lanes; ++j) {
      const uint8_t number = static_cast<uint8_t>(((src[j] >> (k * P)) & kMask) << shift);
      slice[j] = COMBINE ? static_cast<uint8_t>(slice[j] | number) : number;
    }
  }
}

template <unsigned P, bool COMBINE>
void unpack_plane(const uint8_t* src, size_t n, unsigned shift, uint8_t* out) {
  constexpr size_t kLanes = kRun * P / 8;
  for (; n >= kRun; n -= kRun, src += kLanes, out += kRun) unpack_run<P, COMBINE>(src, kLanes, shift, out);
  if (n != 0) unpack_run<P, COMBINE>(src, (n * P + 7) / 8, shift, out);
}

template <bool COMBINE>
void unpack_any(unsigned p, const uint8_t* src, size_t n, unsigned shift, uint8_t* out) {
  switch (p) {
    case 1:
      return unpack_plane<1, COMBINE>(src, n, shift, out);
    case 2:
      return unpack_plane<2, COMBINE>(src, n, shift, out);
    default:
      return unpack_plane<4, COMBINE>(src, n, shift, out);
  }
}

void unpack(unsigned p, const uint8_t* plane, size_t n, uint8_t* numbers) {
  unpack_any<false>(p, plane, n, 0, numbers);
}

template <unsigned P>
inline void pack_run(const uint8_t* __restrict numbers, size_t lanes, unsigned shift, uint8_t* __restrict out) {
  constexpr uint8_t kMask = (1u << P) - 1;
  for (size_t j = 0; j < lanes; ++j) {
    unsigned byte = 0;
    for (unsigned k = 0; k < 8 / P; ++k) byte |= ((numbers[k * lanes + j] >> shift) & kMask) << (k * P);
    out[j] = static_cast<uint8_t>(byte);
  }
}

template <unsigned P>
void pack_plane(const uint8_t* numbers, size_t n, unsigned shift, uint8_t* out) {
  constexpr size_t kLanes = kRun * P / 8;
  for (; n >= kRun; n -= kRun, numbers += kRun, out += kLanes) pack_run<P>(numbers, kLanes, shift, out);
  if (n != 0) {
    uint8_t last[kRun] = {};
    std::memcpy(last, numbers, n);
    pack_run<P>(last, (n * P + 7) / 8, shift, out);
  }
}

void pack_any(unsigned p, const uint8_t* numbers, size_t n, unsigned shift, uint8_t* plane) {
  switch (p) {
    case 1:
      return pack_plane<1>(numbers, n, shift, plane);
    case 2:
      return pack_plane<2>(numbers, n, shift, plane);
    default:
      return pack_plane<4>(numbers, n, shift, plane);
  }
}

void pack(unsigned p, const uint8_t* numbers, size_t n, uint8_t* plane) { pack_any(p, numbers, n, 0, plane); }

// Numbers [first, first + count) of a field of n; first is a multiple of kRun.
void unpack_field_part(unsigned width, const uint8_t* field, size_t n, size_t first, size_t count, uint8_t* numbers) {
  if (width == 8) {
    std::memcpy(numbers, field + first, count);
    return;
  }
  unsigned shift = 0;
  for (unsigned p = 4; p != 0; p /= 2) {
    if ((width & p) == 0) continue;
    const uint8_t* plane = field + first * p / 8;
    if (shift == 0) {
      unpack_any<false>(p, plane, count, 0, numbers);
    } else {
      unpack_any<true>(p, plane, count, shift, numbers);
    }
    field += (n / kRun) * (kRun * p / 8) + (n % kRun * p + 7) / 8;
    shift += p;
  }
}

void unpack_field(unsigned width, const uint8_t* field, size_t n, uint8_t* numbers) {
  unpack_field_part(width, field, n, 0, n, numbers);
}

void pack_field(unsigned width, const uint8_t* numbers, size_t n, uint8_t* field) {
  if (width == 8) {
    std::memcpy(field, numbers, n);
    return;
  }
  unsigned shift = 0;
  for (unsigned p = 4; p != 0; p /= 2) {
    if ((width & p) == 0) continue;
    pack_any(p, numbers, n, shift, field);
    field += (n / kRun) * (kRun * p / 8) + (n % kRun * p + 7) / 8;
    shift += p;
  }
}

}  // namespace
}  // namespace tw
