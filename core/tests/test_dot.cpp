// The dot kernels of this target against plain loops in the order that dot.h describes, bit for bit.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "linear/dot.h"
#include "tests/check.h"
#include "tests/target.h"

namespace {

using tw::WeightFormat;

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float value_of(WeightFormat format, const uint8_t* weight) {
  uint32_t bits = 0;
  std::memcpy(&bits, weight, tw::weight_nbytes(format));
  float value;
  if (format == WeightFormat::kF16) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const float mantissa = static_cast<float>(bits & 1023) + (exponent != 0 ? 1024.0f : 0.0f);
    value = std::ldexp(mantissa, (exponent != 0 ? exponent : 1) - 25);
    return bits >> 15 != 0 ? -value : value;
  }
  if (format == WeightFormat::kBf16) bits <<= 16;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Lane j takes column j of each 32; of BF16 the even columns come first.
float expected(WeightFormat format, const uint8_t* row, const float* input, size_t columns) {
  float lanes[32] = {};
  for (size_t c = 0; c < columns; ++c) {
    const size_t at = c % 32, lane = format == WeightFormat::kBf16 ? at / 2 + at % 2 * 16 : at;
    lanes[lane] = std::fma(value_of(format, row + c * tw::weight_nbytes(format)), input[c], lanes[lane]);
  }
  for (size_t half = 16; half != 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// The first row in two pieces.
void check_pieces(WeightFormat format, const std::vector<uint8_t>& weights, const std::vector<float>& input,
                  size_t columns, float want) {
  float sums[tw::kDotLanes] = {};
  const size_t first = columns / 2 / tw::kDotLanes * tw::kDotLanes;
  tw::dot_kernels.add_terms(format, weights.data(), first, input.data(), sums);
  tw::dot_kernels.add_terms(format, weights.data() + first * tw::weight_nbytes(format), columns - first,
                            input.data() + first, sums);
  CHECK(bits_of(tw::dot_kernels.total(sums)) == bits_of(want));
}

void check(WeightFormat format, size_t rows, size_t columns, size_t num_inputs) {
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + columns * 10 + num_inputs));
  std::normal_distribution<float> normal;
  const size_t width = tw::weight_nbytes(format), stride = (columns + 31) / 32 * 32;
  std::vector<uint8_t> weights(rows * columns * width);
  for (size_t i = 0; i < rows * columns; ++i) {
    const uint32_t bits = format == WeightFormat::kF16 ? random() & 0xbfff : bits_of(normal(random));
    const uint32_t kept = format == WeightFormat::kBf16 ? bits >> 16 : bits;
    std::memcpy(&weights[i * width], &kept, width);
  }
  std::vector<float> inputs(num_inputs * columns), arranged(num_inputs * stride + 1), out(num_inputs * rows + 1, 7.0f);
  for (float& value : inputs) value = normal(random);
  for (size_t m = 0; m < num_inputs; ++m) {
    tw::arrange_input(format, &inputs[m * columns], columns, &arranged[m * stride]);
  }
  tw::dot_kernels.dot(format, weights.data(), rows, columns, arranged.data(), num_inputs, stride, out.data(), rows,
                      {weights.data(), weights.size()});
  for (size_t m = 0; m < num_inputs; ++m) {
    for (size_t r = 0; r < rows; ++r) {
      const float want = expected(format, &weights[r * columns * width], &inputs[m * columns], columns);
      CHECK(bits_of(out[m * rows + r]) == bits_of(want));
    }
  }
  CHECK(out[num_inputs * rows] == 7.0f);
  if (columns % tw::kDotLanes == 0) check_pieces(format, weights, arranged, columns, out[0]);
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF16, WeightFormat::kF32}) {
    for (const size_t rows : {1u, 2u, 3u, 5u, 9u}) {
      for (const size_t columns : {1u, 2u, 31u, 32u, 33u, 64u, 100u, 1024u}) {
        for (const size_t num_inputs : {1u, 2u, 3u, 4u, 7u, 8u}) check(format, rows, columns, num_inputs);
      }
    }
  }
  std::printf("ok\n");
  return 0;
}
