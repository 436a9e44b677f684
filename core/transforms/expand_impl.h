// What the expand kernels of all targets share: 64 words after the other, each with one number of the mask. A target
// defines Lanes<W> for words of W bytes, whose functions handle 64 words:
//   find(words, magnitude, &minus): the mask of words with a bit of `magnitude`; minus: of those with their highest bit
//   compact(mask, words, out), expand<SIGNS>(mask, fill, minus, kept, out): as in expand.h; minus counts if SIGNS
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

template <unsigned W>
struct Lanes;

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
    const uint64_t mask = Lanes<W>::find(group, magnitude, &negative);
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
    next = Lanes<W>::compact(in_mask, group, next);
  }
  return static_cast<size_t>(next - kept) / W;
}

template <unsigned W>
void fill_words(uint64_t fill, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) std::memcpy(out + i * W, &fill, W);
}

template <unsigned W, bool SIGNS>
size_t expand_words(uint64_t fill, const uint64_t* mask, const uint64_t* minus, const uint8_t* kept, size_t n,
                    uint8_t* out) {
  const uint8_t* next = kept;
  for (size_t i = 0; i < n; i += kGroup) {
    const size_t count = n - i < kGroup ? n - i : kGroup;
    const uint64_t in_mask = mask[i / kGroup];
    const uint64_t negative = SIGNS ? minus[i / kGroup] : 0;
    uint8_t* group = out + i * W;
    if (in_mask == 0 && negative == 0) {
      fill_words<W>(fill, count, group);
    } else if (count == kGroup) {
      Lanes<W>::template expand<SIGNS>(in_mask, fill, negative, next, group);
    } else {
      uint8_t last[kGroup * W];
      Lanes<W>::template expand<SIGNS>(in_mask, fill, negative, next, last);
      std::memcpy(group, last, count * W);
    }
    next += W * static_cast<unsigned>(__builtin_popcountll(in_mask));
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
    return minus != nullptr ? expand_words<W, true>(fill, mask, minus, kept, n, out)
                            : expand_words<W, false>(fill, mask, minus, kept, n, out);
  });
}

}  // namespace
}  // namespace tw
