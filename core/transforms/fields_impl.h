// Fields to numbers and back, written for the compiler's vectoriser; words_impl.h includes this. Everything is local to
// the including source.
#pragma once
#include <cstring>

#include "common/bits.h"
#include "transforms/planes.h"
#include "transforms/with_number.h"
#include "transforms/words.h"

namespace tw {
namespace {

// Unaligned arrays as the vectoriser likes them.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};
template <class T>
inline const Unaligned<T>* as(const uint8_t* p) {
  return reinterpret_cast<const Unaligned<T>*>(p);
}
template <class T>
inline Unaligned<T>* as(uint8_t* p) {
  return reinterpret_cast<Unaligned<T>*>(p);
}

// out[i] = or |= plane[i] << shift.
template <class T, class P>
inline void unpack_plane(const uint8_t* __restrict plane, size_t n, unsigned shift, bool combine,
                         uint8_t* __restrict out) {
  if (combine) {
    for (size_t i = 0; i < n; ++i) {
      as<T>(out)[i].value = static_cast<T>(as<T>(out)[i].value | static_cast<T>(T{as<P>(plane)[i].value} << shift));
    }
  } else {
    for (size_t i = 0; i < n; ++i) as<T>(out)[i].value = static_cast<T>(T{as<P>(plane)[i].value} << shift);
  }
}

// Two planes at once: out[i] = (low[i] | high[i] << bits of low) << shift.
template <class T, class Low, class High>
inline void unpack_pair(const uint8_t* __restrict low, const uint8_t* __restrict high, size_t n, unsigned shift,
                        uint8_t* __restrict out) {
  if (shift == 0) {  // by far the most frequent
    for (size_t i = 0; i < n; ++i) {
      if constexpr (sizeof(T) == 2) {  // half of a number each: nothing is widened
        out[2 * i] = low[i];
        out[2 * i + 1] = high[i];
      } else {
        as<T>(out)[i].value = static_cast<T>(as<Low>(low)[i].value | T{as<High>(high)[i].value} << (8 * sizeof(Low)));
      }
    }
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    const T number = static_cast<T>(as<Low>(low)[i].value | T{as<High>(high)[i].value} << (8 * sizeof(Low)));
    as<T>(out)[i].value = static_cast<T>(number << shift);
  }
}

template <class T>
void unpack_typed(unsigned width, unsigned shift, const uint8_t* field, size_t n, size_t first, size_t count,
                  uint8_t* out) {
  alignas(64) uint8_t small[kSegment + kSlack];
  if (width < 8) {
    if (width == 0) {
      std::memset(out, 0, count * sizeof(T));
    } else if (sizeof(T) == 1 && shift == 0) {
      plane_kernels.unpack_field_tile(width, field, n, first, count, out);
    } else {
      plane_kernels.unpack_field_tile(width, field, n, first, count, small);
      unpack_plane<T, uint8_t>(small, count, shift, false, out);
    }
    return;
  }
  if constexpr (sizeof(T) == 4) {
    if (width == 24)
      return unpack_pair<T, uint16_t, uint8_t>(field + 2 * first, field + plane_nbytes(16, n) + first, count, shift,
                                               out);
  }
  if constexpr (sizeof(T) == 2) {
    if (width > 8 && width < 16) {
      plane_kernels.unpack_field_tile(width - 8, field + plane_nbytes(8, n), n, first, count, small);
      return unpack_pair<T, uint8_t, uint8_t>(field + first, small, count, shift, out);
    }
  }
  bool combine = false;
  for (unsigned p = 8 * sizeof(T); p >= 8; p /= 2) {
    if ((width & p) == 0) continue;
    const uint8_t* plane = field + first * p / 8;
    if constexpr (sizeof(T) == 8) {
      if (p == 64) unpack_plane<T, uint64_t>(plane, count, shift, combine, out);
    }
    if constexpr (sizeof(T) >= 4) {
      if (p == 32) unpack_plane<T, uint32_t>(plane, count, shift, combine, out);
    }
    if constexpr (sizeof(T) >= 2) {
      if (p == 16) unpack_plane<T, uint16_t>(plane, count, shift, combine, out);
    }
    if (p == 8) unpack_plane<T, uint8_t>(plane, count, shift, combine, out);
    field += plane_nbytes(p, n);
    shift += p;
    combine = true;
  }
  if ((width & 7) != 0) {
    plane_kernels.unpack_field_tile(width & 7, field, n, first, count, small);
    unpack_plane<T, uint8_t>(small, count, shift, combine, out);
  }
}

void unpack_numbers(unsigned nbytes, unsigned width, unsigned shift, const uint8_t* field, size_t n, size_t first,
                    size_t count, uint8_t* numbers) {
  with_number(nbytes,
              [&](auto number) { unpack_typed<decltype(number)>(width, shift, field, n, first, count, numbers); });
}

void or_bytes(unsigned nbytes, const uint8_t* bytes, size_t n, unsigned shift, uint8_t* numbers) {
  with_number(nbytes, [&](auto number) { unpack_plane<decltype(number), uint8_t>(bytes, n, shift, true, numbers); });
}

template <class T, class P>
inline void pack_plane(const uint8_t* __restrict numbers, size_t n, unsigned shift, uint8_t* __restrict plane) {
  if (sizeof(T) == sizeof(P)) {
    std::memcpy(plane, numbers, n * sizeof(T));
    return;
  }
  for (size_t i = 0; i < n; ++i) as<P>(plane)[i].value = static_cast<P>(as<T>(numbers)[i].value >> shift);
}

// Two planes at once: low[i] | high[i] << bits of low = the lowest bits of numbers[i].
template <class T, class Low, class High>
inline void pack_pair(const uint8_t* __restrict numbers, size_t n, uint8_t* __restrict low, uint8_t* __restrict high) {
  for (size_t i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 2) {  // half of a number each: nothing is narrowed
      low[i] = numbers[2 * i];
      high[i] = numbers[2 * i + 1];
    } else {
      const T number = as<T>(numbers)[i].value;
      as<Low>(low)[i].value = static_cast<Low>(number);
      as<High>(high)[i].value = static_cast<High>(number >> (8 * sizeof(Low)));
    }
  }
}

// Zeros in the padding of a plane. Returns where the next one begins.
inline uint8_t* end_plane(uint8_t* plane, unsigned p, size_t n) {
  const size_t used = n * p / 8, nbytes = plane_nbytes(p, n);
  std::memset(plane + used, 0, nbytes - used);
  return plane + nbytes;
}

// Numbers [first, first + count) of a field of n, which are a tile, and its padding: a tile that is not all of the
// field has whole runs of one that has none.
template <class T>
void pack_typed(unsigned width, unsigned shift, const uint8_t* numbers, size_t n, size_t first, size_t count,
                uint8_t* field) {
  if constexpr (sizeof(T) == 4) {
    if (width == 24 && shift == 0) {
      uint8_t* high = end_plane(field, 16, n);
      pack_pair<T, uint16_t, uint8_t>(numbers, count, field + 2 * first, high + first);
      end_plane(high, 8, n);
      return;
    }
  }
  if constexpr (sizeof(T) == 2) {
    if (width > 8 && width < 16 && shift == 0) {
      uint8_t* high_field = end_plane(field, 8, n);
      for (size_t i = 0; i < count; i += kSegment) {
        alignas(64) uint8_t high[kSegment + kSlack];
        const size_t some = count - i < kSegment ? count - i : kSegment;
        pack_pair<T, uint8_t, uint8_t>(numbers + 2 * i, some, field + first + i, high);
        plane_kernels.pack_field_tile(width - 8, high, n, first + i, some, high_field);
      }
      return;
    }
  }
  for (unsigned p = 8 * sizeof(T); p >= 8; p /= 2) {
    if ((width & p) == 0) continue;
    uint8_t* const plane = field + first * p / 8;
    if constexpr (sizeof(T) == 8) {
      if (p == 64) pack_plane<T, uint64_t>(numbers, count, shift, plane);
    }
    if constexpr (sizeof(T) >= 4) {
      if (p == 32) pack_plane<T, uint32_t>(numbers, count, shift, plane);
    }
    if constexpr (sizeof(T) >= 2) {
      if (p == 16) pack_plane<T, uint16_t>(numbers, count, shift, plane);
    }
    if (p == 8) pack_plane<T, uint8_t>(numbers, count, shift, plane);
    field = end_plane(field, p, n);
    shift += p;
  }
  if ((width & 7) == 0) return;
  if (sizeof(T) == 1 && shift == 0) return plane_kernels.pack_field_tile(width & 7, numbers, n, first, count, field);
  for (size_t i = 0; i < count; i += kSegment) {
    alignas(64) uint8_t small[kSegment + kSlack];
    const size_t some = count - i < kSegment ? count - i : kSegment;
    for (size_t j = 0; j < some; ++j) {
      small[j] = static_cast<uint8_t>(as<T>(numbers + i * sizeof(T))[j].value >> shift);
    }
    plane_kernels.pack_field_tile(width & 7, small, n, first + i, some, field);
  }
}

void pack_numbers(unsigned nbytes, unsigned width, unsigned shift, const uint8_t* numbers, size_t n, uint8_t* field) {
  with_number(nbytes, [&](auto number) { pack_typed<decltype(number)>(width, shift, numbers, n, 0, n, field); });
}

}  // namespace
}  // namespace tw
