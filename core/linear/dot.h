// Products of rows of weights with vectors, in float32. One order of summation on every target: of 32 sums, sum j takes
// lane j of each 32 columns, one fused multiply and add after the other; then the upper half is added to the lower,
// five times. So every target gives the same bits, for weights from memory or freshly decoded; but a NaN may be any.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/prefetch.h"

namespace tw {

constexpr size_t kDotLanes = 32;

enum class WeightFormat : uint8_t { kBf16, kF16, kF32 };

inline size_t weight_nbytes(WeightFormat format) { return format == WeightFormat::kF32 ? 4 : 2; }

// The order in which the kernels want inputs, filled up with zeros to a multiple of kDotLanes. For BF16 the even
// columns of each 32 come first, since a word of two weights is split by a shift and a mask.
void arrange_input(WeightFormat format, const float* input, size_t columns, float* arranged);

struct DotKernels {
  // out[i * out_stride + r] = row r of weights times input i; the inputs, arranged, are `stride` apart. No pointer to
  // weights needs alignment, and nothing is read past them.
  void (*dot)(WeightFormat format, const uint8_t* weights, size_t num_rows, size_t columns, const float* inputs,
              size_t num_inputs, size_t stride, float* out, size_t out_stride, Fetch next);
  // The same row by row, in pieces: kDotLanes sums, zeros at first, get the terms of `count` columns, a multiple of
  // kDotLanes; then their total.
  void (*add_terms)(WeightFormat format, const uint8_t* weights, size_t count, const float* input, float* sums);
  float (*total)(const float* sums);
  // Whether rows one by one, from the first-level cache, are faster than several at once from the second.
  bool prefers_single_rows;
};

extern const DotKernels& dot_kernels;

}  // namespace tw
