#include "frame/encode_block.h"

#include <cstring>
#include <initializer_list>

#include "coders/entropy_table.h"
#include "frame/encode_parts.h"
#include "transforms/histogram.h"
#include "transforms/words.h"

namespace tw {
namespace {

size_t encode_constant(const Block& block) {
  const size_t width = block.dtype().word_nbytes;
  if (block.stored <= kBlockAlign || std::memcmp(block.words, block.words + width, (block.n - 1) * width) != 0)
    return 0;
  uint8_t descriptor[kMaxWordNbytes + kTagNbytes];
  std::memcpy(descriptor, block.words, width);
  descriptor[width] = Tag{kConstant, kVerbatim, 0}.byte();
  return finish(block, 0, descriptor, width + kTagNbytes);
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
  written.push(Tag{kPlain, plan.mode, 0}.byte(), 1);
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
  block.scratch->num_counted = block.n;
  return rests;
}

// The parameters of kind enec, and what they give.
struct EnecPlan {
  EnecParams params;
  size_t nbytes;
  uint32_t num_high;
};

// For the exponents in scratch and their histogram there.
bool plan_enec(const Block& block, EnecPlan* plan) {
  EncodeScratch& scratch = *block.scratch;
  return enec_choose(scratch.exponents, block.n, scratch.histogram, block.dtype().exponent_bits, 0, &plan->params,
                     &plan->nbytes, &plan->num_high, &scratch.enec);
}

size_t write_enec(const Block& block, const Rests& rests, const RestPlan& rest_plan, const EnecPlan& plan) {
  EncodeScratch& scratch = *block.scratch;
  const size_t descriptor = block.descriptor_nbytes(kEnec, rest_plan);
  if (rest_plan.streams_nbytes + plan.nbytes + descriptor > block.stored - kBlockAlign) return 0;
  Written written;
  if (!write_rests(block, rest_plan, rests, scratch.runs, &written)) return 0;
  const EnecParams& params = plan.params;
  enec_encode(scratch.exponents, block.n, params, block.dst + written.streams, &scratch.enec);
  written.push(params.b, 1);
  written.push(static_cast<uint8_t>(params.m << 4 | params.nb), 1);
  written.push(plan.num_high, 2);
  written.push(Tag{kEnec, rest_plan.mode, params.log2_group}.byte(), 1);
  return finish(block, written.streams + plan.nbytes, written.descriptor, written.descriptor_nbytes);
}

size_t encode_enec(const Block& block) {
  const Rests rests = split_and_count(block);
  EnecPlan plan;
  if (!plan_enec(block, &plan)) return 0;
  return write_enec(block, rests, plan_rests(rests, block.scratch->runs, false, true, &block.scratch->rest), plan);
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
  written.push(params.lo, 1);
  unsigned below = 0;
  for (unsigned k = 1; k < kMaxTiers; ++k) below |= static_cast<unsigned>(params.below[k]) << (4 * k - 4);
  written.push(below, 2);
  for (unsigned k = 1; k <= kMaxTiers; ++k) written.push(params.counts[k], 2);
  if (extended) written.push(kExtendedCascade, kExtendedNbytes);
  const unsigned variant = extended ? params.shape - kExtendedShapes : params.shape;
  written.push(Tag{kind, plan.mode, static_cast<uint8_t>(variant)}.byte(), 1);
  return finish(block, written.streams + nbytes, written.descriptor, written.descriptor_nbytes);
}

// What profile fast makes of a block with exponents.
struct FastPlan {
  Rests rests;
  RestPlan rest_plan;
  Kind kind;  // kCascade also for the extended one, kExtended for modal; kStored if none fits
  CascadeParams cascade;
  ModalPlan modal;
  EnecPlan enec;
  size_t nbytes;  // of streams and descriptor
};

// Kinds enec and plain are considered where the exponents take this part of a bit more than their entropy, some bits in
// all, and some for each zero, which is far from the other words. In small blocks everything is.
constexpr size_t kFarShare = 3, kFarBits = 512, kFarZero = 17, kSmallBlock = 8192;

void consider(const Block& block, FastPlan* plan, Kind kind, size_t nbytes) {
  if (nbytes < plan->nbytes && nbytes + kBlockAlign <= block.stored) plan->kind = kind, plan->nbytes = nbytes;
}

// What kind plain would take.
size_t plain_nbytes(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  const unsigned nbytes = block.dtype().word_nbytes;
  const Rests rests = {block.words, block.n, nbytes, 8 * nbytes};
  word_kernels.or_runs(nbytes, block.words, block.n, scratch.narrow_runs);
  const bool bytes = block.spec.profile == kProfileCompact;
  const RestPlan plan = plan_rests(rests, scratch.narrow_runs, bytes, false, &scratch.rest);
  return plan.streams_nbytes + block.descriptor_nbytes(kPlain, plan);
}

// Whether exponents are those of their neighbours or nearly, in a sample: then groups are narrow though all are not.
bool neighbours_alike(const uint8_t* exponents, size_t n, unsigned bits) {
  constexpr size_t kSamples = 256;
  size_t alike = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    const uint8_t* two = exponents + i * (n - 1) / kSamples;
    const int difference = two[0] - two[1];
    alike += difference * difference < 1 << (2 * bits - 6);  // an eighth of the range
  }
  return alike >= kSamples * 7 / 8;
}

// The smallest kind for words of which so many are zeros, found without writing any. Splits words, counts exponents.
FastPlan plan_fast(const Block& block, size_t zeros) {
  EncodeScratch& scratch = *block.scratch;
  FastPlan plan{};
  plan.kind = kStored;
  plan.nbytes = block.stored;
  plan.rests = split_and_count(block);
  plan.rest_plan = plan_rests(plan.rests, scratch.runs, false, true, &scratch.rest);
  const size_t rest_nbytes = plan.rest_plan.streams_nbytes;
  const unsigned bits = block.dtype().exponent_bits;
  if (cascade_choose(scratch.histogram, block.n, bits, &plan.cascade)) {
    const Kind kind = plan.cascade.shape >= kExtendedShapes ? kExtended : kCascade;
    consider(
        block, &plan, kCascade,
        rest_nbytes + cascade_nbytes(plan.cascade) + block.descriptor_nbytes(kind, plan.rest_plan, kExtendedCascade));
  }
  if (plan_modal(block, &plan.modal)) {
    consider(block, &plan, kExtended,
             rest_nbytes + plan.modal.nbytes + block.descriptor_nbytes(kExtended, plan.rest_plan, kModal));
  }
  // These searches take long, and they are worth it where tiers are far from the entropy.
  const bool is_float = block.dtype().split == Split::kFloat;
  const uint64_t near =
      entropy_bits(scratch.histogram, block.n) + block.n / kFarShare + kFarBits + (is_float ? kFarZero * zeros : 0);
  const bool far = 8 * uint64_t{plan.nbytes - rest_nbytes} > near ||
                   (plan.kind == kStored && neighbours_alike(scratch.exponents, block.n, bits));
  if (block.n > kSmallBlock && !far) return plan;
  if (plan_enec(block, &plan.enec)) {
    consider(block, &plan, kEnec, rest_nbytes + plan.enec.nbytes + block.descriptor_nbytes(kEnec, plan.rest_plan));
  }
  if (block.spec.profile == kProfileFast) consider(block, &plan, kPlain, plain_nbytes(block));
  return plan;
}

size_t write_fast(const Block& block, const FastPlan& plan) {
  switch (plan.kind) {
    case kCascade:
      return write_cascade(block, plan.rests, plan.rest_plan, plan.cascade);
    case kExtended:
      return write_modal(block, plan.rests, plan.rest_plan, plan.modal);
    case kEnec:
      return write_enec(block, plan.rests, plan.rest_plan, plan.enec);
    case kPlain:
      return encode_plain(block);
    default:
      return 0;
  }
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

// Bytes of the rests without their top k bits; slices are not considered.
size_t narrowed_rests_nbytes(const Block& block, const Rests& rests, unsigned k) {
  EncodeScratch& scratch = *block.scratch;
  with_split(block.dtype(), [&](auto format) {
    using F = decltype(format);
    for (size_t r = 0; r < ceil_div(rests.n, kRun); ++r) {
      scratch.narrow_runs[r] = F::without_top(static_cast<typename F::SignMantissa>(scratch.runs[r]), k);
    }
  });
  const Rests narrowed = {rests.numbers, rests.n, rests.nbytes, rests.width - k};
  const RestPlan plan = plan_rests(narrowed, scratch.narrow_runs, false, true, &scratch.rest);
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
    using SignMantissa = typename F::SignMantissa;
    for (size_t start = 0; start < block.n; start += kTile) {
      const bool whole = block.n - start >= kTile;
      if (whole && range.holds(scratch.symbols + start, kTile)) continue;
      for (size_t i = start; i < (whole ? start + kTile : block.n); ++i) {
        const uint8_t symbol = scratch.symbols[i];
        if (symbol != kEscapeSymbol && plan.histogram[symbol] != 0) continue;
        const unsigned top = F::top(load<SignMantissa>(scratch.sign_mantissas + i * sizeof(SignMantissa)), plan.k);
        *escapes++ = static_cast<uint16_t>(unsigned{scratch.exponents[i]} << plan.k | top);
        scratch.symbols[i] = kEscapeSymbol;
      }
    }
  });
}

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
  return finish(block, written.streams + nbytes + escapes_nbytes, written.descriptor, written.descriptor_nbytes);
}

