#include "frame/decode_block.h"
#include "frame/open_block.h"

namespace tw {
namespace {

// A stream holds exponents together with `bits` bits of sign and mantissa of each of n words. The latter count with
// the rest, a bit each, as they would take alone; what is left of the stream counts for the exponents.
void count_together(size_t stream_nbytes, size_t n, unsigned bits, BlockFacts* facts) {
  const size_t alone = ceil_div(n * bits, 8);
  const size_t moved = alone < stream_nbytes ? alone : stream_nbytes;
  facts->rest_nbytes += moved;
  facts->kind_nbytes = stream_nbytes - moved;
}

Fault inspect_zeros(const Coded& coded, BlockFacts* facts, DecodeScratch* scratch) {
  Zeros zeros;
  Fault wrong = open_zeros(coded, &zeros);
  if (wrong) return wrong;
  BlockFacts inner{};
  if (zeros.num_kept != 0) {
    const BlockBytes block = {coded.block, zeros.inner_nbytes, zeros.num_kept, zeros.inner_stored};
    wrong = inspect_block(coded.spec.inner(), block, &inner, scratch, Place::kInner);
  }
  if (wrong) return wrong;
  size_t masks_nbytes = 0;
  wrong = open_zero_masks(coded, zeros, &masks_nbytes, &scratch->zeros);
  facts->rest_nbytes = inner.rest_nbytes;
  facts->kind_nbytes = inner.kind_nbytes + masks_nbytes;
  return wrong;
}

Fault inspect_parts(Coded& coded, BlockFacts* facts, DecodeScratch* scratch) {
  Parts parts;
  const char* const wrong = open_parts(&coded, &parts);
  if (wrong != nullptr) return wrong;
  for (size_t i = 0; i < parts.count; ++i) {
    BlockFacts of_part;
    const BlockSpec spec = coded.spec.part(i * parts.words);
    const Fault fault = inspect_block(spec, parts.blocks[i], &of_part, scratch, Place::kPart);
    if (fault) return fault;
    facts->rest_nbytes += of_part.rest_nbytes;
    facts->kind_nbytes += of_part.kind_nbytes;
  }
  return check_padding(coded, parts.streams);
}

Fault inspect_scaled(const Coded& coded, BlockFacts* facts, DecodeScratch* scratch) {
  Scaled scaled;
  const char* const wrong = open_scaled(coded, &scaled);
  if (wrong != nullptr) return wrong;
  BlockFacts inner;
  const BlockSpec spec = coded.spec.inner(kLayoutsOfCodes[coded.tag.variant]);
  const Fault fault = inspect_block(spec, scaled.inner, &inner, scratch, Place::kInner);
  facts->rest_nbytes = inner.rest_nbytes;
  facts->kind_nbytes = inner.kind_nbytes + sizeof(float) * scaled.num_scales;
  return fault ? fault : open_scales(coded, scaled);
}

}  // namespace

Fault inspect_block(const BlockSpec& spec, const BlockBytes& block, BlockFacts* facts, DecodeScratch* scratch,
                    Place place) {
  const size_t n = block.n;
  *facts = BlockFacts{};
  const Layout& dtype = spec.dtype;
  const unsigned word_bits = 8u * dtype.word_nbytes;
  if (block.length == 0 && spec.relative) {
    facts->kind = TW_KIND_SAME;
    return {};
  }
  const char* const length_wrong = check_length(spec, block);
  if (length_wrong != nullptr) return length_wrong;
  if (block.stored) {
    count_together(n * dtype.word_nbytes, n, word_bits - dtype.exponent_bits, facts);
    return {};
  }
  Coded coded(spec, block.bytes, n);
  Fault wrong = open_coded(block.length, &scratch->rest, &coded);
  if (wrong) return wrong;
  facts->extended = coded.extended;
  facts->kind = coded.tag.kind;
  facts->rest = coded.tag.rest;
  facts->variant = coded.tag.variant;
  facts->rest_nbytes = coded.has_rest() ? coded.rest.streams_nbytes() : 0;
  switch (coded.tag.kind) {
    case kEnec: {
      EnecParams params;
      uint32_t num_high = 0;
      return open_enec(coded, &params, &num_high, &facts->kind_nbytes);
    }
    case kExtended:
      if (coded.extended == kParts) {
        return place == Place::kFrame ? inspect_parts(coded, facts, scratch)
                                      : "expected parts that have none themselves";
      }
      if (coded.extended == kScaled) {
        return place == Place::kInner ? "expected an inner block that is not of kind scaled"
                                      : inspect_scaled(coded, facts, scratch);
      }
      if (coded.extended == kModal) {
        Modal modal;
        return open_modal(coded, &modal, &facts->kind_nbytes, &scratch->modal);
      }
      if (is_relative_kind(coded.extended)) {
        facts->kind_nbytes = coded.available;
        return {};
      }
      [[fallthrough]];
    case kCascade: {
      CascadeParams params;
      return open_cascade(coded, &params, &facts->kind_nbytes);
    }
    case kEntropy: {
      EntropyParams params;
      size_t nbytes = 0;
      wrong = open_entropy(coded, &scratch->entropy, &params, &nbytes);
      count_together(nbytes, n, params.k, facts);
      return wrong;
    }
    case kPlain: {
      const size_t nbytes = facts->rest_nbytes;
      facts->rest_nbytes = 0;
      count_together(nbytes, n, word_bits - dtype.exponent_bits, facts);
      return {};
    }
    case kZeros:
      return place == Place::kInner ? "expected an inner block that is not of kind zeros itself"
                                    : inspect_zeros(coded, facts, scratch);
    default:
      return {};
  }
}

}  // namespace tw
