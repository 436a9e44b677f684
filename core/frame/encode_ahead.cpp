// Rests and first tier as the block before had them, written while the words are split.
#include "frame/encode_kinds.h"
#include "transforms/words.h"

namespace tw {
namespace {

// What passes between the kernels stays in the first-level cache.
constexpr size_t kTileNbytes = 2048;
static_assert(kTileNbytes <= kSegment, "a tile of one-byte words");

// Where numbers [first, stop) of a plane will go.
inline __attribute__((always_inline)) void prefetch_plane(const uint8_t* plane, unsigned bits, size_t first,
                                                          size_t stop) {
  prefetch<kFirstLevel, kWrite>(plane + first * bits / 8, plane + stop * bits / 8);
}

}  // namespace

bool write_ahead(const Block& block) {
  EncodeScratch& scratch = *block.scratch;
  if (!scratch.first_tier.known || block.n % kRun != 0) return false;
  const Layout& dtype = block.dtype();
  const uint8_t lo = scratch.first_tier.lo;
  const size_t tile = kTileNbytes / dtype.word_nbytes;
  uint8_t* const first_tier = block.dst + field_nbytes(block.n, dtype.rest_bits);
  // The bits of the rests' largest plane, if they have any.
  const unsigned plane_bits = dtype.rest_bits == 0 ? 0 : 1u << (bit_length(dtype.rest_bits) - 1);
  uint8_t* next = scratch.cascade.even;
  Prefetcher<kFirstLevel> prefetcher(scratch.upcoming.words, ceil_div(block.n, tile));
  for (size_t first = 0; first < block.n; first += tile) {
    const size_t count = block.n - first < tile ? block.n - first : tile;
    scratch.arrival.reach((first + count) * dtype.word_nbytes);
    prefetcher.step();
    const size_t ahead = first + 2 * tile, stop = ahead + tile < block.n ? ahead + tile : block.n;
    prefetch_plane(block.dst, plane_bits, ahead, stop);
    prefetch_plane(first_tier, 2, ahead, stop);
    uint8_t* const exponents = scratch.exponents + first;
    word_kernels.unweave(dtype, block.words + first * dtype.word_nbytes, block.n, first, count, exponents, block.dst,
                         scratch.runs + first / kRun);
    next += cascade_encode_first(exponents, count / kRun, lo, first_tier + first / 4, next);
  }
  const size_t num_escapes = static_cast<size_t>(next - scratch.cascade.even);
  cascade_count(first_tier, block.n / kRun, lo, scratch.cascade.even, num_escapes, scratch.histogram);
  return true;
}

FirstTier first_tier_of(const RestPlan& plan, const CascadeParams& params) {
  return {plan.mode == kVerbatim && kTierWidths[params.shape][0] == 2, params.lo};
}

}  // namespace tw
