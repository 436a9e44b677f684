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
unsigned symbol_bits(const Layout& dtype) { return 4 + trailing_zeros(dtype.word_nbytes, 0); }  // of W = 1, 2, 4, 8

// How often symbols occur with the exponents from each cut on.
class Samples {
 public:
  template <class T>
  Samples(const Layout& dtype, const uint8_t* base, const uint8_t* symbols, size_t n, T) {
    const unsigned shift = symbol_bits(dtype), num_exponents = 1u << dtype.exponent_bits;
    bool occurs[256] = {};
    uint16_t counts[256 << kMaxShift];
    std::memset(counts, 0, sizeof *counts * num_exponents << shift);
    const size_t distance = n < 64 * kSampled ? 1 : kSampled | 1;
    for (size_t i = 0; i < n; i += distance) {
      const T exponent = static_cast<T>(load<T>(base + i * sizeof(T)) >> dtype.exponent_shift() & (num_exponents - 1));
      ++counts[size_t{exponent} << shift | symbols[i]];
      occurs[exponent] = true;
    }
    unsigned lowest = 0;  // the exponent of the lowest cut, to which those below it count
    for (unsigned e = num_exponents, found = 0; e-- > 0;) {
      if (occurs[e] && ++found == kMaxCuts) lowest = e;
    }
    for (unsigned e = 0; e < num_exponents; ++e) {
      if (!occurs[e]) continue;
      if (num_cuts == 0 || e > lowest) {
        std::memcpy(counts_[num_cuts + 1], counts_[num_cuts], sizeof *counts_);
        cuts[num_cuts++] = static_cast<uint8_t>(std::max(e, lowest));
      }
      for (unsigned s = 0; s < 1u << shift; ++s) {
        counts_[num_cuts][s] += static_cast<uint32_t>(counts[e << shift | s] * distance);
      }
    }
    num_symbols_ = 1u << shift;
    while (num_symbols_ > 1 && counts_[num_cuts][num_symbols_ - 1] == 0) --num_symbols_;
  }
  // The entropy of the symbols and about what a table takes. No branches: no processor foresees which symbols occur.
  uint64_t cost(unsigned first, unsigned last) const {
    uint64_t sum = 0;
    uint32_t n = 0, present = 0;
    for (unsigned s = 0; s < num_symbols_; ++s) {
      const uint32_t count = counts_[last][s] - counts_[first][s];
      n += count;
      sum += uint64_t{count} * log2_64ths(count);
      present += count != 0;
    }
    return (uint64_t{n} * log2_64ths(n) - sum) * 4 + ((uint64_t{32} + 6 * present) << kCostFraction);
  }

  uint8_t cuts[kMaxCuts];
  unsigned num_cuts = 0;

 private:
  unsigned num_symbols_;  // up to the highest that occurs
  uint32_t counts_[kMaxCuts + 1][1 << kMaxShift] = {};
};

// Low bits of a size that has this symbol.
uint64_t low_bits(unsigned symbol) { return symbol < 4 ? 0 : symbol / 2 - 1; }

// Choose the classes and tables of n words, and put the classes above their symbols, which are counted. Returns about
// what the stream of symbols takes.
size_t plan_symbols(const Layout& dtype, const uint8_t* base, size_t n, unsigned max_classes, uint8_t* symbols,
                    DensePlan* plan, uint32_t histogram[256]) {
  const unsigned shift = symbol_bits(dtype);
  max_classes = has_classes(dtype) ? std::min(max_classes, 256u >> shift) : 1;
  plan->thresholds = Thresholds{};
  if (max_classes > 1) {
    with_words(dtype, [&](auto word, auto) {
      const Samples samples(dtype, base, symbols, n, word);
      uint64_t cost;
      plan->thresholds = choose_thresholds(
          samples.cuts, samples.num_cuts, max_classes,
          [&](unsigned last, uint64_t* costs) {
            for (unsigned first = 0; first < last; ++first) costs[first] = samples.cost(first, last);
          },
          &cost);
    });
    step_kernels.classify(dtype, base, n, classes_of(dtype, plan->thresholds), shift, symbols);
  }
  byte_histogram(symbols, n, histogram);  // with their classes they lie far apart
  return entropy_choose_classes(histogram, plan->thresholds.num_classes, shift, &plan->tables);
}

size_t strings_nbytes(const DenseBits& bits) { return bit_string_nbytes(bits.signs) + bit_string_nbytes(bits.low); }

// Whether the bits that were read stand in the bytes, and zeros behind them; *nbytes receives those of both.
bool ends_well(const BitSource& bits, size_t* nbytes) {
  BitReader reader(bits.src, bits.nbytes);
  reader.skip(bits.at);
  return reader.finish(nbytes);
}

}  // namespace

