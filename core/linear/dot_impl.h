// The kernel of every target, written over its vectors. A target's file defines, before it includes this one:
//   struct Vec: V of floats, Words of as many uint32_t; multiply_add(), sum(); widen(), as many weights of F16;
//   rows(m): how many rows at a time fit the registers with m inputs; kMostInputs: 2 or 4.
#include <cstring>

#include "common/prefetch.h"
#include "linear/dot.h"

namespace tw {
namespace {

using V = Vec::V;
typedef V UnalignedV __attribute__((aligned(1), may_alias));
typedef Vec::Words UnalignedWords __attribute__((aligned(1), may_alias));
constexpr size_t kWidth = sizeof(V) / sizeof(float), kVectors = kDotLanes / kWidth;

inline V load_floats(const void* from) { return *static_cast<const UnalignedV*>(from); }
inline V floats_of(Vec::Words words) { return load_floats(&words); }

// kDotLanes weights.
struct LoadBf16 {
  static constexpr size_t kNbytes = 2;
  static inline __attribute__((always_inline)) void load(const uint8_t* from, V* w) {
    for (size_t i = 0; i < kVectors / 2; ++i) {
      const Vec::Words pairs = reinterpret_cast<const UnalignedWords*>(from)[i];
      w[i] = floats_of(pairs << 16);
      w[kVectors / 2 + i] = floats_of(pairs & 0xffff0000u);
    }
  }
};
struct LoadF16 {
  static constexpr size_t kNbytes = 2;
  static inline __attribute__((always_inline)) void load(const uint8_t* from, V* w) {
    for (size_t i = 0; i < kVectors; ++i) w[i] = Vec::widen(from + i * kWidth * kNbytes);
  }
};
struct LoadF32 {
  static constexpr size_t kNbytes = 4;
  static inline __attribute__((always_inline)) void load(const uint8_t* from, V* w) {
    for (size_t i = 0; i < kVectors; ++i) w[i] = load_floats(from + i * sizeof(V));
  }
};

template <class Load, size_t R, size_t M>
inline __attribute__((always_inline)) void add_lanes(const uint8_t* const rows[R], const float* inputs, size_t stride,
                                                     V sums[R][M][kVectors]) {
  V w[R][kVectors];
  for (size_t r = 0; r < R; ++r) Load::load(rows[r], w[r]);
  for (size_t m = 0; m < M; ++m) {
    for (size_t i = 0; i < kVectors; ++i) {
      const V input = load_floats(inputs + m * stride + i * kWidth);  // once for all rows
      for (size_t r = 0; r < R; ++r) sums[r][m][i] = Vec::multiply_add(w[r][i], input, sums[r][m][i]);
    }
  }
}

// The upper half of the sums to the lower one, five times.
inline __attribute__((always_inline)) float sum_lanes(V* sums) {
  for (size_t half = kVectors / 2; half != 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return Vec::sum(sums[0]);
}

// R rows times M inputs.
template <class Load, size_t R, size_t M>
void dot_tile(const uint8_t* weights, size_t columns, const float* inputs, size_t stride, float* out, size_t out_stride,
              Prefetcher<kSecondLevel>* shared) {
  Prefetcher<kSecondLevel> prefetcher = *shared;
  const size_t row_nbytes = columns * Load::kNbytes, whole = columns / kDotLanes * kDotLanes;
  V sums[R][M][kVectors] = {};
  const uint8_t* rows[R];
  for (size_t c = 0; c < whole; c += kDotLanes) {
    for (size_t r = 0; r < R; ++r) rows[r] = weights + r * row_nbytes + c * Load::kNbytes;
    add_lanes<Load, R, M>(rows, inputs + c, stride, sums);
    prefetcher.step();
  }
  *shared = prefetcher;
  if (whole != columns) {  // zeros for what is missing
    alignas(64) uint8_t last[R][kDotLanes * Load::kNbytes] = {};
    for (size_t r = 0; r < R; ++r) {
      std::memcpy(last[r], weights + r * row_nbytes + whole * Load::kNbytes, (columns - whole) * Load::kNbytes);
      rows[r] = last[r];
    }
    add_lanes<Load, R, M>(rows, inputs + whole, stride, sums);
  }
  for (size_t r = 0; r < R; ++r) {
    for (size_t m = 0; m < M; ++m) out[m * out_stride + r] = sum_lanes(sums[r][m]);
  }
}

template <class Load>
void add_row(const uint8_t* weights, size_t count, const float* input, float* lanes) {
  V sums[1][1][kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[0][0][i] = load_floats(lanes + i * kWidth);
  for (size_t c = 0; c < count; c += kDotLanes) {
    const uint8_t* const rows[] = {weights + c * Load::kNbytes};
    add_lanes<Load, 1, 1>(rows, input + c, 0, sums);
  }
  for (size_t i = 0; i < kVectors; ++i) *reinterpret_cast<UnalignedV*>(lanes + i * kWidth) = sums[0][0][i];
}

void add_terms(WeightFormat format, const uint8_t* weights, size_t count, const float* input, float* sums) {
  switch (format) {
    case WeightFormat::kBf16:
      return add_row<LoadBf16>(weights, count, input, sums);
    case WeightFormat::kF16:
      return add_row<LoadF16>(weights, count, input, sums);
    default:
      return add_row<LoadF32>(weights, count, input, sums);
  }
}

float total(const float* sums) {
  V lanes[kVectors];
#pragma GCC unroll 32  // or GCC copies them by way of memory, in pieces of another size
  for (size_t i = 0; i < kVectors; ++i) lanes[i] = load_floats(sums + i * kWidth);
  return sum_lanes(lanes);
}

template <class Load, size_t M>
void dot_inputs(const uint8_t* weights, size_t num_rows, size_t columns, const float* inputs, size_t stride, float* out,
                size_t out_stride, Fetch next) {
  constexpr size_t kRows = Vec::rows(M);
  Prefetcher<kSecondLevel> prefetcher(next, 1 + (num_rows / kRows + num_rows % kRows) * (columns / kDotLanes));
  size_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    dot_tile<Load, kRows, M>(weights + r * columns * Load::kNbytes, columns, inputs, stride, out + r, out_stride,
                             &prefetcher);
  }
  for (; r < num_rows; ++r) {
    dot_tile<Load, 1, M>(weights + r * columns * Load::kNbytes, columns, inputs, stride, out + r, out_stride,
                         &prefetcher);
  }
}

template <class Load>
void dot_format(const uint8_t* weights, size_t num_rows, size_t columns, const float* inputs, size_t num_inputs,
                size_t stride, float* out, size_t out_stride, Fetch next) {
  size_t m = 0;
  const auto multiply = [&](auto multiply_inputs, size_t count) {
    for (; m + count <= num_inputs; m += count) {
      multiply_inputs(weights, num_rows, columns, inputs + m * stride, stride, out + m * out_stride, out_stride, next);
      next.nbytes = 0;
    }
  };
  if constexpr (Vec::kMostInputs >= 4) multiply(dot_inputs<Load, 4>, 4);
  multiply(dot_inputs<Load, 2>, 2);
  multiply(dot_inputs<Load, 1>, 1);
}

void dot(WeightFormat format, const uint8_t* weights, size_t num_rows, size_t columns, const float* inputs,
         size_t num_inputs, size_t stride, float* out, size_t out_stride, Fetch next) {
  switch (format) {
    case WeightFormat::kBf16:
      return dot_format<LoadBf16>(weights, num_rows, columns, inputs, num_inputs, stride, out, out_stride, next);
    case WeightFormat::kF16:
      return dot_format<LoadF16>(weights, num_rows, columns, inputs, num_inputs, stride, out, out_stride, next);
    default:
      return dot_format<LoadF32>(weights, num_rows, columns, inputs, num_inputs, stride, out, out_stride, next);
  }
}

}  // namespace
}  // namespace tw
