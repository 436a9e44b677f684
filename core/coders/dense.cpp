#include "coders/dense.h"

#include <algorithm>
#include <cstring>

#include "transforms/histogram.h"

namespace tw {
namespace {

constexpr size_t kSampled = 16;  // of so many words about one is looked at for the classes
constexpr unsigned kMaxShift = 7;

// Bits of a symbol: sizes are at most 2^(8W - 1), whose symbol is 2 (8W - 1).
unsigned symbol_bits(const Dtype& dtype) { return 4 + trailing_zeros(dtype.word_nbytes, 0); }  // of W = 1, 2, 4, 8

// The low bits of a size that has this symbol, 4 or more.
unsigned low_bits_of(uint8_t symbol) { return symbol / 2 - 1; }

// How often symbols occur with the exponents from each cut on.
class Samples {
 public:
  template <class T>
  Samples(const Dtype& dtype, const uint8_t* base, const uint8_t* symbols, size_t n, T) : shift_(symbol_bits(dtype)) {
    uint32_t words[256] = {};
    const size_t distance = n < 64 * kSampled ? 1 : kSampled | 1;
    const auto each = [&](auto&& body) {
      for (size_t i = 0; i < n; i += distance) {
        const T word = load<T>(base + i * sizeof(T));
        body(has_classes(dtype) ? static_cast<uint8_t>(word >> dtype.mantissa_bits & ((1u << dtype.exponent_bits) - 1))
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
      for (unsigned s = 0; s < 1u << shift_; ++s) counts_[cut + 1][s] += counts_[cut][s];
    }
  }
  // The entropy of the symbols and about what a table takes.
  uint64_t cost(unsigned first, unsigned last) const {
    uint64_t n = 0, sum = 0;
    unsigned present = 0;
    for (unsigned s = 0; s < 1u << shift_; ++s) {
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
  unsigned shift_;
  uint32_t counts_[kMaxCuts + 1][1 << kMaxShift] = {};
};

}  // namespace

void dense_plan(const Dtype& dtype, const uint8_t* words, const uint8_t* base, size_t n, unsigned max_classes,
                DensePlan* plan, DenseEncodeScratch* scratch) {
  plan->num_large = step_kernels.measure(dtype, words, base, n, scratch->symbols, scratch->negative, scratch->changed,
                                         scratch->large, scratch->large_sizes);
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
    step_kernels.classify(dtype, base, n, classes_of(dtype, plan->thresholds), shift, scratch->classes);
    for (size_t i = 0; i < n; ++i)
      scratch->symbols[i] = static_cast<uint8_t>(scratch->symbols[i] | scratch->classes[i]);
  }
  histogram_kernels.bytes(scratch->symbols, n, plan->histogram);
  const unsigned num_classes = plan->thresholds.num_classes;
  uint64_t low_bits = 0;
  plan->num_changed = n;
  for (unsigned joint = 0; joint < num_classes << shift; ++joint) {
    const unsigned symbol = joint & ((1u << shift) - 1);
    if (symbol == 0) plan->num_changed -= plan->histogram[joint];
    if (symbol > 3) low_bits += uint64_t{plan->histogram[joint]} * low_bits_of(static_cast<uint8_t>(symbol));
  }
  plan->nbytes = entropy_estimate_classes(plan->histogram, num_classes, shift) + bit_string_nbytes(plan->num_changed) +
                 bit_string_nbytes(low_bits);
}

size_t dense_encode(const Dtype& dtype, size_t n, const DensePlan& plan, uint8_t* dst, size_t capacity,
                    DenseEncodeScratch* scratch) {
  const unsigned shift = symbol_bits(dtype);
  const size_t symbols = entropy_encode_classes(scratch->symbols, n, plan.histogram, plan.thresholds.num_classes, shift,
                                                dst, capacity, &scratch->entropy);
  if (symbols == 0) return 0;
  BitWriter signs(dst + symbols, capacity - symbols);
  for (size_t g = 0; g < ceil_div(n, kMaskWords); ++g) {
    const uint64_t changed = scratch->changed[g];
    signs.bits(step_kernels.extract(scratch->negative[g], changed),
               static_cast<unsigned>(__builtin_popcountll(changed)));
  }
  size_t signs_nbytes = 0;
  if (!signs.finish(&signs_nbytes)) return 0;
  const size_t used = symbols + signs_nbytes;
  BitWriter low(dst + used, capacity - used);
  with_words(dtype, [&](auto word, auto) {
    for (size_t i = 0; i < plan.num_large; ++i) {
      const uint64_t size = load<decltype(word)>(scratch->large_sizes + i * sizeof word);
      const unsigned width = bit_length(size) - 2;
      low.bits(size & ((uint64_t{1} << width) - 1), width);
    }
  });
  size_t low_nbytes = 0;
  return low.finish(&low_nbytes) ? used + low_nbytes : 0;
}

bool DenseDecoder::open(const Dtype& dtype, const uint8_t* src, size_t available, size_t n, const StepClasses& classes,
                        size_t num_changed) {
  dtype_ = &dtype;
  classes_ = classes;
  num_changed_ = num_changed;
  seen_ = 0;
  size_t consumed = 0;
  if (!entropy_.open(src, available, n, classes.count, &consumed)) return false;
  if (num_changed > n || bit_string_nbytes(num_changed) > available - consumed) return false;
  signs_ = src + consumed;
  low_offset_ = consumed + bit_string_nbytes(num_changed);
  low_ = BitReader(src + low_offset_, available - low_offset_);
  BitReader filler(signs_, bit_string_nbytes(num_changed));
  filler.skip(num_changed);
  size_t signs_nbytes = 0;
  return filler.finish(&signs_nbytes);
}

// The signs of the next changed words, where those are.
uint64_t DenseDecoder::signs(uint64_t changed) {
  const unsigned count = static_cast<unsigned>(__builtin_popcountll(changed));
  BitReader reader(signs_, bit_string_nbytes(num_changed_));
  reader.skip(seen_);
  const uint64_t bits = reader.bits(count);
  seen_ += count;
  return step_kernels.deposit(bits, changed);
}

bool DenseDecoder::read_sizes(size_t count) {
  const unsigned nbytes = dtype_->word_nbytes, highest = 2 * (8 * nbytes - 1);
  uint8_t* out = sizes_;
  BitReader reader = low_;  // a copy, which no store to the sizes can change
  for (size_t g = 0; g < ceil_div(count, kMaskWords); ++g) {
    for (uint64_t left = large_[g]; left != 0; left &= left - 1, out += nbytes) {
      const size_t i = trailing_zeros(left, 0);
      const uint8_t symbol = symbols_[g * kMaskWords + i];
      if (symbol > highest) return false;
      const unsigned width = low_bits_of(symbol);
      const uint64_t low = reader.bits(width);
      if (symbol == highest && (low != 0 || (negative_[g] >> i & 1) == 0)) return false;
      const uint64_t size = uint64_t{2u | (symbol & 1u)} << width | low;
      std::memcpy(out, &size, sizeof size);
    }
  }
  low_ = reader;
  return true;
}

bool DenseDecoder::decode(const uint8_t* base, size_t count, uint8_t* words) {
  step_kernels.classify(*dtype_, base, count, classes_, 0, tile_classes_);
  entropy_.decode(tile_classes_, symbols_, count);
  step_kernels.find_symbols(symbols_, count, changed_, large_);
  for (size_t g = 0; g < ceil_div(count, kMaskWords); ++g) negative_[g] = signs(changed_[g]);
  if (seen_ > num_changed_ || !read_sizes(count)) return false;
  step_kernels.apply_dense(*dtype_, base, count, symbols_, negative_, large_, sizes_, words);
  return true;
}

bool DenseDecoder::finish(size_t* nbytes) {
  size_t low_nbytes = 0;
  if (seen_ != num_changed_ || !entropy_.finish() || !low_.finish(&low_nbytes)) return false;
  *nbytes = low_offset_ + low_nbytes;
  return true;
}

}  // namespace tw
