// VDPBF16PS: a row is a lane, so words of 16 rows are turned, 32 columns at a time.
#if defined(__x86_64__)
#include "common/avx512.h"
#include "linear/pairs.h"

namespace tw {
namespace {

constexpr size_t kRows = 16, kPairs = 16, kColumns = 2 * kPairs;

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

inline __attribute__((always_inline)) __m512 add_pair(__m512 sums, __m512i weights, const uint8_t* input) {
  const __m512i pair = _mm512_set1_epi32(load<int>(input));
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(pair));
}

struct Rows {
  const uint8_t* at[kRows];  // of those that are not there the first one
  __mmask16 mask;            // those that are

  Rows(const uint8_t* weights, size_t num_rows, size_t columns)
      : mask(static_cast<__mmask16>(num_rows < kRows ? (1u << num_rows) - 1 : 0xffff)) {
    for (size_t r = 0; r < kRows; ++r) at[r] = weights + (r < num_rows ? r : 0) * columns * kWeightNbytes;
  }
  // The pairs of 32 columns, or of fewer ones.
  inline __attribute__((always_inline)) void load(size_t column, __m512i* turned) const {
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) turned[r] = _mm512_loadu_si512(at[r] + column * kWeightNbytes);
    turn(turned);
  }
  inline __attribute__((always_inline)) void load(size_t column, size_t count, __m512i* turned) const {
    if (count >= kColumns) return load(column, turned);
    for (size_t r = 0; r < kRows; ++r) {
      turned[r] = _mm512_maskz_loadu_epi16((1u << count) - 1, at[r] + column * kWeightNbytes);
    }
    turn(turned);
  }
};

// `num_blocks` blocks of columns go side by side: with one sum alone each addition would wait for the one before it.
template <size_t M, size_t block, size_t num_blocks>
inline __attribute__((always_inline)) void add_blocks(const Rows& rows, size_t start, size_t count,
                                                      const uint8_t* inputs, size_t stride, __m512 sums[][M],
                                                      Prefetcher<kSecondLevel>* prefetcher) {
  const auto add = [&](size_t i, size_t column, size_t some) __attribute__((always_inline)) {
    __m512i turned[kRows];
    rows.load(column, some, turned);
#pragma GCC unroll 16
    for (size_t p = 0; p < kPairs; ++p) {
      if (2 * p >= some) break;
#pragma GCC unroll 16
      for (size_t m = 0; m < M; ++m) {
        sums[i][m] = add_pair(sums[i][m], turned[p], inputs + m * stride + (column + 2 * p) * kWeightNbytes);
      }
    }
    prefetcher->step();
  };
  size_t c = 0;
  for (; c + kColumns <= count; c += kColumns) {
#pragma GCC unroll 2
    for (size_t i = 0; i < num_blocks; ++i) add(i, start + i * block + c, kColumns);
  }
  if (c < count) add(0, start + c, count - c);
}

template <size_t M, size_t block>
void some_inputs(const Rows& rows, size_t columns, const uint8_t* inputs, size_t stride, float* out, size_t out_stride,
                 Prefetcher<kSecondLevel>* prefetcher) {
  __m512 totals[M] = {};
  const auto finish = [&](size_t start, const __m512* sums) {
#pragma GCC unroll 16
    for (size_t m = 0; m < M; ++m) totals[m] = start == 0 ? sums[m] : _mm512_add_ps(totals[m], sums[m]);
  };
  size_t start = 0;
  if constexpr (M <= 2) {
    for (; start + 2 * block <= columns; start += 2 * block) {
      __m512 sums[2][M] = {};
      add_blocks<M, block, 2>(rows, start, block, inputs, stride, sums, prefetcher);
      finish(start, sums[0]);
      finish(start + block, sums[1]);
    }
  }
  for (; start < columns; start += block) {
    __m512 sums[1][M] = {};
    add_blocks<M, block, 1>(rows, start, columns - start < block ? columns - start : block, inputs, stride, sums,
                            prefetcher);
    finish(start, sums[0]);
  }
#pragma GCC unroll 16
  for (size_t m = 0; m < M; ++m) _mm512_mask_storeu_ps(out + m * out_stride, rows.mask, totals[m]);
}

template <size_t block>
void dot(const uint8_t* weights, size_t num_rows, size_t columns, const float* inputs, size_t num_inputs, size_t stride,
         float* out, size_t out_stride, Fetch next) {
  size_t m = 0;
  const auto multiply = [&](auto multiply_inputs, size_t count) {
    for (; m + count <= num_inputs; m += count) {
      const uint8_t* const words = reinterpret_cast<const uint8_t*>(inputs + m * stride);
      Prefetcher<kSecondLevel> prefetcher(next, 1 + ceil_div(num_rows, kRows) * (columns / kColumns));
      for (size_t r = 0; r < num_rows; r += kRows) {
        const Rows rows(weights + r * columns * kWeightNbytes, num_rows - r, columns);
        multiply_inputs(rows, columns, words, stride * sizeof(float), out + m * out_stride + r, out_stride,
                        &prefetcher);
      }
      next.nbytes = 0;
    }
  };
  multiply(some_inputs<8, block>, 8);
  multiply(some_inputs<4, block>, 4);
  multiply(some_inputs<2, block>, 2);
  multiply(some_inputs<1, block>, 1);
}

}  // namespace

extern const DotKernels kPairs512Avx512, kPairs1024Avx512;
const DotKernels kPairs512Avx512 = {arrange_pairs, dot<512>, kRows, nullptr, nullptr, nullptr};
const DotKernels kPairs1024Avx512 = {arrange_pairs, dot<1024>, kRows, nullptr, nullptr, nullptr};

}  // namespace tw
#endif
