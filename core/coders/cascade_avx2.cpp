#if defined(__x86_64__)
#include "coders/bytes_avx2.h"
#include "coders/cascade.h"

namespace tw {
namespace {

// PASSES: vectors without escapes are passed by. In tiers of four bits that is most of them; elsewhere no processor
// foresees which.
template <bool PASSES>
size_t expand_all(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out) {
  const __m256i lookup = repeat(names), escapes = bytes(escape);
  const uint8_t* source = next;
  unsigned mask = 0;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i digits = load(out + i);
    const __m256i escaped = _mm256_cmpeq_epi8(digits, escapes);
    const __m256i named = _mm256_shuffle_epi8(lookup, digits);
    mask = static_cast<unsigned>(_mm256_movemask_epi8(escaped));
    if (PASSES && mask == 0) {
      store(out + i, named);
      continue;
    }
    store(out + i, expand32(named, escaped, ranks_of(escaped), &source));
  }
  if (n % 32 != 0) source -= _mm_popcnt_u32(mask >> n % 32);  // what follows the n-th is no digit
  return static_cast<size_t>(source - next);
}

size_t expand(uint8_t escape, const uint8_t names[kMaxNames], const uint8_t* next, size_t n, uint8_t* out) {
  const auto expand = escape == 15 ? expand_all<true> : expand_all<false>;
  return expand(escape, names, next, n, out);
}

template <bool EXTRACTS>
size_t split_all(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
                 uint8_t* digits, uint8_t* next) {
  const __m256i starts = bytes(start), belows = bytes(below), gaps = bytes(gap), escapes = bytes(escape);
  uint8_t* target = next;
  for (size_t i = 0; i < n; i += 32) {
    const __m256i x = load(exponents + i);
    __m256i d = _mm256_sub_epi8(x, starts);
    const __m256i above = _mm256_cmpeq_epi8(_mm256_max_epu8(d, belows), d);
    d = _mm256_min_epu8(_mm256_sub_epi8(d, _mm256_and_si256(above, gaps)), escapes);
    store(digits + i, d);
    const __m256i escaped = _mm256_cmpeq_epi8(d, escapes);
    unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(escaped));
    if (EXTRACTS && n - i >= 32) {
      target = extract32(exponents + i, escaped, target);
      continue;
    }
    if (n - i < 32) mask &= (1u << (n - i)) - 1;
    target = compress32(kByteSelect.compress, mask, x, target);
  }
  return static_cast<size_t>(target - next);
}

size_t split(uint8_t start, uint8_t below, uint8_t gap, uint8_t escape, const uint8_t* exponents, size_t n,
             uint8_t* digits, uint8_t* next) {
  const auto split = kExtractsFast ? split_all<true> : split_all<false>;
  return split(start, below, gap, escape, exponents, n, digits, next);
}

}  // namespace

extern const CascadeKernels kCascadeAvx2;
const CascadeKernels kCascadeAvx2 = {expand, split};

}  // namespace tw
#endif
