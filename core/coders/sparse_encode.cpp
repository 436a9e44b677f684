#include <algorithm>
#include <cstring>

#include "coders/bit_string.h"
#include "coders/sparse.h"

namespace tw {
namespace {

constexpr size_t kSampled = 32;                   // of so many words about one is looked at
constexpr uint64_t kMaxSize = uint64_t{1} << 62;  // of a step: twice that is a number, and has a code of golomb()

// Words of the base by exponent, about, and the changed ones by how large their step is: 1, 2, 3, or more.
struct Counts {
  // Every other word is counted in the second half: the same number is rarely added to twice in a row.
  uint32_t words[2][256], steps[2][kSizeRanges][256];
};

template <class T>
void sample_exponents(const Layout& dtype, const uint8_t* base, size_t n, Counts* counts) {
  // An odd distance, so that no column of a matrix is favoured.
  const size_t distance = n < 256 * kSampled ? 1 : kSampled | 1;
  const ExponentOf exponent_of(dtype);
  const auto exponent = [=](size_t i) { return exponent_of(load<T>(base + i * sizeof(T))); };
  size_t i = 0;
  for (; i + distance < n; i += 2 * distance) {
    counts->words[0][exponent(i)] += static_cast<uint32_t>(distance);
    counts->words[1][exponent(i + distance)] += static_cast<uint32_t>(distance);
  }
  if (i < n) counts->words[0][exponent(i)] += static_cast<uint32_t>(distance);
}

void count_steps(const uint8_t* exponents, const uint64_t* steps, size_t count, Counts* counts) {
  const auto count_one = [=](size_t i, uint32_t of_size[kSizeRanges][256]) {
    const uint64_t size = steps[i] >> 1;
    ++of_size[(size < kFirstLargeStep ? size : kFirstLargeStep) - 1][exponents[i]];
  };
  size_t i = 0;
  for (; i + 1 < count; i += 2) count_one(i, counts->steps[0]), count_one(i + 1, counts->steps[1]);
  if (i < count) count_one(i, counts->steps[0]);
}

// The exponents at which classes may begin.
struct Cuts {
  uint8_t exponents[kMaxCuts];
  unsigned num_cuts = 0;
  CutSums sums;

