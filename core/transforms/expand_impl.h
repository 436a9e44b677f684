// What the expand kernels of all targets share: 64 words after the other, each with one number of the mask. A target
// defines WordLanes<W> for words of W bytes, whose functions handle 64 words:
//   find(words, magnitude, &minus): the mask of words with a bit of `magnitude`; minus: of those with their highest bit
//   compact(mask, words, out), expand<SIGNS, FILLS>(mask, fill, minus, kept, out): as in expand.h; minus counts if
//   SIGNS, and fill may be another than 0 if FILLS
// Each source includes this once; everything is local to it.
#pragma once
#include <cstring>

#include "common/bits.h"
#include "transforms/expand.h"
#include "transforms/planes.h"
#include "transforms/with_number.h"

namespace tw {
namespace {

constexpr size_t kGroup = 64;  // words of a number of the mask
constexpr size_t kAtOnce = 4;  // groups

template <unsigned W>
struct WordLanes;

template <unsigned W>
constexpr uint64_t sign_bit() {
  return uint64_t{1} << (8 * W - 1);
}

template <unsigned W>
void find_words(bool signs, const uint8_t* words, size_t n, uint64_t* kept, uint64_t* minus) {
  const uint64_t magnitude = signs ? ~sign_bit<W>() : ~uint64_t{0};
  for (size_t i = 0; i < n; i += kGroup) {
    uint8_t last[kGroup * W];
    const uint8_t* group = words + i * W;
    if (n - i < kGroup) {
      std::memset(last, 0, sizeof last);
      std::memcpy(last, group, (n - i) * W);
      group = last;
    }
    uint64_t negative = 0;
    const uint64_t mask = WordLanes<W>::find(group, magnitude, &negative);
    *kept++ = mask;
    *minus++ = negative & ~mask;
  }
}

template <unsigned W>
size_t compact_words(const uint64_t* mask, const uint8_t* words, size_t n, uint8_t* kept) {
  uint8_t* next = kept;
  for (size_t i = 0; i < n; i += kGroup) {
    uint8_t last[kGroup * W + kSlack];
    const uint8_t* group = words + i * W;
    const uint64_t in_mask = mask[i / kGroup];
    if (in_mask == 0) continue;
    if (n - i < kGroup) {
      std::memset(last, 0, sizeof last);
      std::memcpy(last, group, (n - i) * W);
      group = last;
    }
    next = WordLanes<W>::compact(in_mask, group, next);
  }
  return static_cast<size_t>(next - kept) / W;
}

// n words, a multiple of 8 bytes.
template <unsigned W>
void fill_words(uint64_t fill, size_t n, uint8_t* out) {
  constexpr uint64_t low_bits = sign_bit<W>() | (sign_bit<W>() - 1);
  uint64_t pattern = (fill & low_bits) * (~uint64_t{0} / low_bits);
  asm("" : "+r"(pattern));  // or GCC calls memset() for zeros, which takes longer for so few
  for (size_t i = 0; i < n * W; i += 8) store(out + i, pattern);
}

template <unsigned W, bool SIGNS, bool FILLS>
size_t expand_words(uint64_t fill, const uint64_t* mask, const uint64_t* minus, const uint8_t* kept, size_t n,
                    uint8_t* out) {
  const uint8_t* next = kept;
  size_t i = 0;
  while (n - i >= kGroup) {
    // Whether all are zeros is asked of some groups together: of one the answer would be hard to predict.
    const size_t groups = n - i < kAtOnce * kGroup ? (n - i) / kGroup : kAtOnce;
    uint64_t any = 0;
    for (size_t g = 0; g < groups; ++g) any |= mask[g] | (SIGNS ? minus[g] : 0);
    if (any == 0) fill_words<W>(fill, groups * kGroup, out + i * W);
    for (size_t g = 0; any != 0 && g < groups; ++g) {
      WordLanes<W>::template expand<SIGNS, FILLS>(mask[g], fill, SIGNS ? minus[g] : 0, next,
                                                  out + (i + g * kGroup) * W);
      next += W * static_cast<unsigned>(__builtin_popcountll(mask[g]));
    }
    mask += groups, minus += SIGNS ? groups : 0, i += groups * kGroup;
  }
  if (i < n) {  // apart from the loop, which GCC would mix with it
    uint8_t last[kGroup * W];
    WordLanes<W>::template expand<SIGNS, FILLS>(*mask, fill, SIGNS ? *minus : 0, next, last);
    std::memcpy(out + i * W, last, (n - i) * W);
    next += W * static_cast<unsigned>(__builtin_popcountll(*mask));
  }
  return static_cast<size_t>(next - kept) / W;
}

void find(unsigned nbytes, bool signs, const uint8_t* words, size_t n, uint64_t* kept, uint64_t* minus) {
  with_number(nbytes, [&](auto word) { find_words<sizeof word>(signs, words, n, kept, minus); });
}

size_t compact(unsigned nbytes, const uint64_t* mask, const uint8_t* words, size_t n, uint8_t* kept) {
  return with_number(nbytes, [&](auto word) { return compact_words<sizeof word>(mask, words, n, kept); });
}

size_t expand(unsigned nbytes, uint64_t fill, const uint64_t* mask, const uint64_t* minus, const uint8_t* kept,
              size_t n, uint8_t* out) {
  return with_number(nbytes, [&](auto word) {
    constexpr unsigned W = sizeof word;
    if (minus != nullptr) return expand_words<W, true, false>(0, mask, minus, kept, n, out);
    return fill != 0 ? expand_words<W, false, true>(fill, mask, minus, kept, n, out)
                     : expand_words<W, false, false>(0, mask, minus, kept, n, out);
  });
}

}  // namespace
}  // namespace tw
