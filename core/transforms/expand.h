// Words apart from the zeros between them: masks of those that are kept, and the ways there and back.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

// Kernels, one set per target, for words of 1, 2, 4 or 8 bytes. Bit i mod 64 of number floor(i / 64) of a mask is that
// of word i; bits from n on are zero. No pointer to words needs alignment.
struct ExpandKernels {
  // kept: words that are not zeros. minus: zeros whose highest bit is set; without `signs` such words are no zeros.
  void (*find)(unsigned nbytes, bool signs, const uint8_t* words, size_t n, uint64_t* kept, uint64_t* minus);
  // The words in the mask, one behind the other; writes up to kSlack behind them. Returns their number.
  size_t (*compact)(unsigned nbytes, const uint64_t* mask, const uint8_t* words, size_t n, uint8_t* kept);
  // out[i] = the next of `kept` for a word in the mask, else fill. Where there is `minus`, which has no word of the
  // mask, fill is 0, and the words in it have their highest bit set. Reads up to kSlack behind the kept words. Returns
  // how many of them were used.
  size_t (*expand)(unsigned nbytes, uint64_t fill, const uint64_t* mask, const uint64_t* minus, const uint8_t* kept,
                   size_t n, uint8_t* out);
};

extern const ExpandKernels& expand_kernels;

}  // namespace tw
