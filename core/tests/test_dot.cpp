// The dot kernels of this target against plain loops in the orders that tensorwire.h describes, bit for bit.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "linear/dot.h"
#include "tests/check.h"
#include "tests/quick.h"
#include "tests/target.h"

namespace {

using tw::kWeightNbytes;
using tw::WeightFormat;

// What the random numbers are: ordinary ones; any bits; those about the smallest normal float.
enum Numbers { kOrdinary, kAny, kTiny, kNumNumbers };

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float value_of(WeightFormat format, uint16_t word) {
  if (format == WeightFormat::kF16) {
    const int exponent = word >> 10 & 31;
    const float mantissa = static_cast<float>(word & 1023) + (exponent != 0 ? 1024.0f : 0.0f);
    float value = std::ldexp(mantissa, (exponent != 0 ? exponent : 1) - 25);
    if (exponent == 31) value = (word & 1023) != 0 ? NAN : INFINITY;
    return word >> 15 != 0 ? -value : value;
  }
  const uint32_t bits = uint32_t{word} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Terms {
  std::vector<float> weights, inputs;
};

float halved(std::vector<float> sums) {
  for (size_t half = sums.size() / 2; half != 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

float in_sums(const Terms& terms, size_t count) {
  const size_t columns = terms.weights.size();
  std::vector<float> sums(count), few(count / 8);
  size_t c = 0;
  const auto add = [&](float* sum) {
    *sum = std::fma(terms.weights[c], terms.inputs[c], *sum);
    ++c;
  };
  while (c < columns / count * count) add(&sums[c % count]);
  while (c < columns / (count / 4) * (count / 4)) add(&few[c % (count / 8)]);
  float total = halved(sums) + halved(few);
  for (; c < columns; ++c) {
    const volatile float product = terms.weights[c] * terms.inputs[c];  // rounded, whatever a compiler may fuse
    total += product;
  }
  return total;
}

// Denormals are zeros. What is less than the smallest normal number with 24 bits, whatever its exponent, is one.
float flushed(double value) {
  const bool is_small = value != 0 && std::fabs(value) < 0x1p-125;
  if (!is_small) return static_cast<float>(value);
  int exponent;
  const double fraction = std::frexp(value, &exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(fraction, 24)), exponent - 24);
  return std::fabs(rounded) < 0x1p-126 ? std::copysign(0.0f, static_cast<float>(value)) : static_cast<float>(rounded);
}

float in_gemv(const Terms& terms) {
  std::vector<float> sums(16);
  std::vector<double> padded[] = {{terms.weights.begin(), terms.weights.end()},
                                  {terms.inputs.begin(), terms.inputs.end()}};
  for (auto& values : padded) values.resize(tw::ceil_to(values.size(), 32));
  for (size_t c = 0; c < padded[0].size(); c += 32) {
    for (const size_t upper : {1, 0}) {
      for (size_t j = 0; j < 16; ++j) {
        const size_t at = c + 2 * j + upper;
        sums[j] = std::fma(static_cast<float>(padded[0][at]), static_cast<float>(padded[1][at]), sums[j]);
      }
    }
  }
  for (size_t j = 0; j < 8; ++j) sums[j] += sums[j + 8];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// By fused multiply-add in place of VDPBF16PS.
float in_gemm(const Terms& terms) {
  const size_t columns = terms.weights.size(), half = (columns + 1) / 2;
  const size_t block = columns <= 384 ? columns : columns < 1536 ? half + half % 2 : 768;
  float total = 0;
  for (size_t c = 0; c < columns; c += block) {
    float sum = 0;
    for (size_t pair = c; pair < std::min(columns, c + block); pair += 2) {
      const bool is_whole = pair + 1 < columns;
      sum = std::fma(is_whole ? terms.weights[pair + 1] : 0.0f, is_whole ? terms.inputs[pair + 1] : 0.0f, sum);
      sum = std::fma(terms.weights[pair], terms.inputs[pair], sum);
    }
    total = c == 0 ? sum : total + sum;
  }
  return total;
}

float in_pairs(const Terms& terms, size_t block) {
  const size_t columns = terms.weights.size();
  float total = 0;
  for (size_t c = 0; c < columns; c += block) {
    float sum = 0;
    for (size_t pair = c; pair < std::min(columns, c + block); pair += 2) {
      for (const size_t at : {pair + 1, pair}) {
        const double weight = at < columns ? flushed(terms.weights[at]) : 0;
        const double input = at < columns ? flushed(terms.inputs[at]) : 0;
        // The product is precise in double, and so is the sum where it matters for the flush.
        const float sure = std::fma(static_cast<float>(weight), static_cast<float>(input), sum);
        sum = std::fabs(sure) > 0x1p-125f || std::isnan(sure) ? sure : flushed(weight * input + sum);
      }
    }
    total = c == 0 ? sum : total + sum;
  }
  return total;
}

float expected(tw_order order, const Terms& terms) {
  switch (order) {
    case TW_SUMS_32:
      return in_sums(terms, 32);
    case TW_SUMS_64:
      return in_sums(terms, 64);
    case TW_PAIRS_512:
      return in_pairs(terms, 512);
    case TW_GEMV_16:
      return in_gemv(terms);
    case TW_GEMM_768:
      return in_gemm(terms);
    default:
      return in_pairs(terms, 1024);
  }
}

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

// The first row in two pieces.
void check_pieces(const tw::DotKernels& kernels, const std::vector<uint16_t>& weights, const std::vector<float>& input,
                  size_t columns, float want) {
  float sums[tw::kMostSums] = {};
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(weights.data());
  const size_t first = columns / 2 / tw::kMostSums * tw::kMostSums;
  kernels.add_terms(bytes, first, input.data(), sums);
  kernels.add_terms(bytes + first * kWeightNbytes, columns - first, input.data() + first, sums);
  CHECK(same(kernels.total(sums), want));
}

uint16_t word_of(WeightFormat format, Numbers numbers, std::mt19937* random) {
  const uint32_t any = (*random)();
  if (numbers == kAny) return static_cast<uint16_t>(any);
  if (format == WeightFormat::kF16) return static_cast<uint16_t>(numbers == kTiny ? any & 0x87ff : any & 0xbfff);
  if (numbers == kTiny) return static_cast<uint16_t>((any & 0x807f) | (60 + any % 8) << 7);
  return static_cast<uint16_t>(bits_of(std::normal_distribution<float>()(*random)) >> 16);
}

// Gaps of NaN behind each so many rows.
constexpr size_t kTogether = 5, kGap = 3;

std::vector<uint16_t> put_apart(const std::vector<uint16_t>& weights, size_t columns) {
  std::vector<uint16_t> apart;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (i != 0 && i % (kTogether * columns) == 0) apart.insert(apart.end(), kGap, 0x7fff);
    apart.push_back(weights[i]);
  }
  return apart;
}

void check(tw_order order, WeightFormat format, Numbers numbers, size_t rows, size_t columns, size_t num_inputs) {
  const tw::DotKernels* const kernels = tw::find_dot(order, format);
  if (kernels == nullptr) return;
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + columns * 10 + num_inputs));
  const size_t stride = tw::ceil_to(columns, tw::kMostSums);
  std::vector<uint16_t> weights(rows * columns);
  for (uint16_t& word : weights) word = word_of(format, numbers, &random);
  std::vector<float> inputs(num_inputs * columns), arranged(num_inputs * stride + 1), out(num_inputs * rows + 1, 7.0f);
  for (float& value : inputs) value = value_of(format, word_of(format, numbers, &random));
  for (size_t m = 0; m < num_inputs; ++m) kernels->arrange(&inputs[m * columns], columns, &arranged[m * stride]);
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(weights.data());
  kernels->dot({bytes, rows, columns}, arranged.data(), num_inputs, stride, out.data(), rows,
               {bytes, weights.size() * kWeightNbytes});
  std::vector<float> with_gaps(num_inputs * rows);
  const std::vector<uint16_t> apart = put_apart(weights, columns);
  kernels->dot({reinterpret_cast<const uint8_t*>(apart.data()), rows, columns, kTogether, kGap * kWeightNbytes},
               arranged.data(), num_inputs, stride, with_gaps.data(), rows, {});
  for (size_t i = 0; i < with_gaps.size(); ++i) CHECK(same(with_gaps[i], out[i]));
  for (size_t r = 0; r < rows; ++r) {
    Terms terms;
    for (size_t c = 0; c < columns; ++c) terms.weights.push_back(value_of(format, weights[r * columns + c]));
    for (size_t m = 0; m < num_inputs; ++m) {
      terms.inputs.assign(inputs.begin() + m * columns, inputs.begin() + (m + 1) * columns);
      CHECK(same(out[m * rows + r], expected(order, terms)));
    }
  }
  CHECK(out[num_inputs * rows] == 7.0f);
  if (columns % tw::kMostSums == 0 && kernels->add_terms != nullptr) {
    check_pieces(*kernels, weights, arranged, columns, out[0]);
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  size_t each = 0;
  for (const tw_order order : tw::kOrders) {
    for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF16}) {
      for (int numbers = kOrdinary; numbers < kNumNumbers; ++numbers) {
        for (const size_t rows : {1u, 2u, 5u, 17u, 33u}) {
          for (const size_t columns : {1u, 2u, 15u, 33u, 64u, 77u, 128u, 600u, 1023u, 1024u, 2050u, 2500u}) {
            for (const size_t num_inputs : {1u, 2u, 3u, 4u, 7u, 8u}) {
              // The plain loops take their time.
              if (columns > 128 && (rows + num_inputs) % 2 != 0) continue;
              if (columns > 128 && !tests::runs((rows + num_inputs) / 2 + columns + each, 2)) continue;
              check(order, format, static_cast<Numbers>(numbers), rows, columns, num_inputs);
            }
          }
        }
        // More inputs than are multiplied at a time. Few sizes: the plain loops are slow under an emulator.
        check(order, format, static_cast<Numbers>(numbers), 33, 77, 65);
        if (tests::runs(each, 2)) check(order, format, static_cast<Numbers>(numbers), 33, 1023, 65);
        if (tests::runs(each + 1, 2)) check(order, format, static_cast<Numbers>(numbers), 17, 2050, 65);
        ++each;
      }
    }
  }
  std::printf("ok\n");
  return 0;
}
