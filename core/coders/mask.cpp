#include "coders/mask.h"

#include <cstring>

#include "common/cpu.h"

namespace tw {
namespace {

size_t groups_of(size_t n, unsigned level) { return ceil_div(n, size_t{1} << (2 * level)); }

void places_outside(const uint64_t* mask, size_t n, uint64_t* where) {
  const size_t numbers = mask_numbers(n);
  for (size_t i = 0; i < numbers; ++i) where[i] = ~mask[i];
  if (n % 64 != 0) where[numbers - 1] &= (uint64_t{1} << n % 64) - 1;
}

// Whether nothing is set from bit `nbits` of a mask on, whose last number has it.
bool ends_at(const uint64_t* mask, size_t nbits) { return nbits % 64 == 0 || mask[nbits / 64] >> nbits % 64 == 0; }

// A string of nbits bits: whether it is there, and its padding is zero.
bool string_is_sound(const uint8_t* src, size_t available, size_t nbits) {
  const size_t nbytes = bit_string_nbytes(nbits);
  if (nbytes > available) return false;
  return nbits % 32 == 0 || load<uint32_t>(src + nbytes - 4) >> nbits % 32 == 0;
}

bool read_levels(unsigned level, const uint8_t* src, size_t available, size_t n, uint64_t* mask, size_t* nbytes,
                 MaskDecodeScratch* scratch) {
  uint64_t* out = level == 0 ? mask : scratch->above;
  uint64_t* other = scratch->below;
  const size_t top = groups_of(n, level);
  size_t used = bit_string_nbytes(top);
  if (!string_is_sound(src, available, top)) return false;
  out[mask_numbers(top) - 1] = 0;
  std::memcpy(out, src, used);
  if (!ends_at(out, top)) return false;
  while (level-- > 0) {
    const size_t groups = groups_of(n, level), numbers = mask_numbers(groups);
    const size_t nbits = 4 * mask_kernels.count(out, mask_numbers(ceil_div(groups, 4)));
    if (!string_is_sound(src + used, available - used, nbits)) return false;
    mask_kernels.spread(out, numbers, scratch->where);
    uint64_t* const below = level == 0 ? mask : other;
    mask_kernels.deposit(scratch->where, src + used, numbers, below);
    if (!ends_at(below, groups)) return false;
    used += bit_string_nbytes(nbits);
    other = out;
    out = below;
  }
  *nbytes = used;
  return true;
}

}  // namespace

size_t count_mask(const uint64_t* mask, size_t n) { return mask_kernels.count(mask, mask_numbers(n)); }

MaskPlan plan_mask(const uint64_t* mask, size_t n, bool gaps, MaskEncodeScratch* scratch) {
  MaskPlan best = {};
  best.nbytes = bit_string_nbytes(n);
  size_t below = 0;  // bytes of the levels below the one that is looked at
  const uint64_t* current = mask;
  for (unsigned level = 1; level <= kMaxMaskLevel; ++level) {
    uint64_t* const above = scratch->levels[level];
    const size_t groups = groups_of(n, level);
    mask_kernels.collapse(current, mask_numbers(groups_of(n, level - 1)), above);
    below += bit_string_nbytes(4 * mask_kernels.count(above, mask_numbers(groups)));
    const size_t nbytes = bit_string_nbytes(groups) + below;
    if (nbytes < best.nbytes) best.variant = static_cast<uint8_t>(level), best.nbytes = nbytes;
    current = above;
  }
  if (!gaps) return best;
  const SetPlan set = plan_set(mask, n);
  const size_t nbytes = bit_string_nbytes(set.nbits);
  return nbytes < best.nbytes ? MaskPlan{kMaskGaps, nbytes, set} : best;
}

void write_mask(const MaskPlan& plan, const uint64_t* mask, size_t n, uint8_t* dst, MaskEncodeScratch* scratch) {
  if (plan.variant == kMaskGaps) {
    size_t nbytes = 0;
    BitWriter writer(dst, plan.nbytes);
    write_set(&writer, mask, n, plan.set);
    writer.finish(&nbytes);
    return;
  }
  unsigned level = plan.variant;
  const uint64_t* above = level == 0 ? mask : scratch->levels[level];
  const size_t top = bit_string_nbytes(groups_of(n, level));
  std::memcpy(dst, above, top);
  dst += top;
  while (level-- > 0) {
    const uint64_t* const below = level == 0 ? mask : scratch->levels[level];
    const size_t numbers = mask_numbers(groups_of(n, level));
    mask_kernels.spread(above, numbers, scratch->where);
    dst += mask_kernels.extract(scratch->where, below, numbers, dst);
    above = below;
  }
}

bool read_mask(unsigned variant, const uint8_t* src, size_t available, size_t n, uint64_t* mask, size_t* nbytes,
               MaskDecodeScratch* scratch) {
  if (variant != kMaskGaps) return read_levels(variant, src, available, n, mask, nbytes, scratch);
  BitReader reader(src, available);
  return read_set(&reader, n, mask) && reader.finish(nbytes);
}

size_t write_outside(const uint64_t* mask, size_t n, const uint64_t* bits, uint8_t* dst, MaskEncodeScratch* scratch) {
  places_outside(mask, n, scratch->where);
  return mask_kernels.extract(scratch->where, bits, mask_numbers(n), dst);
}

bool read_outside(const uint64_t* mask, size_t n, const uint8_t* src, size_t available, uint64_t* bits, size_t* nbytes,
                  MaskDecodeScratch* scratch) {
  const size_t nbits = n - count_mask(mask, n);
  *nbytes = bit_string_nbytes(nbits);
  if (!string_is_sound(src, available, nbits)) return false;
  places_outside(mask, n, scratch->where);
  mask_kernels.deposit(scratch->where, src, mask_numbers(n), bits);
  return true;
}

extern const MaskKernels kMaskScalar, kMaskAvx2;

const MaskKernels& mask_kernels = cpu_deposits_fast() ? pick<kMaskScalar, kMaskAvx2, kMaskAvx2>() : kMaskScalar;

}  // namespace tw
