// TW_GEMV_16 over the vectors of a target. Its file defines, before it includes this one:
//   struct Vec: V of floats, Words of as many uint32_t, which are pairs of columns; multiply_add(); load(), of
//   32 words as kVectors of Words; pair(), which pair of the 32 columns a lane of one of these has; total().
#include <cstring>

#include "linear/vectors.h"

namespace tw {
namespace {

constexpr size_t kColumns = 32, kVectors = kColumns / 2 / kWidth, kRows = 4;

// The upper columns of the lanes of a vector, then the lower ones.
inline size_t column_of(size_t place) {
  const size_t lane = place % kWidth, upper = 1 - place / kWidth % 2;
  return 2 * Vec::pair(place / (2 * kWidth), lane) + upper;
}

void arrange(const float* input, size_t columns, float* arranged) {
  for (size_t c = 0; c < columns; c += kColumns) {
    for (size_t i = 0; i < kColumns; ++i) {
      const size_t column = c + column_of(i);
      arranged[c + i] = column < columns ? input[column] : 0.0f;
    }
  }
}

inline __attribute__((always_inline)) void add_words(Vec::Words words, const float* input, V* sum) {
  const Vec::Words upper = words & 0xffff0000u, lower = words << 16;
  V values[2];
  std::memcpy(&values[0], &upper, sizeof upper);
  std::memcpy(&values[1], &lower, sizeof lower);
  *sum = Vec::multiply_add(values[0], load_floats(input), *sum);
  *sum = Vec::multiply_add(values[1], load_floats(input + kWidth), *sum);
}

inline __attribute__((always_inline)) void add_columns(const uint8_t* weights, const float* input, V* sums) {
  Vec::Words words[kVectors];
  Vec::load(weights, words);
#pragma GCC unroll 2
  for (size_t v = 0; v < kVectors; ++v) add_words(words[v], input + v * 2 * kWidth, sums + v);
}

// R rows side by side: each addition to a sum waits for the one before it.
template <size_t R>
void dot_rows(const uint8_t* const* rows, size_t columns, const float* input, float* out,
              Prefetcher<kSecondLevel>* prefetcher) {
  V sums[R][kVectors] = {};
  size_t c = 0;
  for (; c + kColumns <= columns; c += kColumns) {
#pragma GCC unroll 4
    for (size_t r = 0; r < R; ++r) add_columns(rows[r] + c * kWeightNbytes, input + c, sums[r]);
    prefetcher->step();
  }
  for (size_t r = 0; r < R; ++r) {
    if (c < columns) {
      uint8_t rest[kColumns * kWeightNbytes] = {};
      std::memcpy(rest, rows[r] + c * kWeightNbytes, (columns - c) * kWeightNbytes);
      add_columns(rest, input + c, sums[r]);
    }
    out[r] = Vec::total(sums[r]);
  }
}

void dot(const Weights& weights, const float* inputs, size_t num_inputs, size_t stride, float* out, size_t out_stride,
         Fetch next) {
  const size_t num_rows = weights.num_rows, whole = num_rows / kRows * kRows;
  for (size_t m = 0; m < num_inputs; ++m) {
    Prefetcher<kSecondLevel> prefetcher(next, 1 + ceil_div(num_rows, kRows) * (weights.columns / kColumns));
    float* const at = out + m * out_stride;
    for (size_t r = 0; r < num_rows;) {
      const uint8_t* rows[kRows];
      for (size_t i = 0; i < kRows; ++i) rows[i] = weights.row(r + i < num_rows ? r + i : r);
      if (r < whole) {
        dot_rows<kRows>(rows, weights.columns, inputs + m * stride, at + r, &prefetcher);
        r += kRows;
      } else {
        dot_rows<1>(rows, weights.columns, inputs + m * stride, at + r, &prefetcher);
        ++r;
      }
    }
    next.nbytes = 0;
  }
}

void add_terms(const uint8_t* weights, size_t count, const float* input, float* lanes) {
  V sums[kVectors];
  std::memcpy(sums, lanes, sizeof sums);
  for (size_t c = 0; c < count; c += kColumns) add_columns(weights + c * kWeightNbytes, input + c, sums);
  std::memcpy(lanes, sums, sizeof sums);
}

float total(const float* lanes) {
  V sums[kVectors];
  std::memcpy(sums, lanes, sizeof sums);
  return Vec::total(sums);
}

}  // namespace
}  // namespace tw
