#include <algorithm>
#include <cstring>

#include "coders/bit_string.h"
#include "coders/sparse.h"

namespace tw {
namespace {

constexpr size_t kSampled = 32;                   // of so many words about one is looked at
constexpr uint64_t kMaxSize = uint64_t{1} << 62;  // of a step: twice that is a number, and has a code of golomb()

// Words of the base by exponent, about, and the changed ones: those whose step has a size of at least 1, 2, 3, 4.
struct Counts {
  uint32_t words[256], steps[kFirstLargeStep][256];
  // Where every other word is counted: the same number is rarely added to twice in a row.
  uint32_t more_words[256], more_steps[kFirstLargeStep][256];

  void join() {
    for (unsigned e = 0; e < 256; ++e) words[e] += more_words[e];
    for (unsigned s = 0; s < kFirstLargeStep; ++s) {
      for (unsigned e = 0; e < 256; ++e) steps[s][e] += more_steps[s][e];
    }
  }
};

// 0 where there are no classes.
template <class T>
uint8_t exponent_of(const Layout& dtype, T word) {
  if (!has_classes(dtype)) return 0;
  return static_cast<uint8_t>(word >> dtype.exponent_shift() & ((1u << dtype.exponent_bits) - 1));
}

template <class T>
void sample_exponents(const Layout& dtype, const uint8_t* base, size_t n, Counts* counts) {
  // An odd distance, so that no column of a matrix is favoured.
  const size_t distance = n < 256 * kSampled ? 1 : kSampled | 1;
  const auto exponent = [&](size_t i) { return exponent_of(dtype, load<T>(base + i * sizeof(T))); };
  size_t i = 0;
  for (; i + distance < n; i += 2 * distance) {
    counts->words[exponent(i)] += static_cast<uint32_t>(distance);
    counts->more_words[exponent(i + distance)] += static_cast<uint32_t>(distance);
  }
  if (i < n) counts->words[exponent(i)] += static_cast<uint32_t>(distance);
}

template <class T, bool kOrdered>
bool list_steps(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t count, Counts* counts,
                SparseEncodeScratch* scratch) {
  uint64_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t place = scratch->places[i];
    const T old = load<T>(base + place * sizeof(T));
    const T step = static_cast<T>(order<T, kOrdered>(load<T>(words + place * sizeof(T))) - order<T, kOrdered>(old));
    const T negative = step >> (8 * sizeof(T) - 1);
    const uint64_t size = static_cast<T>((step ^ (0 - negative)) + negative);
    const uint8_t exponent = exponent_of(dtype, old);
    scratch->exponents[i] = exponent;
    scratch->steps[i] = size << 1 | negative;
    largest |= size;
    auto& steps = i % 2 == 0 ? counts->steps : counts->more_steps;
    ++steps[(size < kFirstLargeStep ? size : kFirstLargeStep) - 1][exponent];
  }
  return largest < kMaxSize;
}

// About what set(n) takes for m members.
uint64_t set_cost(uint64_t n, uint64_t m) {
  if (n == 0) return 0;
  const uint64_t few = m <= n / 2 ? m : n - m;
  const uint64_t params = 2 * bit_length(few + 1) + (few == 0 ? 0 : kRiceBits);
  return (params << kCostFraction) + rice_cost(n, few);
}

// The changed words of classes, about: of the exponents [first, last) of running sums.
class Costs {
 public:
  explicit Costs(const Counts& counts) {
    for (unsigned e = 0; e < 256; ++e) {
      words_[e + 1] = words_[e] + counts.words[e];
      uint32_t at_least = 0;
      for (unsigned s = kFirstLargeStep; s-- > 0;) {
        at_least += counts.steps[s][e];
        steps_[s][e + 1] = steps_[s][e] + at_least;
      }
    }
  }
  uint32_t changed(unsigned first, unsigned last) const { return steps_[0][last] - steps_[0][first]; }
  uint64_t operator()(unsigned first, unsigned last) const {
    uint32_t m[kFirstLargeStep];
    for (unsigned s = 0; s < kFirstLargeStep; ++s) m[s] = steps_[s][last] - steps_[s][first];
    const uint64_t n = std::max(words_[last] - words_[first], m[0]);
    uint64_t cost = (uint64_t{8 + kRiceBits} + 2 * bit_length(m[0])) << kCostFraction;
    cost += rice_cost(n, m[0]) + (uint64_t{m[0]} << kCostFraction);
    for (unsigned s = 1; s < kFirstLargeStep; ++s) cost += set_cost(m[s - 1], m[s]);
    const uint64_t large = m[kFirstLargeStep - 1];
    return cost + ((large == 0 ? 0 : kGolombBits + 4 * large) << kCostFraction);
  }