// Kind entropy, or those of profile fast where they are smaller. How large these are is known beforehand.
size_t encode_exponents(const Block& block) {
  const FastPlan fast = plan_fast(block, 0);
  const size_t length = encode_entropy(block);
  if (fast.kind == kStored || (length != 0 && length <= ceil_to(fast.nbytes, kBlockAlign))) return length;
  return write_fast(block, plan_fast(block, 0));
}

size_t encode_compact(const Block& block) {
  const size_t length = encode_exponents(block);
  // Plain is for exponents that lie too far apart, and for integers, all of whose bits may tell something.
  const bool likely = block.dtype().split != Split::kFloat || block.n <= kSmallBlock || length > block.stored * 7 / 8;
  if (length != 0 && (!likely || length <= ceil_to(plain_nbytes(block), kBlockAlign))) return length;
  const size_t plain = encode_plain(block);  // which may take a little more than it was thought to
  return length == 0 || (plain != 0 && plain < length) ? plain : encode_exponents(block);
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
      return write_fast(block, plan_fast(block, 0));
    default:
      return encode_compact(block);
  }
}

// Of a block that has been coded with this length, or not at all (0), and another coding of it: the smaller one.
template <class Another>
size_t smaller(const Block& block, size_t length, Another&& another) {
  if (length == 0) return another();
  std::memcpy(block.scratch->other, block.dst, length);
  const size_t second = another();
  if (second != 0 && second < length) return second;
  std::memcpy(block.dst, block.scratch->other, length);
  return length;
}