void dense_plan(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, const FetchPair& upcoming,
                unsigned max_classes, DensePlan* plan, DenseEncodeScratch* scratch) {
  plan->bits = step_kernels.measure(dtype, words, base, n, upcoming, scratch->symbols, scratch->signs, scratch->low);
  uint32_t histogram[256];
  plan->nbytes =
      plan_symbols(dtype, base, n, max_classes, scratch->symbols, plan, histogram) + strings_nbytes(plan->bits);
}

void dense_plan_part(const Layout& dtype, const uint8_t* base, size_t first, size_t n, unsigned max_classes,
                     DensePlan* plan, DenseEncodeScratch* scratch) {
  uint8_t* const symbols = scratch->symbols + first;
  const unsigned mask = (1u << symbol_bits(dtype)) - 1;
  for (size_t i = 0; i < n; ++i) symbols[i] = static_cast<uint8_t>(symbols[i] & mask);
  uint32_t histogram[256];
  plan->nbytes = plan_symbols(dtype, base, n, max_classes, symbols, plan, histogram);
  plan->bits = {};
  for (unsigned joint = 0; joint < 256; ++joint) {
    if ((joint & mask) != 0) plan->bits.signs += histogram[joint];
    plan->bits.low += histogram[joint] * low_bits(joint & mask);
  }
  plan->nbytes += strings_nbytes(plan->bits);
}

size_t dense_encode(size_t n, const DensePlan& plan, uint8_t* dst, size_t capacity, DenseEncodeScratch* scratch) {
  const size_t symbols = entropy_encode_classes(scratch->symbols, n, plan.tables, dst, capacity, &scratch->entropy);
  const size_t signs = bit_string_nbytes(plan.bits.signs), low = bit_string_nbytes(plan.bits.low);
  if (symbols == 0 || signs + low > capacity - symbols) return 0;
  std::memcpy(dst + symbols, scratch->signs, signs);
  std::memcpy(dst + symbols + signs, scratch->low, low);
  return symbols + signs + low;
}

bool DenseDecoder::open(const Layout& dtype, const uint8_t* src, size_t available, size_t n, const StepClasses& classes,
                        size_t num_changed) {
  dtype_ = dtype;
  classes_ = classes;
  num_words_ = n;
  num_changed_ = num_changed;
  num_decoded_ = 0;
  size_t consumed = 0;
  if (!entropy_.open(src, available, n, classes.count, &consumed)) return false;
  const size_t signs_nbytes = bit_string_nbytes(num_changed);
  if (num_changed > n || signs_nbytes > available - consumed) return false;
  signs_ = {src + consumed, signs_nbytes, 0};
  low_offset_ = consumed + signs_nbytes;
  low_ = {src + low_offset_, available - low_offset_, 0};
  return ends_well({signs_.src, signs_nbytes, num_changed}, &consumed);
}

void DenseDecoder::classify(size_t first, size_t count, const uint8_t* base, uint8_t classes[kDenseTile]) const {
  std::memset(classes, 0, count);
  step_kernels.classify(dtype_, base + first * dtype_.word_nbytes, count, classes_, 0, classes);
}

void DenseDecoder::decode_symbols_from(size_t first, const uint8_t* base) {
  uint8_t classes[kDenseTile];
  for (; first < num_words_; first += kDenseTile) {
    const size_t count = std::min(kDenseTile, num_words_ - first);
    classify(first, count, base, classes);
    entropy_.decode(classes, symbols_ + first, count);
  }
}

void DenseDecoder::decode_symbols_of_two(DenseDecoder* a, const uint8_t* a_base, DenseDecoder* b,
                                         const uint8_t* b_base) {
  uint8_t a_classes[kDenseTile], b_classes[kDenseTile];
  size_t first = 0;
  for (; first + kDenseTile <= std::min(a->num_words_, b->num_words_); first += kDenseTile) {
    a->classify(first, kDenseTile, a_base, a_classes);
    b->classify(first, kDenseTile, b_base, b_classes);
    EntropyClassDecoder::decode_two(&a->entropy_, a_classes, a->symbols_ + first, &b->entropy_, b_classes,
                                    b->symbols_ + first, kDenseTile);
  }
  a->decode_symbols_from(first, a_base);
  b->decode_symbols_from(first, b_base);
}

bool DenseDecoder::decode(const uint8_t* base, size_t count, uint8_t* words) {
  const uint8_t* const symbols = symbols_ + num_decoded_;
  num_decoded_ += count;
  return step_kernels.apply_dense(dtype_, base, count, symbols, &signs_, &low_, words) && signs_.at <= num_changed_;
}

bool DenseDecoder::finish(size_t* nbytes) {
  size_t low_nbytes = 0;
  if (signs_.at != num_changed_ || !entropy_.finish() || !ends_well(low_, &low_nbytes)) return false;
  *nbytes = low_offset_ + low_nbytes;
  return true;
}

}  // namespace tw