 private:
  uint32_t words_[257] = {}, steps_[kFirstLargeStep][257] = {};
};

Thresholds choose(const Costs& costs, unsigned max_classes, uint64_t* cost) {
  // The highest exponents have nearly all of the words; what lies below the cuts belongs to the lowest.
  uint8_t cuts[kMaxCuts];
  unsigned num_cuts = 0;
  unsigned lowest = 256;
  for (unsigned found = 0; lowest > 0 && found < kMaxCuts; --lowest) found += costs.changed(lowest - 1, lowest) != 0;
  for (unsigned e = lowest; e < 256; ++e) {
    if (costs.changed(e, e + 1) != 0) cuts[num_cuts++] = static_cast<uint8_t>(e);
  }
  const auto range = [&](unsigned first, unsigned last) {
    return costs(first == 0 ? 0 : cuts[first], last == num_cuts ? 256 : cuts[last]);
  };
  return choose_thresholds(cuts, num_cuts, max_classes, range, cost);
}

// The class of each exponent.
void fill_classes(const Thresholds& thresholds, uint8_t classes[256]) {
  unsigned c = 0;
  for (unsigned e = 0; e < 256; ++e) {
    while (c + 1 < thresholds.num_classes && e >= thresholds.thresholds[c]) ++c;
    classes[e] = static_cast<uint8_t>(c);
  }
}

// The gaps of the changed words and their steps, class by class.
void sort_steps(const Layout& dtype, const uint8_t* base, size_t n, const SparsePlan& plan,
                SparseEncodeScratch* scratch) {
  const unsigned num_classes = plan.thresholds.num_classes;
  uint8_t classes[256];
  fill_classes(plan.thresholds, classes);
  for (size_t i = 0; i < plan.count; ++i) scratch->exponents[i] = classes[scratch->exponents[i]];
  const uint32_t* ranks = scratch->places;  // where all words are of one class
  if (num_classes > 1) {
    step_kernels.reach(dtype, base, n, classes_of(dtype, plan.thresholds), scratch->reach);
    step_kernels.rank(num_classes, scratch->reach, scratch->places, scratch->exponents, plan.count, scratch->ranks);
    ranks = scratch->ranks;
  }
  uint32_t next[kMaxClasses] = {};  // the rank after that of the last changed word
  size_t at[kMaxClasses] = {};
  for (unsigned c = 1; c < num_classes; ++c) at[c] = at[c - 1] + plan.counts[c - 1];
  for (size_t i = 0; i < plan.count; ++i) {
    const unsigned c = scratch->exponents[i];
    scratch->gaps[at[c]] = ranks[i] - next[c];
    scratch->sorted_steps[at[c]++] = scratch->steps[i];
    next[c] = ranks[i] + 1;
  }
}

void write_positions(BitWriter* writer, const uint32_t* gaps, const uint64_t* steps, size_t count) {
  writer->golomb(count, kCountOrder);
  if (count == 0) return;
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += gaps[i];
  RiceChoice choice(sum, count);
  for (size_t i = 0; i < count; ++i) choice.add(gaps[i]);
  const unsigned k = choice.k();
  writer->bits(k, kRiceBits);
  BitWriter own = *writer;  // in registers
  for (size_t i = 0; i < count; ++i) own.rice_and_bit(gaps[i], k, steps[i] & 1);
  *writer = own;
}

// set(n) of these members, or of all others.
void write_members(BitWriter* writer, bool inverted, const uint32_t* members, size_t count) {
  writer->bits(inverted, 1);
  writer->golomb(count, 0);
  if (count == 0) return;
  const auto each_gap = [&](auto&& body) {
    uint32_t next = 0;
    for (size_t i = 0; i < count; next = members[i++] + 1) body(members[i] - next);
  };
  RiceChoice choice(members[count - 1] + 1 - count, count);
  each_gap([&](uint32_t gap) { choice.add(gap); });
  writer->bits(choice.k(), kRiceBits);
  each_gap([&](uint32_t gap) { writer->rice(gap, choice.k()); });
}

// The order of golomb() that suits the sizes from kFirstLargeStep on.
unsigned choose_order(const uint64_t* steps, size_t count) {
  uint64_t lengths[64] = {};
  unsigned most = 0;
  for (size_t i = 0; i < count; ++i) {
    const unsigned length = bit_length((steps[i] >> 1) - kFirstLargeStep + 1) - 1;
    ++lengths[length];
    if (length > most) most = length;
  }
  unsigned best = 0;
  uint64_t fewest = UINT64_MAX;
  for (unsigned g = 0; g <= most && g < 62; ++g) {
    uint64_t bits = 0;
    for (unsigned length = 0; length <= most; ++length) {
      bits += lengths[length] * (1 + g + (length > g ? 2 * (length - g) : 0));
    }
    if (bits < fewest) fewest = bits, best = g;
  }
  return best;
}

// The sets of those that are at least so large, each among those of the set before; then the sizes of the last ones.
void write_sizes(BitWriter* writer, const uint64_t* steps, size_t count, SparseEncodeScratch* scratch) {
  // Steps of the set before; what is in the set and what is not, by number within that.
  uint64_t* const left = scratch->steps;  // no longer needed otherwise
  std::memcpy(left, steps, count * sizeof *steps);
  for (unsigned size = 2; size <= kFirstLargeStep; ++size) {
    if (count == 0) return;
    size_t found[2] = {0, 0};
    for (size_t i = 0; i < count; ++i) {
      const uint64_t step = left[i];
      const unsigned in = step >> 1 >= size;
      scratch->members[in][found[in]] = static_cast<uint32_t>(i);
      left[found[1]] = step;
      ++found[in];
    }
    const bool inverted = found[1] > count / 2;
    write_members(writer, inverted, scratch->members[!inverted], found[!inverted]);
    count = found[1];
  }
  if (count == 0) return;
  const unsigned g = choose_order(left, count);
  writer->bits(g, kGolombBits);
  for (size_t i = 0; i < count; ++i) writer->golomb((left[i] >> 1) - kFirstLargeStep, g);
}

}  // namespace

