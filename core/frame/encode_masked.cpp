// The kinds that have a mask: zeros, and modal.
#include <cstring>

#include "frame/encode_kinds.h"
#include "transforms/expand.h"
#include "transforms/with_number.h"

namespace tw {
namespace {

// Words that are looked at before all of them are.
constexpr size_t kSamples = 256;
// In `fast` a zero takes less than so many bits without kind zeros, and a mask at most one bit for each word.
constexpr size_t kFastShare = 64, kCompactShare = 1024;

bool has_signs(const Layout& dtype) { return dtype.split == Split::kFloat; }

}  // namespace

bool sample_has_zero(const Layout& dtype, const uint8_t* words, size_t n) {
  return with_number(dtype.word_nbytes, [&](auto word) {
    using Word = decltype(word);
    constexpr Word all = static_cast<Word>(~Word{0});
    const Word magnitude = has_signs(dtype) ? static_cast<Word>(all >> 1) : all;
    const size_t step = n / kSamples | 1;  // odd: it meets all columns of rows of 2^k words
    for (size_t i = 0; i < n; i += step) {
      if ((load<Word>(words + i * sizeof(Word)) & magnitude) == 0) return true;
    }
    return false;
  });
}

bool plan_zeros(const Block& block, ZerosPlan* plan) {
  if (!sample_has_zero(block.dtype(), block.words, block.n)) return false;
  EncodeScratch& scratch = *block.scratch;
  expand_kernels.find(block.dtype().word_nbytes, has_signs(block.dtype()), block.words, block.n, scratch.kept,
                      scratch.minus);
  plan->kept = count_mask(scratch.kept, block.n);
  plan->zeros = block.n - plan->kept;
  const bool compact = block.spec.profile == kProfileCompact;
  if (plan->zeros * (compact ? kCompactShare : kFastShare) < block.n) return false;
  const size_t minus = count_mask(scratch.minus, block.n);
  plan->signs = minus == 0 ? kSignsPlus : minus == plan->zeros ? kSignsMinus : kSignsMixed;
  plan->mask = plan_mask(scratch.kept, block.n, compact, &scratch.mask);
  plan->nbytes = plan->mask.nbytes + (plan->signs == kSignsMixed ? bit_string_nbytes(plan->zeros) : 0) +
                 block.descriptor_nbytes(kZeros);
  return true;
}

size_t write_zeros(const Block& block, const ZerosPlan& plan) {
  EncodeScratch& scratch = *block.scratch;
  const Layout& dtype = block.dtype();
  size_t streams = 0;
  uint8_t flags = plan.signs;
  if (plan.kept != 0) {
    expand_kernels.compact(dtype.word_nbytes, scratch.kept, block.words, block.n, scratch.words);
    const BlockSpec spec = block.spec.inner();
    const size_t stored = stored_nbytes(spec, plan.kept);
    streams = encode_kept({spec, scratch.words, plan.kept, block.dst, stored, &scratch});
    if (streams == stored) flags |= kInnerStored;
  }
  const size_t inner_units = streams / kBlockAlign;
  if (inner_units > UINT16_MAX || ceil_to(streams + plan.nbytes, block.spec.align) >= block.stored) return 0;
  // The inner block may have had a mask of its own.
  const MaskPlan mask = plan_mask(scratch.kept, block.n, plan.mask.variant == kMaskGaps, &scratch.mask);
  write_mask(mask, scratch.kept, block.n, block.dst + streams, &scratch.mask);
  streams += mask.nbytes;
  if (plan.signs == kSignsMixed) {
    streams += write_outside(scratch.kept, block.n, scratch.minus, block.dst + streams, &scratch.mask);
  }
  Written written{};
  written.push(plan.kept, 4);
  written.push(inner_units, 2);
  written.push(flags, 1);
  written.push(Tag{kZeros, kVerbatim, mask.variant}.byte(), 1);
  return finish(block.dst, block.stored, block.spec.align, streams, written.descriptor, written.descriptor_nbytes);
}

bool plan_modal(const Block& block, ModalPlan* plan) {
  EncodeScratch& scratch = *block.scratch;
  uint32_t most = 0;
  for (const uint32_t count : scratch.histogram) most = count > most ? count : most;
  plan->num_others = block.n - most;
  if (plan->num_others * kOthersShare > block.n) return false;
  unsigned mode = 0;
  while (scratch.histogram[mode] != most) ++mode;
  plan->mode = static_cast<uint8_t>(mode);
  for (size_t i = 0; i < block.n; ++i) scratch.symbols[i] = static_cast<uint8_t>(scratch.exponents[i] ^ plan->mode);
  expand_kernels.find(1, false, scratch.symbols, block.n, scratch.others, scratch.where);
  plan->mask = plan_mask(scratch.others, block.n, block.spec.profile == kProfileCompact, &scratch.mask);
  plan->nbytes = plan->mask.nbytes + field_nbytes(plan->num_others, block.dtype().exponent_bits);
  return true;
}

size_t write_modal(const Block& block, const Rests& rests, const RestPlan& rest_plan, const ModalPlan& plan) {
  EncodeScratch& scratch = *block.scratch;
  const size_t descriptor = block.descriptor_nbytes(kExtended, rest_plan, kModal);
  if (rest_plan.streams_nbytes + plan.nbytes + descriptor > block.stored - block.spec.align) return 0;
  Written written;
  if (!write_rests(block, rest_plan, rests, scratch.runs, &written)) return 0;
  size_t streams = written.streams;
  write_mask(plan.mask, scratch.others, block.n, block.dst + streams, &scratch.mask);
  streams += plan.mask.nbytes;
  expand_kernels.compact(1, scratch.others, scratch.exponents, block.n, scratch.symbols);
  const unsigned bits = block.dtype().exponent_bits;
  plane_kernels.pack_field(bits, scratch.symbols, plan.num_others, block.dst + streams);
  streams += field_nbytes(plan.num_others, bits);
  written.push(plan.mode, 1);
  written.push(plan.num_others, 4);
  written.push(kModal, kExtendedNbytes);
  written.push(Tag{kExtended, rest_plan.mode, plan.mask.variant}.byte(), 1);
  return finish(block.dst, block.stored, block.spec.align, streams, written.descriptor, written.descriptor_nbytes);
}

}  // namespace tw
