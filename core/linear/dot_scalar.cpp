#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "linear/half.h"
#include "linear/pairs.h"

namespace tw {
namespace {

struct Vec {
  using V = float;
  using Words = uint32_t;
  static constexpr size_t kPanel = SIZE_MAX / kMostSums * kMostSums, kMostInputs = 1;
  static constexpr size_t rows(size_t) { return 1; }
  static V multiply_add(V a, V b, V c) { return std::fma(a, b, c); }
  static float sum(V v) { return v; }
  static V widen(const uint8_t* from) { return float_of_f16(load<uint16_t>(from)); }
};

}  // namespace
}  // namespace tw

#include "linear/sums_impl.h"

namespace tw {
namespace {

float without_denormals(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

// A step of VDPBF16PS, which takes denormals for zeros, those of its result too. Whether that is denormal, it sees by
// its value rounded to 24 bits, however small; fma() rounds some such values up to 2^-126.
float add_term(float sum, float a, float b) {
  a = without_denormals(a), b = without_denormals(b), sum = without_denormals(sum);
  const float result = without_denormals(std::fma(a, b, sum));
  const bool is_least = std::fabs(result) == 0x1p-126f;
  const double precise = is_least ? static_cast<double>(a) * b + sum : 0;
  return is_least && std::fabs(precise) < 0x1.ffffffp-127 ? std::copysign(0.0f, result) : result;
}

float weight_at(const uint8_t* row, size_t columns, size_t column) {
  return column < columns ? float_of_bf16(load<uint16_t>(row + column * kWeightNbytes)) : 0;
}

// A row times an input, by chains over pairs of columns.
template <tw_order order>
float in_chains(const uint8_t* row, size_t columns, const float* input) {
  const size_t block = block_of(order, columns);
  const uint8_t* const words = reinterpret_cast<const uint8_t*>(input);
  float total = 0;
  for (size_t start = 0; start < columns; start += block) {
    float sum = 0;
    for (size_t c = start; c < columns && c < start + block; c += 2) {
      for (const size_t i : {c + 1, c}) {
        const float weight = weight_at(row, columns, i);
        sum = order == TW_GEMM_768 ? std::fma(weight, input[i], sum)
                                   : add_term(sum, weight, float_of_bf16(load<uint16_t>(words + i * kWeightNbytes)));
      }
    }
    total = start == 0 ? sum : total + sum;
  }
  return total;
}

constexpr size_t kGemvSums = 16;

void arrange_gemv(const float* input, size_t columns, float* arranged) {
  std::memcpy(arranged, input, columns * sizeof(float));
  std::fill(arranged + columns, arranged + ceil_to(columns, 2 * kGemvSums), 0.0f);
}

float in_gemv(const uint8_t* row, size_t columns, const float* input) {
  float sums[kGemvSums] = {};
  for (size_t c = 0; c < ceil_to(columns, 2 * kGemvSums); c += 2) {
    float* const sum = &sums[c / 2 % kGemvSums];
    for (const size_t i : {c + 1, c}) *sum = std::fma(weight_at(row, columns, i), input[i], *sum);
  }
  for (size_t j = 0; j < kGemvSums / 2; ++j) sums[j] += sums[j + kGemvSums / 2];
  for (size_t step = 1; step < kGemvSums / 2; step *= 2) {
    for (size_t j = 0; j < kGemvSums / 2; j += 2 * step) sums[j] += sums[j + step];
  }
  return sums[0];
}

template <float (*of_row)(const uint8_t* row, size_t columns, const float* input)>
void dot_by(const Weights& weights, const float* inputs, size_t num_inputs, size_t stride, float* out,
            size_t out_stride, Fetch) {
  for (size_t m = 0; m < num_inputs; ++m) {
    for (size_t r = 0; r < weights.num_rows; ++r) {
      out[m * out_stride + r] = of_row(weights.row(r), weights.columns, inputs + m * stride);
    }
  }
}

constexpr DotKernels kGemv = {arrange_gemv, dot_by<in_gemv>, 1, nullptr, nullptr, nullptr};
constexpr DotKernels kGemm = {arrange_floats, dot_by<in_chains<TW_GEMM_768>>, 1, nullptr, nullptr, nullptr};
constexpr DotKernels kPairs512 = {arrange_pairs, dot_by<in_chains<TW_PAIRS_512>>, 1, nullptr, nullptr, nullptr};
constexpr DotKernels kPairs1024 = {arrange_pairs, dot_by<in_chains<TW_PAIRS_1024>>, 1, nullptr, nullptr, nullptr};

const DotKernels* find(tw_order order, WeightFormat format) {
  if (order == TW_SUMS_32) return find_sums<32>(format);
  if (order == TW_SUMS_64) return find_sums<64>(format);
  if (format != WeightFormat::kBf16) return nullptr;
  if (order == TW_GEMV_16 || order == TW_GEMM_768) return order == TW_GEMV_16 ? &kGemv : &kGemm;
  return order == TW_PAIRS_512 ? &kPairs512 : &kPairs1024;
}

}  // namespace

extern const FindDot kFindDotScalar;
const FindDot kFindDotScalar = find;

}  // namespace tw
