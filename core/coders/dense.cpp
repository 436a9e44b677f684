#include "coders/dense.h"

#include <algorithm>
#include <cstring>

#include "transforms/histogram.h"

namespace tw {
namespace {

// About one in so many words is looked at for the classes: 8 takes 4 % longer and saves 0.05 %, 32 costs 0.15 %.
constexpr size_t kSampled = 16;
constexpr unsigned kMaxShift = 7;

// Bits of a symbol: sizes are at most 2^(8W - 1), whose symbol is 2 (8W - 1).
unsigned symbol_bits(const Dtype& dtype) { return 4 + trailing_zeros(dtype.word_nbytes, 0); }  // of W = 1, 2, 4, 8

// How often symbols occur with the exponents from each cut on.
class Samples {
 public:
  template <class T>
  Samples(const Dtype& dtype, const uint8_t* base, const uint8_t* symbols, size_t n, T)
      : num_symbols_(1u << symbol_bits(dtype)) {
    uint32_t words[256] = {};
    const size_t distance = n < 64 * kSampled ? 1 : kSampled | 1;
    const auto each = [&](auto&& body) {
      for (size_t i = 0; i < n; i += distance) {
        const T word = load<T>(base + i * sizeof(T));
        body(has_classes(dtype)
                 ? static_cast<uint8_t>(word >> dtype.exponent_shift() & ((1u << dtype.exponent_bits) - 1))
                 : uint8_t{0},
             i);
      }
    };
    each([&](uint8_t exponent, size_t) { ++words[exponent]; });
    unsigned lowest = 256;
    for (unsigned found = 0; lowest > 0 && found < kMaxCuts; --lowest) found += words[lowest - 1] != 0;
    for (unsigned e = lowest; e < 256; ++e) {
      if (words[e] != 0) cuts[num_cuts++] = static_cast<uint8_t>(e);
    }
    uint8_t cut_of[256];
    for (unsigned e = 0, cut = 0; e < 256; ++e) {
      while (cut + 1 < num_cuts && e >= cuts[cut + 1]) ++cut;
      cut_of[e] = static_cast<uint8_t>(cut);
    }
    each([&](uint8_t exponent, size_t i) {
      counts_[cut_of[exponent] + 1][symbols[i]] += static_cast<uint32_t>(distance);
    });
    for (unsigned cut = 0; cut < num_cuts; ++cut) {
      for (unsigned s = 0; s < num_symbols_; ++s) counts_[cut + 1][s] += counts_[cut][s];
    }
    while (num_symbols_ > 1 && counts_[num_cuts][num_symbols_ - 1] == 0) --num_symbols_;
  }
  // The entropy of the symbols and about what a table takes.
  uint64_t cost(unsigned first, unsigned last) const {
    uint64_t n = 0, sum = 0;
    unsigned present = 0;
    for (unsigned s = 0; s < num_symbols_; ++s) {
      const uint64_t count = counts_[last][s] - counts_[first][s];
      if (count == 0) continue;
      n += count;
      sum += count * log2_64ths(count);
      ++present;
    }
    return (n * log2_64ths(n) - sum) * 4 + ((uint64_t{32} + 6 * present) << kCostFraction);
  }

  uint8_t cuts[kMaxCuts];
  unsigned num_cuts = 0;

 private:
  unsigned num_symbols_;  // up to the highest that occurs
  uint32_t counts_[kMaxCuts + 1][1 << kMaxShift] = {};
};

// Whether the bits that were read stand in the bytes, and zeros behind them; *nbytes receives those of both.
bool ends_well(const BitSource& bits, size_t* nbytes) {
  BitReader reader(bits.src, bits.nbytes);
  reader.skip(bits.at);
  return reader.finish(nbytes);
}

}  // namespace

void dense_plan(const Dtype& dtype, const uint8_t* words, const uint8_t* base, size_t n, unsigned max_classes,
                DensePlan* plan, DenseEncodeScratch* scratch) {
  plan->bits = step_kernels.measure(dtype, words, base, n, scratch->symbols, scratch->signs, scratch->low);
  const unsigned shift = symbol_bits(dtype);
  max_classes = has_classes(dtype) ? std::min(max_classes, 256u >> shift) : 1;
  plan->thresholds = Thresholds{};
  if (max_classes > 1) {
    with_words(dtype, [&](auto word, auto) {
      const Samples samples(dtype, base, scratch->symbols, n, word);
      uint64_t cost;
      plan->thresholds = choose_thresholds(
          samples.cuts, samples.num_cuts, max_classes,
          [&](unsigned first, unsigned last) { return samples.cost(first, last); }, &cost);
    });
    step_kernels.classify(dtype, base, n, classes_of(dtype, plan->thresholds), shift, scratch->symbols);
  }
  histogram_kernels.bytes(scratch->symbols, n, plan->histogram);
  plan->nbytes = entropy_estimate_classes(plan->histogram, plan->thresholds.num_classes, shift) +
                 bit_string_nbytes(plan->bits.signs) + bit_string_nbytes(plan->bits.low);
}

size_t dense_encode(const Dtype& dtype, size_t n, const DensePlan& plan, uint8_t* dst, size_t capacity,
                    DenseEncodeScratch* scratch) {
  const size_t symbols = entropy_encode_classes(scratch->symbols, n, plan.histogram, plan.thresholds.num_classes,
                                                symbol_bits(dtype), dst, capacity, &scratch->entropy);
  const size_t signs = bit_string_nbytes(plan.bits.signs), low = bit_string_nbytes(plan.bits.low);
  if (symbols == 0 || signs + low > capacity - symbols) return 0;
  std::memcpy(dst + symbols, scratch->signs, signs);
  std::memcpy(dst + symbols + signs, scratch->low, low);
  return symbols + signs + low;
}

bool DenseDecoder::open(const Dtype& dtype, const uint8_t* src, size_t available, size_t n, const StepClasses& classes,
                        size_t num_changed) {
  dtype_ = &dtype;
  classes_ = classes;
  num_changed_ = num_changed;
  size_t consumed = 0;
  if (!entropy_.open(src, available, n, classes.count, &consumed)) return false;
  const size_t signs_nbytes = bit_string_nbytes(num_changed);
  if (num_changed > n || signs_nbytes > available - consumed) return false;
  signs_ = {src + consumed, signs_nbytes, 0};
  low_offset_ = consumed + signs_nbytes;
  low_ = {src + low_offset_, available - low_offset_, 0};
  return ends_well({signs_.src, signs_nbytes, num_changed}, &consumed);
}

bool DenseDecoder::decode(const uint8_t* base, size_t count, uint8_t* words) {
  std::memset(tile_classes_, 0, count);
  step_kernels.classify(*dtype_, base, count, classes_, 0, tile_classes_);
  entropy_.decode(tile_classes_, symbols_, count);
  return step_kernels.apply_dense(*dtype_, base, count, symbols_, &signs_, &low_, words) && signs_.at <= num_changed_;
}

bool DenseDecoder::finish(size_t* nbytes) {
  size_t low_nbytes = 0;
  if (signs_.at != num_changed_ || !entropy_.finish() || !ends_well(low_, &low_nbytes)) return false;
  *nbytes = low_offset_ + low_nbytes;
  return true;
}

}  // namespace tw
