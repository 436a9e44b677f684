#include "coders/cascade.h"

#include <algorithm>
#include <cstring>

#include "coders/one_bit.h"
#include "coders/two_bits.h"
#include "common/cpu.h"
#include "transforms/histogram.h"

namespace tw {

extern const CascadeKernels kCascadeScalar, kCascadeAvx2, kCascadeAvx512, kCascadeNeon;

const uint8_t kTierWidths[kNumTierShapes][kMaxTiers] = {
    {2, 2, 3}, {2, 2, 2, 3}, {2, 1, 2, 2, 2}, {2, 1, 1, 2, 3}, {1, 2, 3},       {1, 1, 1, 3},   {3, 3}, {1},
    {4},       {3},          {4, 3, 3, 3},    {3, 2, 2, 2},    {1, 1, 1, 2, 2}, {2, 1, 1, 1, 2}};

namespace {

// Up to so many words the padding of streams and the longer descriptor of the extended kind count as well.
constexpr size_t kExactWords = 4096;
constexpr uint32_t kMaxCount = 65535;  // what a tier's parameter holds

unsigned num_tiers(unsigned shape) {
  unsigned tiers = 0;
  while (tiers < kMaxTiers && kTierWidths[shape][tiers] != 0) ++tiers;
  return tiers;
}

bool none_of_eight(const uint32_t* counts) {
  uint32_t any = 0;
  for (unsigned i = 0; i < 8; ++i) any |= counts[i];
  return any == 0;
}

// How many exponents the tiers name.
int num_names(unsigned shape) {
  int names = 0;
  for (unsigned tier = 0; tier < num_tiers(shape); ++tier) names += (1 << kTierWidths[shape][tier]) - 1;
  return names;
}

// Numbers of exponents below each exponent, for sums over intervals, and the exponents that occur first and last.
struct CountsBelow {
  uint32_t below[257];
  int first, last;

