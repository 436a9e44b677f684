#include "coders/cascade.h"

#include <algorithm>
#include <cstring>

#include "common/cpu.h"

namespace tw {

extern const CascadeKernels kCascadeScalar, kCascadeAvx2, kCascadeAvx512, kCascadeNeon;

const uint8_t kTierWidths[kNumTierShapes][kMaxTiers] = {{2, 2, 3}, {2, 2, 2, 3}, {2, 1, 2, 2, 2}, {2, 1, 1, 2, 3},
                                                        {1, 2, 3}, {1, 1, 1, 3}, {3, 3},          {1}};

namespace {

// What a tier costs in the choice between shapes: one bit for this many words.
constexpr size_t kTierPrice = 512;

unsigned num_tiers(unsigned variant) {
  unsigned tiers = 0;
  while (tiers < kMaxTiers && kTierWidths[variant][tiers] != 0) ++tiers;
  return tiers;
}

// Numbers of exponents below each exponent, for sums over intervals.
struct Sums {
  uint32_t below[257];

  explicit Sums(const uint32_t histogram[256]) {
    below[0] = 0;
    for (unsigned i = 0; i < 256; ++i) below[i + 1] = below[i] + histogram[i];
  }
  uint32_t in(int start, int length) const { return below[start + length] - below[start]; }
};

// Chooses the tiers of one shape, greedily from the first. Returns their size in bits. Intervals stay within the
// exponents of the dtype.
uint64_t fit(const Sums& sums, unsigned variant, unsigned min_exponent, unsigned max_exponent, int num_exponents,
             CascadeParams* params) {
  const uint32_t n = sums.below[256];
  *params = CascadeParams{};
  params->variant = static_cast<uint8_t>(variant);
  params->counts[0] = n;
  const int first_length = (1 << kTierWidths[variant][0]) - 1;
  const int last_start = std::min(static_cast<int>(max_exponent), num_exponents - first_length);
  int start = std::min(static_cast<int>(min_exponent), last_start);
  uint32_t covered = sums.in(start, first_length);
  for (int s = start + 1; s <= last_start; ++s) {
    const uint32_t sum = sums.in(s, first_length);
    if (sum > covered) covered = sum, start = s;
  }
  params->lo = static_cast<uint8_t>(start);
  params->counts[1] = n - covered;
  uint64_t bits = uint64_t{n} * kTierWidths[variant][0];
  int length = first_length;
  unsigned tier = 1;
  for (; tier < kMaxTiers && kTierWidths[variant][tier] != 0; ++tier) {
    const int more = (1 << kTierWidths[variant][tier]) - 1;
    bits += uint64_t{n - covered} * kTierWidths[variant][tier];
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
  for (unsigned k = 0; k < num_tiers(params.variant); ++k) {
    const unsigned escape = (1u << kTierWidths[params.variant][k]) - 1;
    start -= params.below[k];
    tiers[k] = {static_cast<uint8_t>(start), params.below[k], static_cast<uint8_t>(length),
                static_cast<uint8_t>(escape)};
    length += escape;
  }
}

void names_of(const Tier& tier, uint8_t names[8]) {
  for (unsigned d = 0; d < 8; ++d) {
    names[d] = static_cast<uint8_t>(tier.start + d + (d >= tier.below ? tier.gap : 0));
  }
}

}  // namespace

bool cascade_choose(const uint32_t histogram[256], size_t n, unsigned exponent_bits, CascadeParams* params) {
  const Sums sums(histogram);
  unsigned min_exponent = 0, max_exponent = 255;
  while (min_exponent < 255 && histogram[min_exponent] == 0) ++min_exponent;
  while (max_exponent > min_exponent && histogram[max_exponent] == 0) --max_exponent;
  uint64_t best = UINT64_MAX;
  for (unsigned variant = 0; variant < kNumTierShapes; ++variant) {
    CascadeParams candidate;
    const uint64_t bits = fit(sums, variant, min_exponent, max_exponent, 1 << exponent_bits, &candidate);
    // Another tier takes time to decode, so it has to save some bits.
    const uint64_t price = bits + num_tiers(variant) * (n / kTierPrice);
    if (price < best && candidate.counts[1] <= 65535) best = price, *params = candidate;
  }
  return n != 0 && best != UINT64_MAX;
}

size_t cascade_nbytes(const CascadeParams& params) {
  const unsigned tiers = num_tiers(params.variant);
  size_t nbytes = params.counts[tiers];
  for (unsigned k = 0; k < tiers; ++k) nbytes += field_nbytes(params.counts[k], kTierWidths[params.variant][k]);
  return nbytes;
}

void cascade_encode(const uint8_t* exponents, const CascadeParams& params, uint8_t* dst, CascadeScratch* scratch) {
  Tier tiers[kMaxTiers];
  tiers_of(params, tiers);
  const unsigned count = num_tiers(params.variant);
  const uint8_t* current = exponents;
  for (unsigned k = 0; k < count; ++k) {
    const size_t n = params.counts[k];
    const Tier& tier = tiers[k];
    cascade_kernels.split(tier.start, tier.below, tier.gap, tier.escape, current, n, scratch->odd, scratch->even);
    plane_kernels.pack_field(kTierWidths[params.variant][k], scratch->odd, n, dst);
    dst += field_nbytes(n, kTierWidths[params.variant][k]);
    current = scratch->even;
  }
  std::memcpy(dst, current, params.counts[count]);
}

bool cascade_in_range(const CascadeParams& params, unsigned exponent_bits) {
  int start = params.lo, length = 0;
  for (unsigned k = 0; k < num_tiers(params.variant); ++k) {
    start -= params.below[k];
    length += (1 << kTierWidths[params.variant][k]) - 1;
  }
  return start >= 0 && start + length <= 1 << exponent_bits;
}

bool CascadeDecoder::open(const uint8_t* src, const CascadeParams& params, unsigned exponent_bits,
                          CascadeScratch* scratch) {
  Tier tiers[kMaxTiers];
  tiers_of(params, tiers);
  const unsigned count = num_tiers(params.variant);
  const uint8_t* fields[kMaxTiers + 1] = {src};
  for (unsigned k = 0; k < count; ++k) {
    fields[k + 1] = fields[k] + field_nbytes(params.counts[k], kTierWidths[params.variant][k]);
  }
  // From the raw exponents back to tier 2. Whatever the digits claim, a tier uses at most kMaxBlockWords, which scratch
  // holds.
  uint8_t* next = scratch->even;
  uint8_t* out = scratch->odd;
  std::memcpy(next, fields[count], params.counts[count]);
  if (exponent_bits < 8) {
    for (size_t i = 0; i < params.counts[count]; ++i) {
      if (next[i] >> exponent_bits != 0) return false;
    }
  }
  for (unsigned k = count - 1; k > 0; --k) {
    const size_t n = params.counts[k];
    uint8_t names[8];
    names_of(tiers[k], names);
    if (!filler_is_zero(fields[k], n, kTierWidths[params.variant][k])) return false;
    plane_kernels.unpack_field(kTierWidths[params.variant][k], fields[k], n, out);
    if (cascade_kernels.expand(tiers[k].escape, names, next, n, out) != params.counts[k + 1]) return false;
    uint8_t* decoded = out;
    out = next;
    next = decoded;
  }
  if (!filler_is_zero(src, params.counts[0], kTierWidths[params.variant][0])) return false;
  field_ = src;
  next_ = next;
  n_ = params.counts[0];
  used_ = 0;
  num_escapes_ = params.counts[1];
  width_ = kTierWidths[params.variant][0];
  names_of(tiers[0], names_);
  return true;
}

void CascadeDecoder::decode(size_t first, size_t count, uint8_t* out) {
  plane_kernels.unpack_field_tile(width_, field_, n_, first, count, out);
  used_ += cascade_kernels.expand(static_cast<uint8_t>((1u << width_) - 1), names_, next_ + used_, count, out);
}

const CascadeKernels& cascade_kernels = pick<kCascadeScalar, kCascadeAvx2, kCascadeAvx512, kCascadeNeon>();

}  // namespace tw
