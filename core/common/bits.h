// Little-endian loads and stores, and small arithmetic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels view little-endian streams as numbers: big-endian machines are not supported"
#endif

namespace tw {

template <class T>
static inline T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <class T>
static inline void store(void* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

static inline constexpr uint64_t ceil_div(uint64_t x, uint64_t d) { return x / d + (x % d != 0); }
static inline constexpr uint64_t ceil_to(uint64_t x, uint64_t a) { return ceil_div(x, a) * a; }

static inline unsigned trailing_zeros(uint64_t x, unsigned if_zero) {
  return x == 0 ? if_zero : static_cast<unsigned>(__builtin_ctzll(x));
}
static inline unsigned bit_length(uint64_t x) { return x == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(x)); }

}  // namespace tw
