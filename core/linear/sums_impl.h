// Orders of L sums, over the vectors of a target. Its file defines, before it includes this one:
//   struct Vec: V of floats, Words of as many uint32_t; multiply_add(); sum(), by halves; widen(), as many weights of
//   F16; kPanel: of how many columns the inputs stay in the first-level cache; rows(m): how many rows at a time fit the
//   registers with m inputs, at most kMostInputs.
#include <cmath>
#include <cstring>

#include "linear/half.h"
#include "linear/vectors.h"

namespace tw {
namespace {

constexpr size_t kPart = 2 * kWidth;

// Weights of L columns come part by part, as two vectors, of which lane i takes the column that column() says.
struct Bf16 {
  typedef Vec::Words UnalignedWords __attribute__((aligned(1), may_alias));
  static constexpr size_t kLeft = 2;  // vectors of sums that total() wants: halves were added up to there
  static float value(const uint8_t* from) { return float_of_bf16(tw::load<uint16_t>(from)); }
  static constexpr size_t column(size_t part, size_t i) { return part * kPart + i % kWidth * 2 + i / kWidth; }
  static inline __attribute__((always_inline)) void load(const uint8_t* from, size_t part, V* w) {
    split(reinterpret_cast<const UnalignedWords*>(from)[part], w);
  }
  static inline __attribute__((always_inline)) void split(Vec::Words pairs, V* w) {
    const Vec::Words even = pairs << 16, odd = pairs & 0xffff0000u;
    w[0] = load_floats(&even);
    w[1] = load_floats(&odd);
  }
  static inline __attribute__((always_inline)) float total(const V* sums) {
    return Vec::sum(sums[0]) + Vec::sum(sums[1]);
  }
};

struct F16 {
  static constexpr size_t kLeft = 2;
  static float value(const uint8_t* from) { return float_of_f16(tw::load<uint16_t>(from)); }
  static constexpr size_t column(size_t part, size_t i) { return part * kPart + i; }
  static inline __attribute__((always_inline)) void load(const uint8_t* from, size_t part, V* w) {
    for (size_t i = 0; i < 2; ++i) w[i] = Vec::widen(from + (part * kPart + i * kWidth) * kWeightNbytes);
  }
  static inline __attribute__((always_inline)) float total(const V* sums) { return Vec::sum(sums[0] + sums[1]); }
};

template <size_t R, size_t M, size_t N, class Do>
inline __attribute__((always_inline)) void for_each(Do&& act) {
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (size_t m = 0; m < M; ++m) {
#pragma GCC unroll 64
      for (size_t i = 0; i < N; ++i) act(r, m, i);
    }
  }
}

template <class Load, size_t L>
struct Sums {
  static constexpr size_t kVectors = L / kWidth, kParts = L / kPart;

  static void arrange(const float* input, size_t columns, float* arranged) {
    size_t c = 0;
    for (; c + L <= columns; c += L) {
      for (size_t i = 0; i < L; ++i) arranged[c + i] = input[c + Load::column(i / kPart, i % kPart)];
    }
    std::memcpy(arranged + c, input + c, (columns - c) * sizeof(float));
  }

  // R rows times M inputs, `P` parts at a time. A panel of columns goes through the registers part after part.
  template <size_t R, size_t M, size_t P>
  static void tile(const uint8_t* weights, size_t columns, const float* inputs, size_t stride, float* out,
                   size_t out_stride, Prefetcher<kSecondLevel>* shared) {
    Prefetcher<kSecondLevel> prefetcher = *shared;
    const size_t row_nbytes = columns * kWeightNbytes, whole = columns / L * L;
    V sums[R][M][kVectors] = {};
    for (size_t panel = 0; panel < whole; panel += Vec::kPanel) {
      const size_t stop = whole - panel < Vec::kPanel ? whole : panel + Vec::kPanel;
      for (size_t part = 0; part < kParts; part += P) {
        V some[R][M][2 * P];
        for_each<R, M, 2 * P>([&](size_t r, size_t m, size_t i) { some[r][m][i] = sums[r][m][2 * part + i]; });
        for (size_t c = panel; c < stop; c += L) {
#pragma GCC unroll 64
          for (size_t p = 0; p < P; ++p) {
            add_part<R, M, 2 * P>(weights + c * kWeightNbytes, row_nbytes, part + p, inputs + c, stride, 2 * p, some);
          }
          if (part == 0) prefetcher.step();
        }
        for_each<R, M, 2 * P>([&](size_t r, size_t m, size_t i) { sums[r][m][2 * part + i] = some[r][m][i]; });
      }
    }
    *shared = prefetcher;
    for (size_t r = 0; r < R; ++r) {
      for (size_t m = 0; m < M; ++m) {
        out[m * out_stride + r] = with_tail(weights + r * row_nbytes, inputs + m * stride, columns, add_up(sums[r][m]));
      }
    }
  }

