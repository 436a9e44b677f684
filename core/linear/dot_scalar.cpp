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

// A step of VDPBF16PS: denormals are zeros before and after, and what is tiny is seen before a last rounding to 2^-126.
float add_term(float sum, float a, float b) {
  a = without_denormals(a), b = without_denormals(b), sum = without_denormals(sum);
  const float result = without_denormals(std::fma(a, b, sum));
  const bool is_least = std::fabs(result) == 0x1p-126f;
  const double precise = is_least ? static_cast<double>(a) * b + sum : 0;
  return is_least && std::fabs(precise) < 0x1.ffffffp-127 ? std::copysign(0.0f, result) : result;
}

float chain(const uint8_t* weights, const uint8_t* words, size_t columns) {
  float sum = 0;
  for (size_t c = 0; c < columns; c += 2) {
    for (size_t upper = 2; upper-- > 0;) {
      const size_t i = c + upper;
      const float weight = i < columns ? float_of_bf16(load<uint16_t>(weights + i * kWeightNbytes)) : 0;
      sum = add_term(sum, weight, float_of_bf16(load<uint16_t>(words + i * kWeightNbytes)));
    }
  }
  return sum;
}

template <tw_order order>
void dot_pairs(const Weights& weights, const float* inputs, size_t num_inputs, size_t stride, float* out,
               size_t out_stride, Fetch) {
  const size_t columns = weights.columns;
  for (size_t m = 0; m < num_inputs; ++m) {
    const uint8_t* const words = reinterpret_cast<const uint8_t*>(inputs + m * stride);
    for (size_t r = 0; r < weights.num_rows; ++r) {
      const uint8_t* const row = weights.row(r);
      float total = 0;
      for (size_t c = 0; c < columns; c += block_of(order)) {
        const size_t count = columns - c < block_of(order) ? columns - c : block_of(order);
        const float sum = chain(row + c * kWeightNbytes, words + c * kWeightNbytes, count);
        total = c == 0 ? sum : total + sum;
      }
      out[m * out_stride + r] = total;
    }
  }
}

template <tw_order order>
const DotKernels* find_pairs(WeightFormat format) {
  static constexpr DotKernels kKernels = {arrange_pairs, dot_pairs<order>, 1, nullptr, nullptr, nullptr};
  return format == WeightFormat::kBf16 ? &kKernels : nullptr;
}

const DotKernels* find(tw_order order, WeightFormat format) {
  switch (order) {
    case TW_SUMS_32:
      return find_sums<32>(format);
    case TW_SUMS_64:
      return find_sums<64>(format);
    case TW_PAIRS_512:
      return find_pairs<TW_PAIRS_512>(format);
    case TW_PAIRS_1024:
      return find_pairs<TW_PAIRS_1024>(format);
  }
  return nullptr;
}

}  // namespace

extern const FindDot kFindDotScalar;
const FindDot kFindDotScalar = find;

}  // namespace tw
