#include "frame/encode_block.h"

#include <algorithm>
#include <cstring>

#include "coders/entropy_table.h"
#include "frame/encode_kinds.h"
#include "transforms/histogram.h"
#include "transforms/words.h"

namespace tw {
namespace {

size_t encode_constant(const Block& block) {
  const size_t width = block.dtype().word_nbytes;
  if (block.stored <= block.spec.align || std::memcmp(block.words, block.words + width, (block.n - 1) * width) != 0)
    return 0;
  uint8_t descriptor[kMaxWordNbytes + kTagNbytes];
  std::memcpy(descriptor, block.words, width);
  descriptor[width] = Tag{kConstant, kVerbatim, 0}.byte();
  return finish(block.dst, block.stored, block.spec.align, 0, descriptor, width + kTagNbytes);
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
  return finish(block.dst, block.stored, block.spec.align, written.streams, written.descriptor,
                written.descriptor_nbytes);
}

// Count the exponents as well.
Rests split_and_count(const Block& block) {
  const Rests rests = split(block);
  histogram_kernels.bytes(block.scratch->exponents, block.n, block.scratch->histogram);
  return rests;
}

// The parameters of kind enec, and what they give.
struct EnecPlan {
  EnecParams params;
  size_t nbytes;
  uint32_t num_high;
};

// For the exponents in scratch and their histogram there. False if there are none whose streams take less than `limit`.
bool plan_enec(const Block& block, size_t limit, EnecPlan* plan) {
  EncodeScratch& scratch = *block.scratch;
  return enec_choose(scratch.exponents, block.n, scratch.histogram, block.dtype().exponent_bits, 0, limit,
                     &plan->params, &plan->nbytes, &plan->num_high, &scratch.enec);
}

size_t write_enec(const Block& block, const Rests& rests, const RestPlan& rest_plan, const EnecPlan& plan) {
  EncodeScratch& scratch = *block.scratch;
  const size_t descriptor = block.descriptor_nbytes(kEnec, rest_plan);
  if (rest_plan.streams_nbytes + plan.nbytes + descriptor > block.stored - block.spec.align) return 0;
  Written written;
  if (!write_rests(block, rest_plan, rests, scratch.runs, &written)) return 0;
  const EnecParams& params = plan.params;
  enec_encode(scratch.exponents, block.n, params, block.dst + written.streams, &scratch.enec);
  written.push(params.b, 1);
  written.push(static_cast<uint8_t>(params.m << 4 | params.nb), 1);
  written.push(plan.num_high, 2);
  written.push(Tag{kEnec, rest_plan.mode, params.log2_group}.byte(), 1);
  return finish(block.dst, block.stored, block.spec.align, written.streams + plan.nbytes, written.descriptor,
                written.descriptor_nbytes);
}

size_t encode_enec(const Block& block) {
  const Rests rests = split_and_count(block);
  EnecPlan plan;
  if (!plan_enec(block, SIZE_MAX, &plan)) return 0;
  return write_enec(block, rests, plan_rests(rests, block.scratch->runs, false, true, &block.scratch->rest), plan);
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
  bool plain_likely;
  // Whether the block has rests and a first tier already, which one that is, and that the words were not split.
  bool ahead;
  FirstTier written;
};

// Kind plain is considered where the exponents take this part of a bit more than their entropy, and some bits for each
// zero, which is far from the other words. In blocks of up to so many words all kinds are.
constexpr size_t kFarShare = 3, kFarZero = 17, kSmallBlock = 8192;
// Profile fast looks for kind enec where it saves this part of a block, in whole units of the alignment. For less,
// MiniLM as F8_E4M3 would lose a tenth of the speed, and gain 0.002 %.
constexpr size_t kWorthShare = 512;
// What samples are given on top of the limit. Upper halves of integers are few, so that they fit groups of 4 words: for
// each of so many words these have a bit more.
constexpr size_t kNarrowShare = 10, kSampleShare = 32, kIntegerShare = 4;
// About what a table takes, next to the entropy of the symbols.
constexpr uint64_t kTableBits = 1600;

void consider(const Block& block, FastPlan* plan, Kind kind, size_t nbytes) {
  if (nbytes < plan->nbytes && nbytes + block.spec.align <= block.stored) plan->kind = kind, plan->nbytes = nbytes;
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

// A sample of a block of more than kSmallBlock words: of each of kSamples equal shares a range that begins where groups
// of kind enec do. Ranges lie unevenly, so that they do not meet the same part of whatever repeats. The first few, and
// twice as many, are from all over the block.
constexpr size_t kSamples = 64, kFew = 8, kRange = 32;

size_t sample_at(size_t n, size_t i) {
  constexpr size_t kGolden = 158;  // of 256: multiples of it are as uneven as can be
  const size_t share = i % kFew * (kSamples / kFew) + i / kFew * 5 % (kSamples / kFew), groups = n / kRange;
  return kRange * (share * groups / kSamples + share * kGolden % 256 * (groups / kSamples) / 256);
}

// How far apart 16 exponents are, on the circle on which the highest exponent and 0 are neighbours.
unsigned extent(const uint8_t* exponents, unsigned half) {
  const auto seen = [&](unsigned turn) {
    unsigned low = 255, high = 0;
    for (size_t j = 0; j < kRange / 2; ++j) {
      const unsigned x = exponents[j] ^ turn;
      low = std::min(low, x), high = std::max(high, x);
    }
    return high - low;
  };
  const unsigned straight = seen(0);
  return straight < half ? straight : std::min(straight, seen(half));
}

// Whether groups of 16 exponents, in a sample, are so narrow that kind enec may take less than `limit` bits. The groups
// of common weights are not, which a few of them show. Each word takes as many bits as its group is wide; but a group
// wider than those of common weights may have narrow ones of 4 words in it, so it counts less.
bool groups_narrow(const Block& block, uint64_t limit) {
  const unsigned bits = block.dtype().exponent_bits, half = 1u << (bits - 1);
  uint64_t sum = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    if (i >= kFew && (i & (i - 1)) == 0 && sum * block.n >= i * limit) return false;
    const unsigned width = bit_length(extent(block.scratch->exponents + sample_at(block.n, i), half) | 1);
    sum += 2 * width > bits + 3 ? std::max(bits / 2, 3u) : width;
  }
  return sum * block.n < kSamples * limit;
}

// Whether kind enec may take less than `limit` bits for the exponents in scratch, of which a sample is enough. Samples
// differ from the whole: they are given some more, but not what random exponents take.
bool enec_may_pay(const Block& block, uint64_t limit) {
  EncodeScratch& scratch = *block.scratch;
  const unsigned bits = block.dtype().exponent_bits;
  const uint64_t more = block.dtype().split == Split::kFloat ? limit / kNarrowShare : block.n / kIntegerShare;
  if (!groups_narrow(block, limit + more)) return false;
  for (size_t i = 0; i < kSamples; ++i) {
    std::memcpy(scratch.symbols + i * kRange, scratch.exponents + sample_at(block.n, i), kRange);
  }
  constexpr size_t kWords = kSamples * kRange;
  uint32_t histogram[256];
  histogram_kernels.bytes(scratch.symbols, kWords, histogram);
  const uint64_t most = std::max(limit, std::min(limit + limit / kSampleShare, uint64_t{bits} * block.n));
  EnecPlan plan;
  return enec_choose(scratch.symbols, kWords, histogram, bits, 0, most * kWords / block.n / 8, &plan.params,
                     &plan.nbytes, &plan.num_high, &scratch.enec);
}

// The same where the words were not split.
bool enec_may_pay_unsplit(const Block& block, uint64_t limit) {
  EncodeScratch& scratch = *block.scratch;
  const Layout& dtype = block.dtype();
  for (size_t i = 0; i < kSamples; ++i) {
    const size_t at = sample_at(block.n, i);
    word_kernels.split(dtype, block.words + at * dtype.word_nbytes, kRange, scratch.exponents + at,
                       scratch.sign_mantissas + at * dtype.rest_nbytes(), scratch.narrow_runs);
  }
  return enec_may_pay(block, limit);
}

// The smallest kind for words of which so many are zeros, found without writing any. Splits words, counts exponents.
FastPlan plan_fast(const Block& block, size_t zeros) {
  EncodeScratch& scratch = *block.scratch;
  FastPlan plan{};
  plan.kind = kStored;
  plan.nbytes = block.stored;
  plan.ahead = block.spec.profile == kProfileFast && write_ahead(block);
  plan.written = scratch.first_tier;
  plan.rests = plan.ahead ? rests_of(block) : split_and_count(block);
  plan.rest_plan = plan_rests(plan.rests, scratch.runs, false, true, &scratch.rest);
  const size_t rest_nbytes = plan.rest_plan.streams_nbytes;
  const unsigned bits = block.dtype().exponent_bits;
  if (cascade_choose(scratch.histogram, block.n, bits, &plan.cascade)) {
    const Kind kind = plan.cascade.shape >= kExtendedShapes ? kExtended : kCascade;
    consider(
        block, &plan, kCascade,
        rest_nbytes + cascade_nbytes(plan.cascade) + block.descriptor_nbytes(kind, plan.rest_plan, kExtendedCascade));
  }
  // Where more exponents than kind modal may have are outside of the first tier, more than these are not the mode.
  const bool spread = plan.kind == kCascade && plan.cascade.counts[1] * kOthersShare > block.n;
  if (!spread && plan_modal(block, &plan.modal)) {
    consider(block, &plan, kExtended,
             rest_nbytes + plan.modal.nbytes + block.descriptor_nbytes(kExtended, plan.rest_plan, kModal));
  }
  const bool small = block.n <= kSmallBlock, fast = block.spec.profile == kProfileFast;
  const uint64_t entropy = entropy_bits(scratch.histogram, block.n), taken = 8 * uint64_t{plan.nbytes - rest_nbytes};
  const size_t saved = plan.nbytes / kWorthShare / block.spec.align * block.spec.align;
  const uint64_t worthwhile = taken - std::min(taken, 8 * uint64_t{saved});
  if (small || enec_may_pay(block, fast ? worthwhile : std::min(taken, entropy + kTableBits))) {
    const size_t beside = rest_nbytes + block.descriptor_nbytes(kEnec, plan.rest_plan);
    if (beside < plan.nbytes && plan_enec(block, plan.nbytes - beside, &plan.enec)) {
      consider(block, &plan, kEnec, beside + plan.enec.nbytes);
    }
  }
  // Words without zeros to trim have none in their rests.
  const uint64_t near = entropy + block.n / kFarShare + (block.dtype().split == Split::kFloat ? kFarZero * zeros : 0);
  plan.plain_likely = small || (plan.rest_plan.mode == kTrimmed && taken > near);
  if (fast && plan.plain_likely) consider(block, &plan, kPlain, plain_nbytes(block));
  return plan;
}

size_t write_fast(const Block& block, const FastPlan& plan) {
  block.scratch->fast_kind = plan.kind;
  FirstTier& next = block.scratch->first_tier;
  next = plan.kind == kCascade ? first_tier_of(plan.rest_plan, plan.cascade) : FirstTier{};
  const bool ahead = plan.ahead && plan.written == next;
  if (plan.ahead && !ahead) split(block);
  switch (plan.kind) {
    case kCascade:
      return write_cascade(block, plan.rests, plan.rest_plan, plan.cascade, ahead);
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

// Kind entropy, or those of profile fast where they are smaller. How large these are is known beforehand.
size_t encode_exponents(const Block& block, bool* plain_likely) {
  const FastPlan fast = plan_fast(block, 0);
  const size_t length = encode_entropy(block);
  *plain_likely = length == 0 || fast.plain_likely;
  if (fast.kind == kStored || (length != 0 && length <= ceil_to(fast.nbytes, block.spec.align))) return length;
  return write_fast(block, plan_fast(block, 0));
}

size_t encode_compact(const Block& block) {
  bool likely = false;
  const size_t length = encode_exponents(block, &likely);
  // Plain is for exponents that lie too far apart, and for integers, all of whose bits may tell something.
  likely = likely || block.dtype().split != Split::kFloat || length > block.stored * 7 / 8;
  if (length != 0 && (!likely || length <= ceil_to(plain_nbytes(block), block.spec.align))) return length;
  const size_t plain = encode_plain(block);  // which may take a little more than it was thought to
  return length == 0 || (plain != 0 && plain < length) ? plain : encode_exponents(block, &likely);
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

// The smaller one of two codings: the block has been coded with this length, or not at all (0), and `another`.
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
  return 8 * zeros.nbytes < zeros.zeros * (block.dtype().rest_bits + digits);
}

// What the words take without kind zeros, next to nothing too much, if those that it keeps were coded last.
size_t unmasked_nbytes(const Block& block, const ZerosPlan& zeros) {
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
      return length != 0 && length <= ceil_to(plan.nbytes, block.spec.align) ? length : encode_words(block);
    }
  }
  return write_fast(block, plan);
}

// Zeros in runs that also have other words: what the rests of a run without any take can be trimmed.
size_t scattered_zeros(const Block& block, const ZerosPlan& zeros) {
  size_t empty = 0;
  for (size_t run = 0; run < block.n / kRun; ++run) {
    const uint64_t* kept = block.scratch->kept + run * kRun / 64;
    empty += (kept[0] | kept[1] | kept[2] | kept[3]) == 0;
  }
  return zeros.zeros - empty * kRun;
}

size_t encode_with_zeros(const Block& block, const ZerosPlan& zeros) {
  EncodeScratch& scratch = *block.scratch;
  const Layout& dtype = block.dtype();
  const bool fast = block.spec.profile == kProfileFast, small = block.n <= kSmallBlock;
  const bool tiers = fast && dtype.exponent_bits != 0;
  if (tiers && !small && !zeros_pay(block, zeros)) return encode_few_zeros(block, zeros);
  scratch.rests_nbytes = 0;
  scratch.fast_kind = kStored;
  const size_t length = write_zeros(block, zeros);
  if (length == 0 || zeros.kept == 0 || small) return smaller(block, length, [&] { return encode_words(block); });
  const bool wide = dtype.word_nbytes > 1;  // so that tiers are next to nothing from what other kinds take
  if (scratch.rest_mode == kVerbatim && dtype.exponent_bits != 0) {
    // What the rests of the zeros would take exceeds what tells where they are.
    const uint64_t saved = uint64_t{scratch.rests_nbytes} * scattered_zeros(block, zeros) / zeros.kept;
    const uint64_t rests = (zeros.kept + scattered_zeros(block, zeros)) * dtype.rest_bits / 8;
    if (tiers && length > rests && enec_may_pay_unsplit(block, 8 * (length - rests))) {
      return smaller(block, length, [&] { return encode_words(block); });
    }
    if (saved > zeros.nbytes + (wide ? 0 : block.n / 8)) return length;
    if (tiers && scratch.fast_kind == kCascade && length <= unmasked_nbytes(block, zeros)) return length;
  }
  return smaller(block, length, [&] { return encode_words(block); });
}

// Whether the words may be split while they arrive, which saves a pass over them: a look at where they come from shows
// that they are neither constant nor of kind zeros. If others write there meanwhile, a larger kind may be the result.
bool may_arrive_late(const Block& block, bool has_zeros) {
  const Arrival& arrival = block.scratch->arrival;
  const Layout& dtype = block.dtype();
  if (arrival.arrived == arrival.nbytes || dtype.exponent_bits == 0 || block.stored <= block.spec.align) return false;
  const bool differ = std::memcmp(arrival.src, arrival.src + dtype.word_nbytes, kBlockAlign - dtype.word_nbytes) != 0;
  return differ && !(has_zeros && sample_has_zero(dtype, arrival.src, block.n));
}

size_t encode_inside(const Block& block) {
  const bool has_zeros = block.spec.profile == kProfileFast || block.spec.profile == kProfileCompact;
  if (may_arrive_late(block, has_zeros)) return encode_words(block);
  block.scratch->arrival.all();
  const size_t length = encode_constant(block);
  if (length != 0) return length;
  ZerosPlan zeros;
  return has_zeros && plan_zeros(block, &zeros) ? encode_with_zeros(block, zeros) : encode_words(block);
}

// By the kinds that do not look at a base.
size_t encode_alone(const Block& block) {
  const bool scaled = may_be_scaled(block);
  size_t length = encode_inside(block);
  if (scaled) {
    std::memcpy(block.scratch->part, block.dst, length);
    const size_t second = encode_scaled(block);
    if (second != 0 && (length == 0 || second < length)) return second;
    std::memcpy(block.dst, block.scratch->part, length);
  }
  return length == 0 ? store_block(block) : length;
}

}  // namespace

size_t plan_or_encode(const Block& block) {
  ZerosPlan zeros;
  const bool planned = !block.spec.relative && block.dtype().exponent_bits != 0;
  if (!planned || plan_zeros(block, &zeros)) {
    return encode_whole(block.spec, block.words, block.n, block.dst, block.scratch);
  }
  const size_t length = encode_constant(block);
  if (length != 0) return length;
  block.scratch->first_tier = {};  // so that nothing is written ahead
  const FastPlan plan = plan_fast(block, 0);
  return std::min(ceil_to(plan.nbytes, block.spec.align), block.stored);
}

size_t encode_kept(const Block& block) {
  size_t length = encode_constant(block);
  if (length == 0) length = encode_words(block);
  return length == 0 ? store_block(block) : length;
}

size_t encode_whole(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst, EncodeScratch* scratch) {
  const Block block = {spec, words, n, dst, stored_nbytes(spec, n), scratch};
  if (!spec.relative) return encode_alone(block);
  scratch->arrival.all();
  const RelativeBlock relative =
      encode_relative(spec, words, n, scratch->upcoming, scratch->relative.block, &scratch->relative);
  const size_t alone = relative.settled ? SIZE_MAX : encode_alone(block);
  if (alone <= relative.length) return alone;
  std::memcpy(dst, scratch->relative.block, relative.length);
  return relative.length;
}

}  // namespace tw
