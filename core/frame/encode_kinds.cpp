#include "frame/encode_kinds.h"

#include <algorithm>
#include <cstring>

#include "transforms/words.h"

namespace tw {

void Written::push(uint64_t value, size_t nbytes) {
  std::memcpy(descriptor + descriptor_nbytes, &value, nbytes);
  descriptor_nbytes += nbytes;
}

bool write_rests(const Block& block, const RestPlan& plan, const Rests& rests, const uint64_t* runs, Written* written) {
  written->descriptor_nbytes = plan.params_nbytes;
  if (!encode_rests(plan, rests, runs, block.dst, block.stored, &written->streams, written->descriptor,
                    &block.scratch->rest)) {
    return false;
  }
  block.scratch->rests_nbytes = written->streams;
  block.scratch->rest_mode = plan.mode;
  return true;
}

size_t finish(uint8_t* dst, size_t stored, size_t align, size_t streams, const uint8_t* descriptor,
              size_t descriptor_nbytes) {
  const size_t length = ceil_to(streams + descriptor_nbytes, align);
  if (length >= stored) return 0;
  std::memset(dst + streams, 0, length - streams - descriptor_nbytes);
  std::memcpy(dst + length - descriptor_nbytes, descriptor, descriptor_nbytes);
  return length;
}

size_t store_block(const Block& block) {
  const size_t nbytes = block.n * block.dtype().word_nbytes;
  std::memcpy(block.dst, block.words, nbytes);
  std::memset(block.dst + nbytes, 0, block.stored - nbytes);
  block.scratch->rests_nbytes = nbytes;
  block.scratch->rest_mode = kVerbatim;
  return block.stored;
}

Rests rests_of(const Block& block) {
  const Layout& dtype = block.dtype();
  return {block.scratch->sign_mantissas, block.n, dtype.rest_nbytes(), dtype.rest_bits};
}

Rests split(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  const Layout& dtype = block.dtype();
  for (size_t first = 0; first < block.n; first += kSegment) {
    const size_t count = std::min(kSegment, block.n - first);
    scratch.arrival.reach((first + count) * dtype.word_nbytes);
    word_kernels.split(dtype, block.words + first * dtype.word_nbytes, count, scratch.exponents + first,
                       scratch.sign_mantissas + first * dtype.rest_nbytes(), scratch.runs + first / kRun);
  }
  return rests_of(block);
}

RestPlan cascade_rests(const Block& block, const Rests& rests) {
  const bool allow_bytes = block.spec.profile == kProfileCompact;
  return plan_rests(rests, block.scratch->runs, allow_bytes, true, &block.scratch->rest);
}

size_t write_cascade(const Block& block, const Rests& rests, const RestPlan& plan, const CascadeParams& params,
                     bool ahead) {
  EncodeScratch& scratch = *block.scratch;
  const bool extended = params.shape >= kExtendedShapes;
  const Kind kind = extended ? kExtended : kCascade;
  const size_t nbytes = cascade_nbytes(params), descriptor = block.descriptor_nbytes(kind, plan, kExtendedCascade);
  if (plan.streams_nbytes + nbytes + descriptor > block.stored - block.spec.align) return 0;
  Written written;
  if (ahead) {
    written.streams = scratch.rests_nbytes = plan.streams_nbytes;
    scratch.rest_mode = plan.mode;
    written.descriptor_nbytes = plan.params_nbytes;
    cascade_encode_behind(params, block.dst + written.streams, &scratch.cascade);
  } else {
    if (!write_rests(block, plan, rests, scratch.runs, &written)) return 0;
    cascade_encode(scratch.exponents, params, block.dst + written.streams, &scratch.cascade);
  }
  written.push(params.lo, 1);
  unsigned below = 0;
  for (unsigned k = 1; k < kMaxTiers; ++k) below |= static_cast<unsigned>(params.below[k]) << (4 * k - 4);
  written.push(below, 2);
  for (unsigned k = 1; k <= kMaxTiers; ++k) written.push(params.counts[k], 2);
  if (extended) written.push(kExtendedCascade, kExtendedNbytes);
  const unsigned variant = extended ? params.shape - kExtendedShapes : params.shape;
  written.push(Tag{kind, plan.mode, static_cast<uint8_t>(variant)}.byte(), 1);
  return finish(block.dst, block.stored, block.spec.align, written.streams + nbytes, written.descriptor,
                written.descriptor_nbytes);
}

}  // namespace tw