  explicit Cuts(const Counts& counts) {
    uint32_t changed[256], any[256];
    for (unsigned e = 0; e < 256; ++e) {
      changed[e] = 0;
      for (const auto& half : counts.steps) {
        for (const auto& of_size : half) changed[e] |= of_size[e];
      }
      any[e] = changed[e] | counts.words[0][e] | counts.words[1][e];
    }
    unsigned occurring[256], num_occurring = 0, num_changed = 0;
    for (unsigned e = 0; e < 256; e += 2) {  // most do not
      if ((any[e] | any[e + 1]) == 0) continue;
      for (unsigned i = e; i < e + 2; ++i) num_changed += changed[i] != 0, occurring[num_occurring++] = i;
    }
    // The highest exponents have nearly all of the words; what lies below the cuts belongs to the lowest.
    uint32_t words = 0, steps[kSizeRanges] = {};
    const auto mark = [&] {
      sums.words[num_cuts] = words;
      for (unsigned s = 0; s < kSizeRanges; ++s) sums.steps[s][num_cuts] = steps[s];
    };
    mark();
    for (unsigned i = 0; i < num_occurring; ++i) {
      const unsigned e = occurring[i];
      if (changed[e] != 0 && num_changed-- <= kMaxCuts) {
        if (num_cuts > 0) mark();
        exponents[num_cuts++] = static_cast<uint8_t>(e);
      }
      words += counts.words[0][e] + counts.words[1][e];
      uint32_t at_least = 0;
      for (unsigned s = kSizeRanges; s-- > 0;) {
        at_least += counts.steps[0][s][e] + counts.steps[1][s][e];
        steps[s] += at_least;
      }
    }
    mark();
  }
};

// The class of each exponent.
void fill_classes(const Thresholds& thresholds, uint8_t classes[256]) {
  for (unsigned c = 0; c < thresholds.num_classes; ++c) {
    const unsigned first = c == 0 ? 0 : thresholds.thresholds[c - 1];
    std::memset(classes + first, static_cast<int>(c), 256 - first);
  }
}

// The changed words class by class: in scratch->ranks their ranks. Returns their steps.
uint64_t* sort_steps(const Layout& dtype, const uint8_t* base, size_t n, const SparsePlan& plan, LineFetcher* fetcher,
                     SparseEncodeScratch* scratch) {
  const unsigned num_classes = plan.thresholds.num_classes;
  if (num_classes == 1) {
    std::memcpy(scratch->ranks, scratch->places, plan.count * sizeof *scratch->ranks);
    return scratch->steps;
  }
  uint8_t classes[256];
  fill_classes(plan.thresholds, classes);
  uint32_t ends[kMaxClasses] = {};
  for (unsigned c = 1; c < num_classes; ++c) ends[c] = ends[c - 1] + plan.counts[c - 1][0];
  step_kernels.divide(dtype, base, n, classes_of(dtype, plan.thresholds), fetcher, scratch->divided);
  step_kernels.sort(num_classes, scratch->divided, classes, scratch->places, scratch->exponents, scratch->steps,
                    plan.count, fetcher, ends, scratch->ranks, scratch->sorted_steps);
  return scratch->sorted_steps;
}

// The gaps before numbers in ascending order, at least one. Writes Rice's k for them, and returns it.
unsigned write_k(BitWriter* writer, const uint32_t* __restrict numbers, size_t count, uint32_t* __restrict gaps) {
  gaps[0] = numbers[0];
  for (size_t i = 1; i < count; ++i) gaps[i] = numbers[i] - numbers[i - 1] - 1;
  RiceChoice choice(numbers[count - 1] + 1 - count, count);
  choice.add_all(gaps, count);
  writer->bits(choice.k(), kRiceBits);
  return choice.k();
}

void write_positions(BitWriter* writer, const uint32_t* ranks, const uint64_t* steps, size_t count,
                     LineFetcher* fetcher, uint32_t* gaps) {
  writer->golomb(count, kCountOrder);
  if (count == 0) return;
  const unsigned k = write_k(writer, ranks, count, gaps);
  BitWriter own = *writer;  // in registers
  size_t i = 0;
  for (; i + 1 < count; i += 2) {
    fetcher->step();
    own.two_codes(BitWriter::rice_and_bit(gaps[i], k, steps[i] & 1),
                  BitWriter::rice_and_bit(gaps[i + 1], k, steps[i + 1] & 1));
  }
  if (i < count) own.code(BitWriter::rice_and_bit(gaps[i], k, steps[i] & 1));
  *writer = own;
}

// set() of these numbers, or of all others.
void write_set(BitWriter* writer, bool inverted, const uint32_t* numbers, size_t count, uint32_t* gaps) {
  writer->bits(inverted, 1);
  writer->golomb(count, 0);
  if (count == 0) return;
  const unsigned k = write_k(writer, numbers, count, gaps);
  BitWriter own = *writer;
  for (size_t i = 0; i < count; ++i) own.rice(gaps[i], k);
  *writer = own;
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
// `left` has the steps of a class, of which those in the set before stay.
void write_sizes(BitWriter* writer, uint64_t* left, const uint32_t counts[kSizeRanges], SparseEncodeScratch* scratch) {
  uint32_t* const numbers = scratch->members;
  for (unsigned size = 2; size <= kFirstLargeStep; ++size) {
    const uint32_t count = counts[size - 2], larger = counts[size - 1];
    if (count == 0) return;
    const bool inverted = larger > count / 2;
    // No branches: no processor foresees sizes.
    size_t num_members = 0, num_left = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t step = left[i];
      const bool in = step >> 1 >= size;
      numbers[num_members] = i;
      num_members += in != inverted;
      left[num_left] = step;
      num_left += in;
    }
    write_set(writer, inverted, numbers, num_members, scratch->gaps);
  }
  const size_t count = counts[kFirstLargeStep - 1];
  if (count == 0) return;
  const unsigned g = choose_order(left, count);
  writer->bits(g, kGolombBits);
  for (size_t i = 0; i < count; ++i) writer->golomb((left[i] >> 1) - kFirstLargeStep, g);
}

}  // namespace

bool sparse_plan(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, const uint64_t* changed,
                 LineFetcher* fetcher, unsigned max_classes, SparsePlan* plan, SparseEncodeScratch* scratch) {
  Counts counts{};
  plan->count = step_kernels.list(changed, n, fetcher, scratch->places);
  const uint64_t largest =
      step_kernels.steps(dtype, words, base, scratch->places, plan->count, fetcher, scratch->exponents, scratch->steps);
  if (largest >= kMaxSize) return false;
  count_steps(scratch->exponents, scratch->steps, plan->count, &counts);
  with_words(dtype, [&](auto word, auto) { sample_exponents<decltype(word)>(dtype, base, n, &counts); });
  const Cuts cuts(counts);
  uint64_t cost = 0;
  plan->thresholds = choose_thresholds(
      cuts.exponents, cuts.num_cuts, max_classes,
      [&](unsigned last, uint64_t* costs) { class_cost_kernels.costs(cuts.sums, last, costs); }, &cost);
  plan->nbits = cost >> kCostFraction;
  unsigned first = 0;
  for (unsigned c = 0; c < plan->thresholds.num_classes; ++c) {
    unsigned last = cuts.num_cuts;
    if (c + 1 < plan->thresholds.num_classes) {
      for (last = first + 1; cuts.exponents[last] != plan->thresholds.thresholds[c];) ++last;
    }
    for (unsigned s = 0; s < kSizeRanges; ++s)
      plan->counts[c][s] = cuts.sums.steps[s][last] - cuts.sums.steps[s][first];
    first = last;
  }
  return true;
}

size_t sparse_encode(const Layout& dtype, const uint8_t* base, size_t n, const SparsePlan& plan, LineFetcher* fetcher,
                     uint8_t* dst, size_t capacity, SparseEncodeScratch* scratch) {
  uint64_t* steps = sort_steps(dtype, base, n, plan, fetcher, scratch);
  BitWriter writer(dst, capacity);
  size_t first = 0;
  for (unsigned c = 0; c < plan.thresholds.num_classes; first += plan.counts[c++][0]) {
    write_positions(&writer, scratch->ranks + first, steps + first, plan.counts[c][0], fetcher, scratch->gaps);
  }
  for (unsigned c = 0; c < plan.thresholds.num_classes; steps += plan.counts[c++][0]) {
    write_sizes(&writer, steps, plan.counts[c], scratch);
  }
  size_t nbytes = 0;
  return writer.finish(&nbytes) ? nbytes : 0;
}

}  // namespace tw
