#include "frame/decode_block.h"
#include "frame/open_block.h"

namespace tw {

const char* inspect_block(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n, BlockFacts* facts,
                          DecodeScratch* scratch) {
  *facts = BlockFacts{};
  const size_t stored = stored_nbytes(*spec.dtype, n);
  if (length > stored) return "a block longer than its content";
  if (length == stored) {
    facts->rest_nbytes = n * spec.dtype->word_nbytes;
    return nullptr;
  }
  Coded coded{spec, block, n, {}, nullptr, 0, 0, {}};
  const char* wrong = open_coded(length, &scratch->rest, &coded);
  if (wrong != nullptr) return wrong;
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
    case kCascade: {
      CascadeParams params;
      return open_cascade(coded, &params, &facts->kind_nbytes);
    }
    case kEntropy: {
      EntropyParams params;
      return open_entropy(coded, &scratch->entropy, &params, &facts->kind_nbytes);
    }
    case kZeroGroups: {
      ZeroGroups zeros;
      wrong = open_zero_groups(coded, &zeros);
      facts->kind_nbytes = zeros.inner_nbytes + zeros.mask_nbytes;
      return wrong;
    }
    default:
      return nullptr;
  }
}

}  // namespace tw