  explicit CountsBelow(const uint32_t histogram[256]) {
    // Most exponents do not occur, nor do their neighbours.
    int used = 0, end = 256;
    while (used < 256 && none_of_eight(histogram + used)) used += 8;
    while (end > used && none_of_eight(histogram + end - 8)) end -= 8;
    std::fill(below, below + used + 1, 0);
    for (int i = used; i < end; ++i) below[i + 1] = below[i] + histogram[i];
    std::fill(below + end + 1, below + 257, below[end]);
    for (first = std::min(used, 255); first < 255 && histogram[first] == 0;) ++first;
    for (last = end - 1; last > first && histogram[last] == 0;) --last;
  }
  uint32_t in(int start, int length) const { return below[start + length] - below[start]; }
};

// The interval of a first tier: where it starts, and how many exponents lie in it.
struct Interval {
  int start;
  uint32_t covered;
};

Interval best_first(const CountsBelow& sums, unsigned width, int num_exponents) {
  const int length = (1 << width) - 1;
  const int last_start = std::min(sums.last, num_exponents - length);
  int start = std::min(sums.first, last_start);
  Interval best = {start, sums.in(start, length)};
  for (++start; start <= last_start; ++start) {
    const uint32_t sum = sums.in(start, length);
    if (sum > best.covered) best = {start, sum};
  }
  return best;
}

// Chooses the tiers of one shape behind its first, greedily. Returns the size of all in bits. Intervals stay within the
// exponents of the dtype.
uint64_t fit(const CountsBelow& sums, unsigned shape, const Interval& first, int num_exponents, CascadeParams* params) {
  const uint32_t n = sums.below[256];
  *params = CascadeParams{};
  params->shape = static_cast<uint8_t>(shape);
  params->counts[0] = n;
  int start = first.start;
  uint32_t covered = first.covered;
  params->lo = static_cast<uint8_t>(start);
  params->counts[1] = n - covered;
  uint64_t bits = uint64_t{n} * kTierWidths[shape][0];
  int length = (1 << kTierWidths[shape][0]) - 1;
  unsigned tier = 1;
  for (; tier < kMaxTiers && kTierWidths[shape][tier] != 0; ++tier) {
    const int more = (1 << kTierWidths[shape][tier]) - 1;
    bits += uint64_t{n - covered} * kTierWidths[shape][tier];
    const int least = std::max(0, start + length + more - num_exponents);
    int best = least;
    uint32_t best_covered = sums.in(start - least, length + more);
    for (int a = least + 1; a <= more && a <= start; ++a) {
      const uint32_t sum = sums.in(start - a, length + more);
      if (sum > best_covered) best_covered = sum, best = a;
    }
    params->below[tier] = static_cast<uint8_t>(best);
    start -= best;
    length += more;
    covered = best_covered;
    params->counts[tier + 1] = n - covered;
  }
  return bits + uint64_t{n - covered} * 8;
}

// The exponents that a tier names: `start` on, with a gap of the earlier tiers' exponents after `below` of them.
struct Tier {
  uint8_t start, below, gap, escape;
};

void tiers_of(const CascadeParams& params, Tier tiers[kMaxTiers]) {
  unsigned start = params.lo, length = 0;
  for (unsigned k = 0; k < num_tiers(params.shape); ++k) {
    const unsigned escape = (1u << kTierWidths[params.shape][k]) - 1;
    start -= params.below[k];
    tiers[k] = {static_cast<uint8_t>(start), params.below[k], static_cast<uint8_t>(length),
                static_cast<uint8_t>(escape)};
    length += escape;
  }
}

uint8_t turned(uint8_t x) { return static_cast<uint8_t>(x >> 1 | x << 7); }

// Bytes all the way, for the vectoriser.
void name(const Tier& tier, ExponentForm form, const uint8_t digits[kMaxNames], uint8_t names[kMaxNames]) {
  const uint8_t start = tier.start, below = tier.below, gap = tier.gap;
  for (unsigned i = 0; i < kMaxNames; ++i) {
    const uint8_t above = digits[i] >= below ? gap : 0;
    names[i] = static_cast<uint8_t>(digits[i] + static_cast<uint8_t>(start + above));
  }
  if (form == ExponentForm::kPlain) return;
  for (unsigned i = 0; i < kMaxNames; ++i) names[i] = turned(names[i]);
}

DigitNames names_of(const Tier& tier, ExponentForm form) {
  DigitNames names;
  uint8_t digits[kMaxNames];
  for (unsigned i = 0; i < kMaxNames; ++i) digits[i] = static_cast<uint8_t>(i & tier.escape);
  name(tier, form, digits, names.low);
  for (unsigned i = 0; i < kMaxNames; ++i) digits[i] = static_cast<uint8_t>(i >> 2);
  name(tier, form, digits, names.high);
  return names;
}

// One tier of n exponents: its digits to the field, those that it escapes to `next`. In place is fine.
void encode_tier(const Tier& tier, unsigned width, const uint8_t* exponents, size_t n, uint8_t* field, uint8_t* next,
                 uint8_t* digits) {
  const size_t runs = width == 2 ? n / kRun : 0, done = runs * kRun;
  next += two_bit_kernels.split(tier.start, tier.below, tier.gap, exponents, runs, field, next);
  cascade_kernels.split(tier.start, tier.below, tier.gap, tier.escape, exponents + done, n - done, digits, next);
  plane_kernels.pack_field(width, digits, n - done, field + runs * (kRun / 4));
}

// Exponents [first, first + count) of a tier of n; those that it escapes are the next of `next`. Returns how many.
size_t decode_tier(const DigitNames& names, unsigned width, const uint8_t* field, size_t n, size_t first, size_t count,
                   const uint8_t* next, uint8_t* out) {
  size_t used = 0;
  if (width == 2 || (width == 1 && one_bit_kernels.expand != nullptr)) {
    const size_t runs = count / kRun;
    const uint8_t* const digits = field + first * width / 8;
    used = width == 2 ? two_bit_kernels.expand(digits, names, next, runs, out)
                      : one_bit_kernels.expand(digits, names.low[0], next, runs, out);
    first += runs * kRun, count -= runs * kRun, out += runs * kRun;
    if (count == 0) return used;
  }
  plane_kernels.unpack_field_tile(width, field, n, first, count, out);
  return used + cascade_kernels.expand(static_cast<uint8_t>((1u << width) - 1), names.low, next + used, count, out);
}

}  // namespace

bool cascade_fit(const uint32_t histogram[256], size_t n, unsigned exponent_bits, unsigned shape,
                 CascadeParams* params) {
  const int num_exponents = 1 << exponent_bits;
  if (n == 0 || num_names(shape) > num_exponents) return false;
  const CountsBelow sums(histogram);
  fit(sums, shape, best_first(sums, kTierWidths[shape][0], num_exponents), num_exponents, params);
  return params->counts[1] <= kMaxCount;
}

bool cascade_choose(const uint32_t histogram[256], size_t n, unsigned exponent_bits, CascadeParams* params) {
  constexpr unsigned kMaxFirstWidth = 4;
  const CountsBelow sums(histogram);
  const int num_exponents = 1 << exponent_bits;
  Interval firsts[kMaxFirstWidth];  // by width, which shapes share
  for (unsigned width = 1; width <= std::min(kMaxFirstWidth, exponent_bits); ++width) {
    firsts[width - 1] = best_first(sums, width, num_exponents);
  }
  uint64_t best = UINT64_MAX;
  for (unsigned shape = 0; shape < kNumTierShapes; ++shape) {
    CascadeParams candidate;
    if (num_names(shape) > num_exponents) continue;
    uint64_t bits = fit(sums, shape, firsts[kTierWidths[shape][0] - 1], num_exponents, &candidate);
    if (n <= kExactWords) bits = 8 * (cascade_nbytes(candidate) + (shape >= kExtendedShapes ? kExtendedNbytes : 0));
    if (bits < best && candidate.counts[1] <= kMaxCount) best = bits, *params = candidate;
  }
  return n != 0 && best != UINT64_MAX;
}

size_t cascade_nbytes(const CascadeParams& params) {
  const unsigned tiers = num_tiers(params.shape);
  size_t nbytes = plane_nbytes(8, params.counts[tiers]);
  for (unsigned k = 0; k < tiers; ++k) nbytes += field_nbytes(params.counts[k], kTierWidths[params.shape][k]);
  return nbytes;
}

namespace {

// Tiers from `tier` on, to which `current` has the exponents.
void encode_from(unsigned tier, const uint8_t* current, const CascadeParams& params, uint8_t* dst,
                 CascadeScratch* scratch) {
  Tier tiers[kMaxTiers];
  tiers_of(params, tiers);
  const unsigned count = num_tiers(params.shape);
  for (unsigned k = tier; k < count; ++k) {
    const size_t n = params.counts[k];
    encode_tier(tiers[k], kTierWidths[params.shape][k], current, n, dst, scratch->even, scratch->odd);
    dst += field_nbytes(n, kTierWidths[params.shape][k]);
    current = scratch->even;
  }
  plane_kernels.pack_field(8, current, params.counts[count], dst);
}

}  // namespace

void cascade_encode(const uint8_t* exponents, const CascadeParams& params, uint8_t* dst, CascadeScratch* scratch) {
  encode_from(0, exponents, params, dst, scratch);
}

size_t cascade_encode_first(const uint8_t* exponents, size_t num_runs, uint8_t lo, uint8_t* field, uint8_t* next) {
  return two_bit_kernels.split(lo, 0, 0, exponents, num_runs, field, next);
}

void cascade_count(const uint8_t* field, size_t num_runs, uint8_t lo, const uint8_t* next, size_t num_escapes,
                   uint32_t histogram[256]) {
  uint32_t counts[2];
  two_bit_kernels.count(field, num_runs, counts);
  histogram_kernels.bytes(next, num_escapes, histogram);
  histogram[lo] += static_cast<uint32_t>(num_runs * kRun - num_escapes) - counts[0] - counts[1];
  histogram[lo + 1] += counts[0];
  histogram[lo + 2] += counts[1];
}

void cascade_encode_behind(const CascadeParams& params, uint8_t* dst, CascadeScratch* scratch) {
  encode_from(1, scratch->even, params, dst + field_nbytes(params.counts[0], kTierWidths[params.shape][0]), scratch);
}

bool cascade_in_range(const CascadeParams& params, unsigned exponent_bits) {
  int start = params.lo, length = 0;
  for (unsigned k = 0; k < num_tiers(params.shape); ++k) {
    start -= params.below[k];
    length += (1 << kTierWidths[params.shape][k]) - 1;
  }
  return start >= 0 && start + length <= 1 << exponent_bits;
}

bool has_runs(const CascadeParams& params) {
  const unsigned width = kTierWidths[params.shape][0];
  return (width == 2 || width == 4) && params.counts[0] % kRun == 0;
}

bool CascadeDecoder::open(const uint8_t* src, const CascadeParams& params, unsigned exponent_bits,
                          CascadeScratch* scratch, ExponentForm form) {
  Tier tiers[kMaxTiers];
  tiers_of(params, tiers);
  const unsigned count = num_tiers(params.shape);
  const uint8_t* fields[kMaxTiers + 1] = {src};
  for (unsigned k = 0; k < count; ++k) {
    fields[k + 1] = fields[k] + field_nbytes(params.counts[k], kTierWidths[params.shape][k]);
  }
  // From the raw exponents back to tier 2. Whatever the digits claim, a tier uses at most kMaxBlockWords, which scratch
  // holds.
  uint8_t* next = scratch->even;
  uint8_t* out = scratch->odd;
  std::memcpy(next, fields[count], params.counts[count]);
  if (!filler_is_zero(fields[count], params.counts[count], 8)) return false;
  if (exponent_bits < 8) {
    for (size_t i = 0; i < params.counts[count]; ++i) {
      if (next[i] >> exponent_bits != 0) return false;
    }
  }
  if (form != ExponentForm::kPlain) {
    for (size_t i = 0; i < params.counts[count]; ++i) next[i] = turned(next[i]);
  }
  for (unsigned k = count - 1; k > 0; --k) {
    const size_t n = params.counts[k];
    const unsigned width = kTierWidths[params.shape][k];
    if (!filler_is_zero(fields[k], n, width)) return false;
    const size_t used = decode_tier(names_of(tiers[k], form), width, fields[k], n, 0, n, next, out);
    if (used != params.counts[k + 1]) return false;
    uint8_t* decoded = out;
    out = next;
    next = decoded;
  }
  if (!filler_is_zero(src, params.counts[0], kTierWidths[params.shape][0])) return false;
  field_ = src;
  next_ = next;
  n_ = params.counts[0];
  used_ = 0;
  num_escapes_ = params.counts[1];
  width_ = kTierWidths[params.shape][0];
  names_ = names_of(tiers[0], form);
  return true;
}

void CascadeDecoder::decode(size_t first, size_t count, uint8_t* out) {
  used_ += decode_tier(names_, width_, field_, n_, first, count, next_ + used_, out);
}

const CascadeKernels& cascade_kernels = pick<kCascadeScalar, kCascadeAvx2, kCascadeAvx512, kCascadeNeon>();

}  // namespace tw
