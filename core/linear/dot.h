// Products of rows of weights with vectors, in float32, in the orders of summation that matrix products of others have.
// Every target that has kernels for an order gives the same bits, for weights from memory or freshly decoded; but a NaN
// may be any.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"
#include "common/prefetch.h"
#include "common/status.h"

namespace tw {

constexpr tw_order kOrders[] = {TW_SUMS_32, TW_SUMS_64, TW_PAIRS_512, TW_PAIRS_1024, TW_GEMV_16, TW_GEMM_768};
constexpr size_t kMostSums = 64;

enum class WeightFormat : uint8_t { kBf16, kF16 };
constexpr size_t kWeightNbytes = 2;

// Rows of weights. Behind each `together` of them come `gap` bytes of something else.
struct Weights {
  const uint8_t* words;
  size_t num_rows, columns, together = SIZE_MAX, gap = 0;

  inline __attribute__((always_inline)) const uint8_t* row(size_t r) const {
    return words + r * columns * kWeightNbytes + r / together * gap;
  }
};

// Kernels for one order and format. "Arranged" is an input in the form that they want, in the room of columns rounded
// up to kMostSums floats. No pointer to weights needs alignment, and nothing is read past them.
struct DotKernels {
  void (*arrange)(const float* input, size_t columns, float* arranged);
  // out[i * out_stride + r] = row r of weights times input i; the inputs, arranged, are `stride` apart.
  void (*dot)(const Weights& weights, const float* inputs, size_t num_inputs, size_t stride, float* out,
              size_t out_stride, Fetch next);
  // dot() is fastest for a multiple of so many rows.
  size_t num_rows;

  // The same row by row, in pieces of whole runs; nullptr where rows are faster together. kMostSums sums, zeros at
  // first, get the terms of so many columns; then their total.
  void (*add_terms)(const uint8_t* weights, size_t count, const float* input, float* sums);
  float (*total)(const float* sums);
  // add_terms() of digits as a block has them: a word becomes a factor in registers, and is never put in memory.
  // Exponents are turned, a rest has sign and mantissa. Returns how many of runs.next were used. Reads up to kSlack
  // past those and past the digits. A step of the prefetcher goes with each run.
  size_t (*add_runs)(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, const float* input, float* sums,
                     Prefetcher<kSecondLevel>* prefetcher);
};

using FindDot = const DotKernels* (*)(tw_order order, WeightFormat format);

// nullptr where the target has none that are faster than to decode first. The scalar target has all, slow ones, which
// the others are held to.
const DotKernels* find_dot(tw_order order, WeightFormat format);

}  // namespace tw