// Whether kind zeros is the likely choice: a zero takes its rest and a digit of every tier otherwise.
bool zeros_pay(const Block& block, const ZerosPlan& zeros) {
  const size_t digits = block.dtype().split == Split::kFloat ? 15 : 2;  // small integers are near zero
  return 8 * zeros.nbytes < zeros.zeros * (block.dtype().mantissa_bits + 1u + digits);
}

// What the words take without kind zeros, next to nothing too much, if those that it keeps were coded last.
size_t dense_nbytes(const Block& block, const ZerosPlan& zeros) {
  EncodeScratch& scratch = *block.scratch;
  CascadeParams params;
  scratch.histogram[zero_exponent(block.dtype())] += static_cast<uint32_t>(zeros.zeros);
  if (!cascade_choose(scratch.histogram, block.n, block.dtype().exponent_bits, &params)) return block.stored;
  return cascade_nbytes(params) + static_cast<size_t>(uint64_t{scratch.rests_nbytes} * block.n / zeros.kept);
}

// Profile fast, where zeros do not seem to pay: that is known for sure once the words are split, before any is written.
size_t encode_few_zeros(const Block& block, const ZerosPlan& zeros) {
  EncodeScratch& scratch = *block.scratch;
  const FastPlan plan = plan_fast(block, zeros.zeros);
  scratch.histogram[zero_exponent(block.dtype())] -= static_cast<uint32_t>(zeros.zeros);
  CascadeParams without;
  if (cascade_choose(scratch.histogram, zeros.kept, block.dtype().exponent_bits, &without)) {
    const size_t rest_nbytes = static_cast<size_t>(uint64_t{plan.rest_plan.streams_nbytes} * zeros.kept / block.n);
    const size_t inner = cascade_nbytes(without) + rest_nbytes + block.descriptor_nbytes(kExtended, plan.rest_plan);
    if (inner + zeros.nbytes < plan.nbytes) {
      const size_t length = write_zeros(block, zeros);
      return length != 0 ? length : encode_words(block);
    }
  }
  return write_fast(block, plan);
}

size_t encode_with_zeros(const Block& block, const ZerosPlan& zeros) {
  EncodeScratch& scratch = *block.scratch;
  const bool tiers = block.spec.profile == kProfileFast && block.dtype().exponent_bits != 0;
  const bool small = block.n <= kSmallBlock;
  if (tiers && !small && !zeros_pay(block, zeros)) return encode_few_zeros(block, zeros);
  scratch.num_counted = scratch.rests_nbytes = 0;
  const size_t length = write_zeros(block, zeros);
  if (length != 0 && zeros.kept != 0 && !small) {
    // What the rests of the zeros would take exceeds what tells where they are.
    if (uint64_t{scratch.rests_nbytes} * zeros.zeros / zeros.kept > zeros.nbytes) return length;
    if (tiers && scratch.num_counted == zeros.kept && length <= dense_nbytes(block, zeros)) return length;
  }
  return smaller(block, length, [&] { return encode_words(block); });
}

size_t encode_inside(const Block& block) {
  const size_t length = encode_constant(block);
  if (length != 0) return length;
  ZerosPlan zeros;
  const bool sparse = block.spec.profile == kProfileFast || block.spec.profile == kProfileCompact;
  return sparse && plan_zeros(block, &zeros) ? encode_with_zeros(block, zeros) : encode_words(block);
}

// By the kinds that do not look at a base.
size_t encode_alone(const Block& block) {
  const size_t length = encode_inside(block);
  return length == 0 ? store_block(block) : length;
}

}  // namespace

size_t encode_kept(const Block& block) {
  size_t length = encode_constant(block);
  if (length == 0) length = encode_words(block);
  return length == 0 ? store_block(block) : length;
}

size_t encode_block(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch) {
  const Block block = {spec, words, n, dst, stored_nbytes(*spec.dtype, n), scratch};
  if (!spec.relative) return encode_alone(block);
  const RelativeBlock relative = encode_relative(spec, words, n, scratch->relative.block, &scratch->relative);
  const size_t alone = relative.settled ? SIZE_MAX : encode_alone(block);
  if (alone <= relative.length) return alone;
  std::memcpy(dst, scratch->relative.block, relative.length);
  return relative.length;
}

}  // namespace tw
