// The encoder of kind entropy.
#include <initializer_list>

#include "coders/entropy.h"
#include "common/split.h"
#include "frame/encode_kinds.h"
#include "transforms/histogram.h"
#include "transforms/words.h"

namespace tw {
namespace {

// How kind entropy codes x of E + k bits. The 255 values from `base` on have symbols if they earn a place in the table.
// All others are escaped.
struct EntropyPlan {
  unsigned k;
  uint16_t base;
  size_t num_escapes;
  size_t nbytes;  // estimate, the rests' fields included
  uint32_t histogram[256];
};

// A symbol takes at least one of the 4096 slots of the table from the others. Drops those too rare to be worth it.
// Returns whether there were any.
bool drop_rare(size_t n, uint32_t rare, EntropyPlan* plan) {
  const size_t escaped = plan->num_escapes;
  for (unsigned s = 0; s < kEscapeSymbol; ++s) {
    if (plan->histogram[s] > n / 4096 * rare / 32) continue;
    plan->num_escapes += plan->histogram[s];
    plan->histogram[s] = 0;
  }
  plan->histogram[kEscapeSymbol] = static_cast<uint32_t>(plan->num_escapes);
  return plan->num_escapes != escaped;
}

// The 255 values of x that hold most of the block.
EntropyPlan plan_window(const uint32_t* wide, size_t size, size_t n, unsigned k) {
  EntropyPlan plan{};
  plan.k = k;
  const size_t window = size < kEscapeSymbol ? size : kEscapeSymbol;
  size_t covered = 0, sum = 0;
  for (size_t i = 0; i < size; ++i) {
    sum += wide[i];
    if (i >= window) sum -= wide[i - window];
    if (sum > covered) covered = sum, plan.base = static_cast<uint16_t>(i < window ? 0 : i + 1 - window);
  }
  plan.num_escapes = n - covered;
  for (size_t i = 0; i < window; ++i) plan.histogram[i] = wide[plan.base + i];
  return plan;
}

// Bytes of the rests without their top k bits; slices are not considered.
size_t narrowed_rests_nbytes(const Block& block, const Rests& rests, unsigned k) {
  EncodeScratch& scratch = *block.scratch;
  with_split(block.dtype(), [&](auto format) {
    using F = decltype(format);
    for (size_t r = 0; r < ceil_div(rests.n, kRun); ++r) {
      scratch.narrow_runs[r] = format.without_top(static_cast<typename F::Rest>(scratch.runs[r]), k);
    }
  });
  const Rests narrowed = {rests.numbers, rests.n, rests.nbytes, rests.width - k};
  const RestPlan plan = plan_rests(narrowed, scratch.narrow_runs, false, true, &scratch.rest);
  return plan.streams_nbytes + plan.params_nbytes;
}

// Choose k, base and symbols. Counts the exponents on the way, to scratch.
EntropyPlan plan_entropy(const Block& block, const Rests& rests) {
  EncodeScratch& scratch = *block.scratch;
  const Layout& dtype = block.dtype();
  const unsigned max_k = max_extra_bits(dtype);
  uint32_t* wide = scratch.wide_histogram;
  wide_histogram(dtype, scratch.exponents, scratch.sign_mantissas, block.n, wide);
  EntropyPlan best{};
  best.nbytes = SIZE_MAX;
  for (unsigned k = max_k + 1; k-- > 0;) {
    const size_t size = size_t{1} << (dtype.exponent_bits + k);
    if (k != max_k) {
      for (size_t i = 0; i < size; ++i) wide[i] = wide[2 * i] + wide[2 * i + 1];
    }
    EntropyPlan plan = plan_window(wide, size, block.n, k);
    const size_t rests_nbytes = narrowed_rests_nbytes(block, rests, k);
    for (const uint32_t rare : {0u, 2u, 4u, 8u, 16u}) {
      if (!drop_rare(block.n, rare, &plan) && rare != 0) continue;
      plan.nbytes = entropy_estimate(plan.histogram, block.n) +
                    field_nbytes(plan.num_escapes, dtype.exponent_bits + k) + rests_nbytes;
      if (plan.num_escapes <= 65535 && plan.nbytes < best.nbytes) best = plan;
    }
  }
  std::memset(scratch.histogram, 0, sizeof scratch.histogram);
  std::memcpy(scratch.histogram, wide, sizeof *wide << dtype.exponent_bits);
  return best;
}

// The neighbouring symbols, all in the table, that hold most of the block.
struct SymbolRange {
  uint8_t first, size_less_one;