bool sparse_plan(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, const uint64_t* changed,
                 unsigned max_classes, SparsePlan* plan, SparseEncodeScratch* scratch) {
  Counts counts{};
  plan->count = step_kernels.list(changed, n, scratch->places);
  const bool small = with_words(dtype, [&](auto word, auto ordered) {
    using T = decltype(word);
    sample_exponents<T>(dtype, base, n, &counts);
    return list_steps<T, decltype(ordered)::value>(dtype, words, base, plan->count, &counts, scratch);
  });
  if (!small) return false;
  counts.join();
  const Costs costs(counts);
  uint64_t cost = 0;
  plan->thresholds = choose(costs, max_classes, &cost);
  plan->nbits = cost >> kCostFraction;
  uint8_t classes[256];
  fill_classes(plan->thresholds, classes);
  std::memset(plan->counts, 0, sizeof plan->counts);
  for (unsigned e = 0; e < 256; ++e) plan->counts[classes[e]] += costs.changed(e, e + 1);
  return true;
}

size_t sparse_encode(const Layout& dtype, const uint8_t* base, size_t n, const SparsePlan& plan, uint8_t* dst,
                     size_t capacity, SparseEncodeScratch* scratch) {
  sort_steps(dtype, base, n, plan, scratch);
  BitWriter writer(dst, capacity);
  size_t first = 0;
  for (unsigned c = 0; c < plan.thresholds.num_classes; first += plan.counts[c++]) {
    write_positions(&writer, scratch->gaps + first, scratch->sorted_steps + first, plan.counts[c]);
  }
  first = 0;
  for (unsigned c = 0; c < plan.thresholds.num_classes; first += plan.counts[c++]) {
    write_sizes(&writer, scratch->sorted_steps + first, plan.counts[c], scratch);
  }
  size_t nbytes = 0;
  return writer.finish(&nbytes) ? nbytes : 0;
}

}  // namespace tw
