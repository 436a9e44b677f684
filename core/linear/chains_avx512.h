// Chains over pairs of columns: a row is a lane, so words of 16 rows are turned, 32 columns at a time. For one input or
// two they are multiplied in the registers that they are turned in. For more of them they go to the first-level cache,
// from where a pair of an input, once loaded, meets those of 32 rows.
//
// A source defines, before it includes this: struct Chain: kInputNbytes, of a column of an input; Pair, what is added
// of a pair of 16 rows, which of() makes of their words; add(sums, pair, the pair of an input).
#pragma once
#include <algorithm>

#include "common/avx512.h"
#include "linear/pairs.h"

namespace tw {
namespace {

constexpr size_t kRows = 16, kPairs = 16, kColumns = 2 * kPairs;
// Of many inputs: rows that are multiplied side by side, columns that are turned before, inputs that share those.
constexpr size_t kGroups = 2, kPanel = 128, kMostInputs = 64;

// 16 rows of 16 pairs to 16 pairs of 16 rows.
inline __attribute__((always_inline)) void turn(__m512i* v) {
  __m512i t[kRows];
#pragma GCC unroll 8
  for (size_t i = 0; i < kRows; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < kRows; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    const __m512i low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88), high = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    const __m512i low8 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    const __m512i high8 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(low, low8, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(low, low8, 0xdd);
    t[i + 4] = _mm512_shuffle_i32x4(high, high8, 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(high, high8, 0xdd);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) v[i] = t[i];
}

struct Rows {
  const uint8_t* at[kRows];  // of those that are not there the first one of all
  __mmask16 mask;            // those that are

  Rows(const Weights& weights, size_t first) {
    const size_t count = first < weights.num_rows ? std::min(weights.num_rows - first, kRows) : 0;
    mask = static_cast<__mmask16>((1u << count) - 1);
    for (size_t r = 0; r < kRows; ++r) at[r] = weights.row(r < count ? first + r : 0);
  }
  // The pairs of 32 columns, or of fewer ones.
  inline __attribute__((always_inline)) void load(size_t column, size_t count, __m512i* turned) const {
    const __mmask32 some = count < kColumns ? (1u << count) - 1 : ~0u;
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) turned[r] = _mm512_maskz_loadu_epi16(some, at[r] + column * kWeightNbytes);
    turn(turned);
  }
};

// `num_blocks` blocks of columns go side by side: with one sum alone each addition would wait for the one before it.
template <size_t M, size_t num_blocks>
inline __attribute__((always_inline)) void add_blocks(const Rows& rows, size_t start, size_t count,
                                                      const uint8_t* inputs, size_t stride, __m512 sums[][M],
                                                      Prefetcher<kSecondLevel>* prefetcher) {
  const auto add = [&](size_t i, size_t column, size_t some) __attribute__((always_inline)) {
    __m512i turned[kRows];
    rows.load(column, some, turned);
#pragma GCC unroll 16
    for (size_t p = 0; p < kPairs; ++p) {
      if (2 * p >= some) break;
      const Chain::Pair pair = Chain::of(turned[p]);
#pragma GCC unroll 2
      for (size_t m = 0; m < M; ++m) {
        sums[i][m] = Chain::add(sums[i][m], pair, inputs + m * stride + (column + 2 * p) * Chain::kInputNbytes);
      }
    }
    prefetcher->step();
  };
  size_t c = 0;
  for (; c + kColumns <= count; c += kColumns) {
#pragma GCC unroll 2
    for (size_t i = 0; i < num_blocks; ++i) add(i, start + i * count + c, kColumns);
  }
  if (c < count) {
    for (size_t i = 0; i < num_blocks; ++i) add(i, start + i * count + c, count - c);
  }
}

template <size_t M>
void few_inputs(const Weights& weights, size_t block, const uint8_t* inputs, size_t stride, float* out,
                size_t out_stride, Prefetcher<kSecondLevel> prefetcher) {
  const size_t columns = weights.columns;
  for (size_t r = 0; r < weights.num_rows; r += kRows) {
    const Rows rows(weights, r);
    __m512 totals[M] = {};
    const auto finish = [&](size_t start, const __m512* sums) {
      for (size_t m = 0; m < M; ++m) totals[m] = start == 0 ? sums[m] : _mm512_add_ps(totals[m], sums[m]);
    };
    size_t start = 0;
    for (; start + 2 * block <= columns; start += 2 * block) {
      __m512 sums[2][M] = {};
      add_blocks<M, 2>(rows, start, block, inputs, stride, sums, &prefetcher);
      finish(start, sums[0]);
      finish(start + block, sums[1]);
    }
    for (; start < columns; start += block) {
      __m512 sums[1][M] = {};
      add_blocks<M, 1>(rows, start, std::min(block, columns - start), inputs, stride, sums, &prefetcher);
      finish(start, sums[0]);
    }
    for (size_t m = 0; m < M; ++m) _mm512_mask_storeu_ps(out + m * out_stride + r, rows.mask, totals[m]);
  }
}

using OfGroups = __m512[kGroups];

template <size_t M>
inline __attribute__((always_inline)) void add_panel(const __m512i (*turned)[kGroups], size_t num_pairs,
                                                     const uint8_t* inputs, size_t stride, OfGroups* sums) {
  __m512 some[M][kGroups];
#pragma GCC unroll 8
  for (size_t m = 0; m < M; ++m) {
    for (size_t g = 0; g < kGroups; ++g) some[m][g] = sums[m][g];
  }
  for (size_t p = 0; p < num_pairs; ++p) {
    const Chain::Pair pairs[kGroups] = {Chain::of(turned[p][0]), Chain::of(turned[p][1])};
#pragma GCC unroll 8
    for (size_t m = 0; m < M; ++m) {
      for (size_t g = 0; g < kGroups; ++g) {
        some[m][g] = Chain::add(some[m][g], pairs[g], inputs + m * stride + p * 2 * Chain::kInputNbytes);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t m = 0; m < M; ++m) {
    for (size_t g = 0; g < kGroups; ++g) sums[m][g] = some[m][g];
  }
}

void add_panel_to_all(const __m512i (*turned)[kGroups], size_t num_pairs, const uint8_t* inputs, size_t num_inputs,
                      size_t stride, OfGroups* sums) {
  size_t m = 0;
  for (; m + 8 <= num_inputs; m += 8) add_panel<8>(turned, num_pairs, inputs + m * stride, stride, sums + m);
  for (; m + 4 <= num_inputs; m += 4) add_panel<4>(turned, num_pairs, inputs + m * stride, stride, sums + m);
  for (; m < num_inputs; ++m) add_panel<1>(turned, num_pairs, inputs + m * stride, stride, sums + m);
}

// At most kMostInputs.
void many_inputs(const Weights& weights, size_t block, const uint8_t* inputs, size_t num_inputs, size_t stride,
                 float* out, size_t out_stride, Prefetcher<kSecondLevel> prefetcher) {
  __m512i turned[kPanel / 2][kGroups];
  __m512 sums[kMostInputs][kGroups], totals[kMostInputs][kGroups];
  const size_t columns = weights.columns;
  for (size_t r = 0; r < weights.num_rows; r += kGroups * kRows) {
    const Rows rows[kGroups] = {{weights, r}, {weights, r + kRows}};
    for (size_t start = 0; start < columns; start += block) {
      const size_t stop = std::min(columns, start + block);
      for (size_t m = 0; m < num_inputs; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
      for (size_t panel = start; panel < stop; panel += kPanel) {
        const size_t count = std::min(kPanel, stop - panel);
        for (size_t c = 0; c < count; c += kColumns) {
          for (size_t g = 0; g < kGroups; ++g) {
            __m512i pairs[kPairs];
            rows[g].load(panel + c, count - c, pairs);
#pragma GCC unroll 16
            for (size_t p = 0; p < kPairs; ++p) turned[c / 2 + p][g] = pairs[p];
            prefetcher.step();
          }
        }
        add_panel_to_all(turned, ceil_div(count, 2), inputs + panel * Chain::kInputNbytes, num_inputs, stride, sums);
      }
      for (size_t m = 0; m < num_inputs; ++m) {
        for (size_t g = 0; g < kGroups; ++g) {
          totals[m][g] = start == 0 ? sums[m][g] : _mm512_add_ps(totals[m][g], sums[m][g]);
        }
      }
    }
    for (size_t m = 0; m < num_inputs; ++m) {
      for (size_t g = 0; g < kGroups; ++g) {
        _mm512_mask_storeu_ps(out + m * out_stride + r + g * kRows, rows[g].mask, totals[m][g]);
      }
    }
  }
}

template <tw_order order>
void dot(const Weights& weights, const float* inputs, size_t num_inputs, size_t stride, float* out, size_t out_stride,
         Fetch next) {
  const size_t block = block_of(order, weights.columns);
  const size_t num_steps = 1 + ceil_div(weights.num_rows, kRows) * (weights.columns / kColumns);
  for (size_t m = 0, count = 0; m < num_inputs; m += count) {
    count = std::min(num_inputs - m, kMostInputs);
    const uint8_t* const words = reinterpret_cast<const uint8_t*>(inputs + m * stride);
    float* const at = out + m * out_stride;
    const Prefetcher<kSecondLevel> prefetcher(next, num_steps);
    if (count == 1) {
      few_inputs<1>(weights, block, words, stride * sizeof(float), at, out_stride, prefetcher);
    } else if (count == 2) {
      few_inputs<2>(weights, block, words, stride * sizeof(float), at, out_stride, prefetcher);
    } else {
      many_inputs(weights, block, words, count, stride * sizeof(float), at, out_stride, prefetcher);
    }
    next.nbytes = 0;
  }
}

}  // namespace
}  // namespace tw
