#include "frame/encode_block.h"

#include <cstring>
#include <initializer_list>

#include "transforms/histogram.h"
#include "transforms/words.h"

namespace tw {
namespace {

// The encoder tries zero groups if more than one word in kZeroShare is zero.
constexpr size_t kZeroShare = 16;

struct Block {
  const BlockSpec& spec;
  const uint8_t* words;
  size_t n;
  uint8_t* dst;
  size_t stored;
  EncodeScratch* scratch;

  const Dtype& dtype() const { return *spec.dtype; }
  // Of a block that has no rest.
  size_t descriptor_nbytes(Kind kind, uint8_t extended = 0) const {
    return kind_params_nbytes(kind, extended, dtype()) + kTagNbytes;
  }
  size_t descriptor_nbytes(Kind kind, const RestPlan& plan, uint8_t extended = 0) const {
    return plan.params_nbytes + descriptor_nbytes(kind, extended);
  }
};

// Put the descriptor at the end of the block, zeros before it. Returns the block's length, or 0 if it gains nothing.
size_t finish(const Block& block, size_t streams, const uint8_t* descriptor, size_t descriptor_nbytes) {
  const size_t length = ceil_to(streams + descriptor_nbytes, kBlockAlign);
  if (length >= block.stored) return 0;
  std::memset(block.dst + streams, 0, length - streams - descriptor_nbytes);
  std::memcpy(block.dst + length - descriptor_nbytes, descriptor, descriptor_nbytes);
  return length;
}

size_t store_block(const Block& block) {
  const size_t nbytes = block.n * block.dtype().word_nbytes;
  std::memcpy(block.dst, block.words, nbytes);
  std::memset(block.dst + nbytes, 0, block.stored - nbytes);
  return block.stored;
}

size_t encode_constant(const Block& block) {
  const size_t width = block.dtype().word_nbytes;
  if (block.stored <= kBlockAlign || std::memcmp(block.words, block.words + width, (block.n - 1) * width) != 0)
    return 0;
  uint8_t descriptor[kMaxWordNbytes + kTagNbytes];
  std::memcpy(descriptor, block.words, width);
  descriptor[width] = Tag{kConstant, kVerbatim, 0}.byte();
  return finish(block, 0, descriptor, width + kTagNbytes);
}

struct Written {
  size_t streams;
  uint8_t descriptor[32];
  size_t descriptor_nbytes;
};

// Rest streams to the start of the block, their parameters to the start of the descriptor. False if they do not fit.
bool write_rests(const Block& block, const RestPlan& plan, const Rests& rests, const uint64_t* runs, Written* written) {
  written->descriptor_nbytes = plan.params_nbytes;
  return encode_rests(plan, rests, runs, block.dst, block.stored, &written->streams, written->descriptor,
                      &block.scratch->rest);
}

void push(Written* written, uint64_t value, size_t nbytes) {
  std::memcpy(written->descriptor + written->descriptor_nbytes, &value, nbytes);
  written->descriptor_nbytes += nbytes;
}

size_t encode_plain(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  const unsigned nbytes = block.dtype().word_nbytes;
  const Rests rests = {block.words, block.n, nbytes, 8 * nbytes};
  word_kernels.or_runs(nbytes, block.words, block.n, scratch.runs);
  const RestPlan plan = plan_rests(rests, scratch.runs, block.spec.profile == kProfileCompact, false, &scratch.rest);
  if (plan.streams_nbytes + block.descriptor_nbytes(kPlain, plan) >= block.stored) return 0;
  Written written;
  if (!write_rests(block, plan, rests, scratch.runs, &written)) return 0;
  push(&written, Tag{kPlain, plan.mode, 0}.byte(), 1);
  return finish(block, written.streams, written.descriptor, written.descriptor_nbytes);
}

// Split words into exponents and sign_mantissas, and OR the runs of the latter, all in scratch. Returns the rests.
Rests split(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  word_kernels.split(block.dtype(), block.words, block.n, scratch.exponents, scratch.sign_mantissas, scratch.runs);
  return {scratch.sign_mantissas, block.n, block.dtype().sign_mantissa_nbytes, block.dtype().mantissa_bits + 1u};
}

// Count the exponents as well.
Rests split_and_count(const Block& block) {
  const Rests rests = split(block);
  histogram_kernels.bytes(block.scratch->exponents, block.n, block.scratch->histogram);
  return rests;
}

size_t encode_enec(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  const Rests rests = split_and_count(block);
  EnecParams params;
  size_t nbytes = 0;
  uint32_t num_high = 0;
  if (!enec_choose(scratch.exponents, block.n, scratch.histogram, block.dtype().exponent_bits, 0, &params, &nbytes,
                   &num_high, &scratch.enec)) {
    return 0;
  }
  const RestPlan plan = plan_rests(rests, scratch.runs, false, true, &scratch.rest);
  if (plan.streams_nbytes + nbytes + block.descriptor_nbytes(kEnec, plan) > block.stored - kBlockAlign) return 0;
  Written written;
  if (!write_rests(block, plan, rests, scratch.runs, &written)) return 0;
  enec_encode(scratch.exponents, block.n, params, block.dst + written.streams, &scratch.enec);
  push(&written, params.b, 1);
  push(&written, static_cast<uint8_t>(params.m << 4 | params.nb), 1);
  push(&written, num_high, 2);
  push(&written, Tag{kEnec, plan.mode, params.log2_group}.byte(), 1);
  return finish(block, written.streams + nbytes, written.descriptor, written.descriptor_nbytes);
}

// The smallest coding of the rests that the profile has.
RestPlan cascade_rests(const Block& block, const Rests& rests) {
  const bool allow_bytes = block.spec.profile == kProfileCompact;
  return plan_rests(rests, block.scratch->runs, allow_bytes, true, &block.scratch->rest);
}

// Write the block with the tiers that were chosen for the exponents in scratch.
size_t write_cascade(const Block& block, const Rests& rests, const RestPlan& plan, const CascadeParams& params) {
  EncodeScratch& scratch = *block.scratch;
  const bool extended = params.shape >= kExtendedShapes;
  const Kind kind = extended ? kExtended : kCascade;
  const size_t nbytes = cascade_nbytes(params), descriptor = block.descriptor_nbytes(kind, plan, kExtendedCascade);
  if (plan.streams_nbytes + nbytes + descriptor > block.stored - kBlockAlign) return 0;
  Written written;
  if (!write_rests(block, plan, rests, scratch.runs, &written)) return 0;
  cascade_encode(scratch.exponents, params, block.dst + written.streams, &scratch.cascade);
  push(&written, params.lo, 1);
  unsigned below = 0;
  for (unsigned k = 1; k < kMaxTiers; ++k) below |= static_cast<unsigned>(params.below[k]) << (4 * k - 4);
  push(&written, below, 2);
  for (unsigned k = 1; k <= kMaxTiers; ++k) push(&written, params.counts[k], 2);
  if (extended) push(&written, kExtendedCascade, kExtendedNbytes);
  const unsigned variant = extended ? params.shape - kExtendedShapes : params.shape;
  push(&written, Tag{kind, plan.mode, static_cast<uint8_t>(variant)}.byte(), 1);
  return finish(block, written.streams + nbytes, written.descriptor, written.descriptor_nbytes);
}

size_t encode_cascade(const Block& block) {
  const Rests rests = split_and_count(block);
  CascadeParams params;
  const bool chosen = cascade_choose(block.scratch->histogram, block.n, block.dtype().exponent_bits, &params);
  return chosen ? write_cascade(block, rests, cascade_rests(block, rests), params) : 0;
}

// One shape and verbatim rests, so that a single kernel decodes the whole tensor.
size_t encode_resident(const Block& block) {
  const Rests rests = split_and_count(block);
  const unsigned shape = kExtendedShapes + resident_variant(block.dtype());
  CascadeParams params;
  if (!cascade_fit(block.scratch->histogram, block.n, block.dtype().exponent_bits, shape, &params)) return 0;
  return write_cascade(block, rests, plan_verbatim(rests), params);
}

// How kind entropy codes x of E + k bits. Of the 255 values from `base` on, those that earn a place in the table have
// symbols. All others are escaped.
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

// Bytes of the rests without the top k mantissa bits; slices are not considered.
size_t narrowed_rests_nbytes(const Rests& rests, unsigned k, EncodeScratch* scratch) {
  const unsigned low = rests.width - 1 - k;  // bits below the sign
  for (size_t r = 0; r < ceil_div(rests.n, kRun); ++r) {
    const uint64_t run = scratch->runs[r];
    scratch->narrow_runs[r] = run >> (rests.width - 1) << low | (run & ((uint64_t{1} << low) - 1));
  }
  const Rests narrowed = {rests.numbers, rests.n, rests.nbytes, rests.width - k};
  const RestPlan plan = plan_rests(narrowed, scratch->narrow_runs, false, true, &scratch->rest);
  return plan.streams_nbytes + plan.params_nbytes;
}

// Choose k, base and symbols. Counts the exponents on the way, to scratch.
EntropyPlan plan_entropy(const Block& block, const Rests& rests) {
  EncodeScratch& scratch = *block.scratch;
  const Dtype& dtype = block.dtype();
  const unsigned max_k = dtype.mantissa_bits < kMaxExtraBits ? dtype.mantissa_bits : kMaxExtraBits;
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
    const size_t rests_nbytes = narrowed_rests_nbytes(rests, k, &scratch);
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
  const Dtype& dtype = block.dtype();
  const unsigned nbytes = dtype.sign_mantissa_nbytes, low = dtype.mantissa_bits - plan.k;
  const SymbolRange range = most_symbols(plan);
  uint16_t* escapes = scratch.escapes;
  for (size_t start = 0; start < block.n; start += kTile) {
    const bool whole = block.n - start >= kTile;
    if (whole && range.holds(scratch.symbols + start, kTile)) continue;
    for (size_t i = start; i < (whole ? start + kTile : block.n); ++i) {
      const uint8_t symbol = scratch.symbols[i];
      if (symbol != kEscapeSymbol && plan.histogram[symbol] != 0) continue;
      uint32_t sign_mantissa = 0;
      std::memcpy(&sign_mantissa, scratch.sign_mantissas + i * nbytes, nbytes);
      const uint32_t top = sign_mantissa >> low & ((1u << plan.k) - 1);
      *escapes++ = static_cast<uint16_t>(uint32_t{scratch.exponents[i]} << plan.k | top);
      scratch.symbols[i] = kEscapeSymbol;
    }
  }
}

size_t encode_entropy(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  Rests rests = split(block);
  const EntropyPlan plan = plan_entropy(block, rests);
  CascadeParams cascade;
  if (cascade_choose(scratch.histogram, block.n, block.dtype().exponent_bits, &cascade) &&
      cascade_nbytes(cascade) + narrowed_rests_nbytes(rests, 0, &scratch) <= plan.nbytes) {
    return write_cascade(block, rests, cascade_rests(block, rests), cascade);
  }
  if (plan.nbytes == SIZE_MAX) return 0;
  const Dtype& dtype = block.dtype();
  const WordKernels& kernels = word_kernels;
  kernels.join(dtype, scratch.exponents, scratch.sign_mantissas, block.n, plan.k, plan.base, scratch.symbols);
  if (plan.num_escapes != 0) collect_escapes(block, plan);
  kernels.narrow(dtype, scratch.sign_mantissas, block.n, plan.k);
  rests.width -= plan.k;
  kernels.or_runs(rests.nbytes, scratch.sign_mantissas, block.n, scratch.runs);
  const RestPlan rest_plan = plan_rests(rests, scratch.runs, true, true, &scratch.rest);
  Written written;
  if (!write_rests(block, rest_plan, rests, scratch.runs, &written)) return 0;
  push(&written, plan.base, 2);
  push(&written, plan.num_escapes, 2);
  push(&written, Tag{kEntropy, rest_plan.mode, static_cast<uint8_t>(plan.k)}.byte(), 1);
  const unsigned escape_bits = dtype.exponent_bits + plan.k;
  const size_t escapes_nbytes = field_nbytes(plan.num_escapes, escape_bits);
  const size_t taken = written.streams + escapes_nbytes + written.descriptor_nbytes;
  if (taken >= block.stored) return 0;
  const size_t nbytes = entropy_encode(scratch.symbols, block.n, plan.histogram, block.dst + written.streams,
                                       block.stored - taken, &scratch.rest.entropy);
  if (nbytes == 0) return 0;
  kernels.pack_numbers(2, escape_bits, 0, reinterpret_cast<const uint8_t*>(scratch.escapes), plan.num_escapes,
                       block.dst + written.streams + nbytes);
  return finish(block, written.streams + nbytes + escapes_nbytes, written.descriptor, written.descriptor_nbytes);
}

size_t encode_words(const Block& block) {
  const uint8_t profile = block.spec.profile;
  if (block.dtype().exponent_bits == 0) return profile == kProfileResident ? 0 : encode_plain(block);
  switch (profile) {
    case kProfileResident:
      return encode_resident(block);
    case kProfileEnec:
      return encode_enec(block);
    case kProfileFast:
      return encode_cascade(block);
    default:
      break;
  }
  const size_t length = encode_entropy(block);
  return length != 0 ? length : encode_plain(block);  // where too many exponents lie too far apart
}

// Choose the group size whose mask and remaining words take the fewest bits by an estimate. Flags become one byte per
// group.
unsigned choose_groups(const Block& block, size_t* kept_words) {
  EncodeScratch& scratch = *block.scratch;
  const unsigned word_bits = 8u * block.dtype().word_nbytes;
  const unsigned coded_bits = block.dtype().exponent_bits == 0 ? word_bits : word_bits * 3 / 4;
  uint64_t best_bits = UINT64_MAX;
  unsigned best = 0;
  size_t groups = block.n;
  for (unsigned log2_group = 0; log2_group <= 7; ++log2_group) {
    if (log2_group != 0) {
      const size_t half = groups / 2;
      for (size_t g = 0; g < half; ++g) scratch.flags[g] = scratch.flags[2 * g] | scratch.flags[2 * g + 1];
      if (groups % 2 != 0) scratch.flags[half] = scratch.flags[groups - 1];
      groups = half + groups % 2;
    }
    size_t kept = 0;
    for (size_t g = 0; g < groups; ++g) kept += scratch.flags[g];
    kept <<= log2_group;
    if (scratch.flags[groups - 1] != 0) kept -= (groups << log2_group) - block.n;
    const uint64_t bits = groups + uint64_t{kept} * coded_bits;
    if (bits < best_bits) best_bits = bits, best = log2_group, *kept_words = kept;
  }
  return best;
}

// Replaces the block if zero groups beat the `length` that it has without them (0 if it is not coded yet).
size_t encode_zero_groups(const Block& block, size_t length) {
  EncodeScratch& scratch = *block.scratch;
  // A zero has exponent 0: mostly the histogram says at once that there are too few.
  if (block.dtype().exponent_bits != 0 && scratch.histogram[0] <= block.n / kZeroShare) return length;
  const size_t width = block.dtype().word_nbytes;
  const size_t zeros = block.n - nonzero_flags(width, block.words, block.n, scratch.flags);
  if (zeros <= block.n / kZeroShare || zeros == block.n) return length;  // all zeros: too small to be worth coding
  size_t kept = 0;
  const unsigned log2_group = choose_groups(block, &kept);
  const size_t group = size_t{1} << log2_group, groups = ceil_div(block.n, group);
  nonzero_flags(width, block.words, block.n, scratch.flags);
  uint8_t* out = scratch.words;
  for (size_t g = 0; g < groups; ++g) {
    const size_t first = g * group, count = block.n - first < group ? block.n - first : group;
    uint8_t any = 0;
    for (size_t i = 0; i < count; ++i) any |= scratch.flags[first + i];
    scratch.flags[g] = any;
    if (any == 0) continue;
    std::memcpy(out, block.words + first * width, count * width);
    out += count * width;
  }
  const size_t mask_nbytes = field_nbytes(groups, 1);
  const size_t inner_stored = stored_nbytes(block.dtype(), kept);
  const BlockSpec inner_spec = block.spec.inner();
  const Block inner = {inner_spec, scratch.words, kept, scratch.inner, inner_stored, &scratch};
  size_t inner_nbytes = encode_constant(inner);
  if (inner_nbytes == 0) inner_nbytes = encode_words(inner);
  if (inner_nbytes == 0) inner_nbytes = store_block(inner);
  const size_t streams = inner_nbytes + mask_nbytes;
  const size_t limit = length == 0 ? block.stored : length;
  if (ceil_to(streams + block.descriptor_nbytes(kZeroGroups), kBlockAlign) >= limit) return length;
  std::memcpy(block.dst, scratch.inner, inner_nbytes);
  plane_kernels.pack_field(1, scratch.flags, groups, block.dst + inner_nbytes);
  Written written{};
  push(&written, kept, 4);
  push(&written, inner_nbytes / kBlockAlign, 2);
  push(&written, Tag{kZeroGroups, kVerbatim, static_cast<uint8_t>(log2_group)}.byte(), 1);
  return finish(block, streams, written.descriptor, written.descriptor_nbytes);
}

}  // namespace

size_t encode_block(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch) {
  if (spec.relative && std::memcmp(words, spec.base, n * spec.dtype->word_nbytes) == 0) return 0;  // same
  const Block block = {spec, words, n, dst, stored_nbytes(*spec.dtype, n), scratch};
  const bool zero_groups = spec.profile == kProfileFast || spec.profile == kProfileCompact;
  size_t length = encode_constant(block);
  if (length == 0) {
    length = encode_words(block);
    if (zero_groups) length = encode_zero_groups(block, length);
  }
  return length == 0 ? store_block(block) : length;
}

}  // namespace tw
