// The enec coder of docs/format.md, after ENEC (arXiv 2604.03298): the low bits of every exponent, and the high bits of
// flagged groups only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/format.h"
#include "transforms/planes.h"

namespace tw {

// As in the descriptor: 1 <= m < nb <= E, groups of 2^log2_group words, log2_group 2 to 5.
struct EnecParams {
  uint8_t b, m, nb, log2_group;
};

// Words per bit of a bit string of quads; every group is a whole number of quads.
constexpr size_t kQuad = 4;

// Scratch of one block.
struct EnecScratch {
  alignas(64) uint8_t numbers[kMaxBlockWords + kSlack];        // one y per word
  alignas(64) uint8_t high[kMaxBlockWords + kSlack];           // high bits of flagged groups
  alignas(64) uint8_t flags[kMaxBlockWords / kQuad + kSlack];  // one byte per group
  alignas(64) uint8_t quads[kMaxBlockWords / kQuad / 8 + kSlack];
  // The search: the smallest and largest exponent of each group, and words counted as enec_choose.cpp says.
  alignas(64) uint8_t lows[kMaxBlockWords / kQuad], highs[kMaxBlockWords / kQuad];
  uint32_t by_end[8][512], by_start[8][256], by_length[8];
};

// Choose the parameters that give the fewest bytes of streams, by exact group counts over all b < 2^E, m, L and all
// legal nb; of equals the smallest tuple (b, m, nb, log2_group) wins. x holds n <= kMaxBlockWords exponents below 2^E,
// histogram counts them; forced_log2_group 0 leaves L free. False if num_high would not fit its field with any, or if
// all take `limit` bytes or more.
bool enec_choose(const uint8_t* x, size_t n, const uint32_t histogram[256], unsigned exponent_bits,
                 unsigned forced_log2_group, size_t limit, EnecParams* params, size_t* stream_nbytes,
                 uint32_t* num_high, EnecScratch* scratch);

size_t enec_stream_nbytes(size_t n, const EnecParams& params, uint32_t num_high);

// Write the streams: exactly the stream_nbytes of enec_choose(). params must be legal for these exponents.
void enec_encode(const uint8_t* x, size_t n, const EnecParams& params, uint8_t* dst, EnecScratch* scratch);

// Decode n <= kMaxBlockWords exponents to out, which has kSlack to spare. False if num_high is not the number of words
// in flagged groups. `streams` holds enec_stream_nbytes() bytes and kSlack to spare; params are in range, num_high <=
// n.
bool enec_decode(const uint8_t* streams, size_t n, unsigned exponent_bits, const EnecParams& params, uint32_t num_high,
                 uint8_t* out, EnecScratch* scratch);

// x = (base - (y ^ sign)) & mask, where y = low | high << m: the sign extension of y and its subtraction from b.
struct EnecMap {
  uint8_t base, sign, mask, m;
};

struct EnecKernels {
  // Low bits in `out` to exponents. Bit q of the bit string `quads` tells whether words 4q to 4q + 3 have high bits,
  // the next four of `high`, or 0; kernels read the bits of whole vectors of 64 words. Returns how many of `high` were
  // used. Reads up to kSlack past high, reads and writes up to kSlack past out.
  size_t (*merge)(const EnecMap& map, const uint8_t* quads, const uint8_t* high, size_t n, uint8_t* out);
};

extern const EnecKernels& enec_kernels;

}  // namespace tw