  template <size_t R, size_t M, size_t N>
  static inline __attribute__((always_inline)) void add_part(const uint8_t* weights, size_t row_nbytes, size_t part,
                                                             const float* inputs, size_t stride, size_t at,
                                                             V sums[R][M][N]) {
    V w[R][2];
    for (size_t r = 0; r < R; ++r) Load::load(weights + r * row_nbytes, part, w[r]);
    for (size_t m = 0; m < M; ++m) {
      for (size_t i = 0; i < 2; ++i) {
        const V input = load_floats(inputs + m * stride + part * kPart + i * kWidth);  // once for all rows
        for (size_t r = 0; r < R; ++r) sums[r][m][at + i] = Vec::multiply_add(w[r][i], input, sums[r][m][at + i]);
      }
    }
  }

  static inline __attribute__((always_inline)) float add_up(V* sums) {
#pragma GCC unroll 64
    for (size_t half = kVectors / 2; half >= Load::kLeft; half /= 2) {
#pragma GCC unroll 64
      for (size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
    }
    return Load::total(sums);
  }

  // Of the columns behind the last L: twice L / 8 at a time go to L / 8 sums, of which the total is added; the last
  // ones are multiplied and added one by one. A product of two BF16 is rounded where it is denormal or too large.
  static float with_tail(const uint8_t* row, const float* input, size_t columns, float total) {
    constexpr size_t kFew = L / 8;
    size_t c = columns / L * L;
    float few[kFew] = {};
    for (; c + 2 * kFew <= columns; c += 2 * kFew) {
      for (size_t i = 0; i < 2 * kFew; ++i) {
        few[i % kFew] = std::fma(Load::value(row + (c + i) * kWeightNbytes), input[c + i], few[i % kFew]);
      }
    }
    for (size_t half = kFew / 2; half != 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) few[i] += few[i + half];
    }
    total += few[0];
    for (; c < columns; ++c) total += Load::value(row + c * kWeightNbytes) * input[c];
    return total;
  }

  static void add_terms(const uint8_t* weights, size_t count, const float* input, float* lanes) {
    V sums[1][1][kVectors];
    for (size_t i = 0; i < kVectors; ++i) sums[0][0][i] = load_floats(lanes + i * kWidth);
    for (size_t c = 0; c < count; c += L) {
#pragma GCC unroll 64
      for (size_t p = 0; p < kParts; ++p) {
        add_part<1, 1, kVectors>(weights + c * kWeightNbytes, 0, p, input + c, 0, 2 * p, sums);
      }
    }
    for (size_t i = 0; i < kVectors; ++i) store_floats(lanes + i * kWidth, sums[0][0][i]);
  }

  static float total(const float* lanes) {
    V sums[kVectors];
#pragma GCC unroll 64  // or GCC copies them by way of memory, in pieces of another size
    for (size_t i = 0; i < kVectors; ++i) sums[i] = load_floats(lanes + i * kWidth);
    return add_up(sums);
  }

  template <size_t M>
  static void some_inputs(const uint8_t* weights, size_t num_rows, size_t columns, const float* inputs, size_t stride,
                          float* out, size_t out_stride, Fetch next) {
    constexpr size_t kRows = Vec::rows(M), kPartsAtOnce = M == 1 ? kParts : 1;
    Prefetcher<kSecondLevel> prefetcher(next, 1 + (num_rows / kRows + num_rows % kRows) * (columns / L));
    size_t r = 0;
    for (; r + kRows <= num_rows; r += kRows) {
      tile<kRows, M, kPartsAtOnce>(weights + r * columns * kWeightNbytes, columns, inputs, stride, out + r, out_stride,
                                   &prefetcher);
    }
    for (; r < num_rows; ++r) {
      tile<1, M, kPartsAtOnce>(weights + r * columns * kWeightNbytes, columns, inputs, stride, out + r, out_stride,
                               &prefetcher);
    }
  }

  static void dot(const Weights& weights, const float* inputs, size_t num_inputs, size_t stride, float* out,
                  size_t out_stride, Fetch next) {
    size_t m = 0;
    const auto multiply = [&](auto multiply_inputs, size_t count) {
      for (; m + count <= num_inputs; m += count) {
        for (size_t r = 0, some = 0; r < weights.num_rows; r += some) {
          some = weights.num_rows - r < weights.together ? weights.num_rows - r : weights.together;
          multiply_inputs(weights.row(r), some, weights.columns, inputs + m * stride, stride, out + m * out_stride + r,
                          out_stride, next);
          next.nbytes = 0;
        }
      }
    };
    if constexpr (Vec::kMostInputs >= 4) multiply(some_inputs<4>, 4);
    if constexpr (Vec::kMostInputs >= 2) multiply(some_inputs<2>, 2);
    multiply(some_inputs<1>, 1);
  }

  static constexpr DotKernels kTogether = {arrange, dot, 1, nullptr, nullptr, nullptr};
};

template <size_t L>
const DotKernels* find_sums(WeightFormat format) {
  return format == WeightFormat::kBf16 ? &Sums<Bf16, L>::kTogether : &Sums<F16, L>::kTogether;
}

}  // namespace
}  // namespace tw
