// The plane kernels on the compiler's vectors: each target's source includes this once, so that every target runs the
// same code and only the instruction set differs. Everything is local to the including source.
#pragma once
#include <cstring>
#include <type_traits>

#include "transforms/planes.h"

namespace tw {
namespace {

// Bytes are handled as vectors of 64-bit lanes: after a shift, a mask takes off what came from the byte beside.
#if defined(__AVX512BW__)
constexpr size_t kVectorNbytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorNbytes = 32;
#else
constexpr size_t kVectorNbytes = 16;
#endif

// The vectors that a run of P-bit numbers is taken in: a slice of kLanes bytes is one or several.
template <unsigned P>
struct Slice {
  static constexpr size_t kLanes = kRun * P / 8;
  static constexpr size_t kWidth = kLanes < kVectorNbytes ? kLanes : kVectorNbytes;
  typedef uint64_t V __attribute__((vector_size(kWidth), aligned(1), may_alias));
};

constexpr uint64_t every_byte(unsigned byte) { return 0x0101010101010101u * byte; }

// Shift left by a signed constant.
template <int BY, class V>
inline V shifted(V v) {
  if constexpr (BY >= 0) return v << BY;
  return v >> (BY < 0 ? -BY : 0);
}

// One full run: LANES bytes hold 8 / P slices of as many numbers each. SHIFT 0 replaces what is in out, another adds to
// it.
template <unsigned P, unsigned SHIFT, unsigned K>
inline void unpack_slices(const uint8_t* src, uint8_t* out) {
  using V = typename Slice<P>::V;
  if constexpr (K < 8 / P) {
    constexpr uint64_t kMask = every_byte(((1u << P) - 1) << SHIFT);
    const V numbers =
        shifted<static_cast<int>(SHIFT) - static_cast<int>(K * P)>(*reinterpret_cast<const V*>(src)) & kMask;
    V* slice = reinterpret_cast<V*>(out + K * Slice<P>::kLanes);
    *slice = SHIFT == 0 ? numbers : *slice | numbers;
    unpack_slices<P, SHIFT, K + 1>(src, out);
  }
}

template <unsigned P, unsigned SHIFT>
inline void unpack_run(const uint8_t* src, uint8_t* out) {
  for (size_t j = 0; j < Slice<P>::kLanes; j += Slice<P>::kWidth) unpack_slices<P, SHIFT, 0>(src + j, out + j);
}

template <unsigned P, unsigned SHIFT>
void unpack_last_run(const uint8_t* src, size_t n, uint8_t* out) {
  const size_t lanes = plane_nbytes(P, n);
  for (unsigned k = 0; k < 8 / P; ++k) {
    for (size_t j = 0; j < lanes; ++j) {
      const uint8_t number = static_cast<uint8_t>(((src[j] >> (k * P)) & ((1u << P) - 1)) << SHIFT);
      uint8_t* at = out + k * lanes + j;
      *at = SHIFT == 0 ? number : static_cast<uint8_t>(*at | number);
    }
  }
}

template <unsigned P, unsigned SHIFT>
void unpack_plane(const uint8_t* src, size_t n, uint8_t* out) {
  for (; n >= kRun; n -= kRun, src += kRun * P / 8, out += kRun) unpack_run<P, SHIFT>(src, out);
  if (n != 0) unpack_last_run<P, SHIFT>(src, n, out);
}

template <unsigned P, unsigned SHIFT, unsigned K>
inline typename Slice<P>::V packed_slices(const uint8_t* numbers) {
  using V = typename Slice<P>::V;
  constexpr uint64_t kMask = every_byte(((1u << P) - 1) << (K * P));
  const V slice = *reinterpret_cast<const V*>(numbers + K * Slice<P>::kLanes);
  const V bits = shifted<static_cast<int>(K * P) - static_cast<int>(SHIFT)>(slice) & kMask;
  if constexpr (K + 1 == 8 / P) return bits;
  if constexpr (K + 1 < 8 / P) return bits | packed_slices<P, SHIFT, K + 1>(numbers);
}

template <unsigned P, unsigned SHIFT>
inline void pack_run(const uint8_t* numbers, uint8_t* out) {
  using V = typename Slice<P>::V;
  for (size_t j = 0; j < Slice<P>::kLanes; j += Slice<P>::kWidth) {
    *reinterpret_cast<V*>(out + j) = packed_slices<P, SHIFT, 0>(numbers + j);
  }
}

template <unsigned P, unsigned SHIFT>
void pack_last_run(const uint8_t* numbers, size_t n, uint8_t* out) {
  const size_t lanes = plane_nbytes(P, n);
  for (size_t j = 0; j < lanes; ++j) {
    unsigned byte = 0;
    for (size_t k = 0; k < 8 / P && k * lanes + j < n; ++k) {
      byte |= ((numbers[k * lanes + j] >> SHIFT) & ((1u << P) - 1)) << (k * P);
    }
    out[j] = static_cast<uint8_t>(byte);
  }
}

template <unsigned P, unsigned SHIFT>
void pack_plane(const uint8_t* numbers, size_t n, uint8_t* out) {
  for (; n >= kRun; n -= kRun, numbers += kRun, out += kRun * P / 8) pack_run<P, SHIFT>(numbers, out);
  if (n != 0) pack_last_run<P, SHIFT>(numbers, n, out);
}

// Full runs of a field of several planes, in one go, in the widest vector that no plane's slice is shorter than.
typedef Slice<1>::V Numbers;

template <unsigned P, unsigned SHIFT, unsigned V>
inline Numbers unpack_numbers(const uint8_t* plane) {
  constexpr size_t kVectors = Slice<P>::kLanes / sizeof(Numbers);  // of a slice
  constexpr unsigned kSlice = V / kVectors;
  const Numbers slices = *reinterpret_cast<const Numbers*>(plane + V % kVectors * sizeof(Numbers));
  return shifted<static_cast<int>(SHIFT) - static_cast<int>(kSlice * P)>(slices) & every_byte(((1u << P) - 1) << SHIFT);
}

template <unsigned WIDTH, unsigned V>
inline void unpack_run_of_planes(const uint8_t* of_4, const uint8_t* of_2, const uint8_t* of_1, uint8_t* out) {
  if constexpr (V < kRun / sizeof(Numbers)) {
    Numbers numbers = {};
    if constexpr ((WIDTH & 4) != 0) numbers |= unpack_numbers<4, 0, V>(of_4);
    if constexpr ((WIDTH & 2) != 0) numbers |= unpack_numbers<2, WIDTH & 4, V>(of_2);
    if constexpr ((WIDTH & 1) != 0) numbers |= unpack_numbers<1, WIDTH & 6, V>(of_1);
    *reinterpret_cast<Numbers*>(out + V * sizeof(Numbers)) = numbers;
    unpack_run_of_planes<WIDTH, V + 1>(of_4, of_2, of_1, out);
  }
}

// Numbers [first, first + count) of a field of n; first is a multiple of kRun.
template <unsigned WIDTH>
void unpack_tile(const uint8_t* field, size_t n, size_t first, size_t count, uint8_t* numbers) {
  if constexpr ((WIDTH & (WIDTH - 1)) != 0) {
    const uint8_t* const plane_of_2 = field + ((WIDTH & 4) != 0 ? plane_nbytes(4, n) : 0);
    const uint8_t* const plane_of_1 = plane_of_2 + ((WIDTH & 2) != 0 ? plane_nbytes(2, n) : 0);
    for (; count >= kRun; first += kRun, count -= kRun, numbers += kRun) {
      unpack_run_of_planes<WIDTH, 0>(field + first / 2, plane_of_2 + first / 4, plane_of_1 + first / 8, numbers);
    }
    if (count == 0) return;
  }
  if constexpr ((WIDTH & 4) != 0) {
    unpack_plane<4, 0>(field + first * 4 / 8, count, numbers);
    field += plane_nbytes(4, n);
  }
  if constexpr ((WIDTH & 2) != 0) {
    unpack_plane<2, WIDTH & 4>(field + first * 2 / 8, count, numbers);
    field += plane_nbytes(2, n);
  }
  if constexpr ((WIDTH & 1) != 0) unpack_plane<1, WIDTH & 6>(field + first / 8, count, numbers);
}

// body(an integral constant) of a width of 1 to 7.
template <class Body>
inline void with_width(unsigned width, Body&& body) {
  switch (width) {
    case 1:
      return body(std::integral_constant<unsigned, 1>());
    case 2:
      return body(std::integral_constant<unsigned, 2>());
    case 3:
      return body(std::integral_constant<unsigned, 3>());
    case 4:
      return body(std::integral_constant<unsigned, 4>());
    case 5:
      return body(std::integral_constant<unsigned, 5>());
    case 6:
      return body(std::integral_constant<unsigned, 6>());
    default:
      return body(std::integral_constant<unsigned, 7>());
  }
}

void unpack_field_tile(unsigned width, const uint8_t* field, size_t n, size_t first, size_t count, uint8_t* numbers) {
  if (width == 8) {
    std::memcpy(numbers, field + first, count);
  } else {
    with_width(width, [&](auto constant) { unpack_tile<constant()>(field, n, first, count, numbers); });
  }
}

void unpack_field(unsigned width, const uint8_t* field, size_t n, uint8_t* numbers) {
  unpack_field_tile(width, field, n, 0, n, numbers);
}

template <unsigned WIDTH>
void pack_tile(const uint8_t* numbers, size_t n, size_t first, size_t count, uint8_t* field) {
  if constexpr ((WIDTH & 4) != 0) {
    pack_plane<4, 0>(numbers, count, field + first * 4 / 8);
    field += plane_nbytes(4, n);
  }
  if constexpr ((WIDTH & 2) != 0) {
    pack_plane<2, WIDTH & 4>(numbers, count, field + first * 2 / 8);
    field += plane_nbytes(2, n);
  }
  if constexpr ((WIDTH & 1) != 0) pack_plane<1, WIDTH & 6>(numbers, count, field + first / 8);
}

void pack_field_tile(unsigned width, const uint8_t* numbers, size_t n, size_t first, size_t count, uint8_t* field) {
  if (width == 8) {
    std::memcpy(field + first, numbers, count);
    if (first + count == n) std::memset(field + n, 0, plane_nbytes(8, n) - n);
  } else {
    with_width(width, [&](auto constant) { pack_tile<constant()>(numbers, n, first, count, field); });
  }
}

void pack_field(unsigned width, const uint8_t* numbers, size_t n, uint8_t* field) {
  pack_field_tile(width, numbers, n, 0, n, field);
}

}  // namespace
}  // namespace tw