  // No branches: for the vectoriser.
  bool holds(const uint8_t* symbols, size_t n) const {
    uint8_t outside = 0;
    for (size_t i = 0; i < n; ++i) outside |= static_cast<uint8_t>(symbols[i] - first) > size_less_one;
    return outside == 0;
  }
};

SymbolRange most_symbols(const EntropyPlan& plan) {
  SymbolRange range{};
  uint64_t most = 0, sum = 0;
  unsigned first = 0;
  for (unsigned s = 0; s < kEscapeSymbol; ++s) {
    sum += plan.histogram[s];
    if (plan.histogram[s] == 0) sum = 0, first = s + 1;
    if (sum > most) most = sum, range = {static_cast<uint8_t>(first), static_cast<uint8_t>(s - first)};
  }
  return range;
}

// Turns symbols that are not in the table into the escape, and collects their x in order.
void collect_escapes(const Block& block, const EntropyPlan& plan) {
  constexpr size_t kTile = 32;  // mostly without any
  EncodeScratch& scratch = *block.scratch;
  const SymbolRange range = most_symbols(plan);
  uint16_t* escapes = scratch.escapes;
  with_split(block.dtype(), [&](auto format) {
    using F = decltype(format);
    using Rest = typename F::Rest;
    for (size_t start = 0; start < block.n; start += kTile) {
      const bool whole = block.n - start >= kTile;
      if (whole && range.holds(scratch.symbols + start, kTile)) continue;
      for (size_t i = start; i < (whole ? start + kTile : block.n); ++i) {
        const uint8_t symbol = scratch.symbols[i];
        if (symbol != kEscapeSymbol && plan.histogram[symbol] != 0) continue;
        const unsigned top = format.top(load<Rest>(scratch.sign_mantissas + i * sizeof(Rest)), plan.k);
        *escapes++ = static_cast<uint16_t>(unsigned{scratch.exponents[i]} << plan.k | top);
        scratch.symbols[i] = kEscapeSymbol;
      }
    }
  });
}

}  // namespace

size_t encode_entropy(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  Rests rests = split(block);
  const EntropyPlan plan = plan_entropy(block, rests);
  CascadeParams cascade;
  if (cascade_choose(scratch.histogram, block.n, block.dtype().exponent_bits, &cascade) &&
      cascade_nbytes(cascade) + narrowed_rests_nbytes(block, rests, 0) <= plan.nbytes) {
    return write_cascade(block, rests, cascade_rests(block, rests), cascade);
  }
  if (plan.nbytes == SIZE_MAX) return 0;
  const Layout& dtype = block.dtype();
  const WordKernels& kernels = word_kernels;
  kernels.join(dtype, scratch.exponents, scratch.sign_mantissas, block.n, plan.k, plan.base, scratch.symbols);
  if (plan.num_escapes != 0) collect_escapes(block, plan);
  kernels.narrow(dtype, scratch.sign_mantissas, block.n, plan.k);
  rests.width -= plan.k;
  kernels.or_runs(rests.nbytes, scratch.sign_mantissas, block.n, scratch.runs);
  const RestPlan rest_plan = plan_rests(rests, scratch.runs, true, true, &scratch.rest);
  Written written;
  if (!write_rests(block, rest_plan, rests, scratch.runs, &written)) return 0;
  written.push(plan.base, 2);
  written.push(plan.num_escapes, 2);
  written.push(Tag{kEntropy, rest_plan.mode, static_cast<uint8_t>(plan.k)}.byte(), 1);
  const unsigned escape_bits = dtype.exponent_bits + plan.k;
  const size_t escapes_nbytes = field_nbytes(plan.num_escapes, escape_bits);
  const size_t taken = written.streams + escapes_nbytes + written.descriptor_nbytes;
  if (taken >= block.stored) return 0;
  const size_t nbytes = entropy_encode(scratch.symbols, block.n, plan.histogram, block.dst + written.streams,
                                       block.stored - taken, &scratch.rest.entropy);
  if (nbytes == 0) return 0;
  kernels.pack_numbers(2, escape_bits, 0, reinterpret_cast<const uint8_t*>(scratch.escapes), plan.num_escapes,
                       block.dst + written.streams + nbytes);
  return finish(block.dst, block.stored, block.spec.align, written.streams + nbytes + escapes_nbytes,
                written.descriptor, written.descriptor_nbytes);
}

}  // namespace tw
