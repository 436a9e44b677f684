// The step kernels over groups of 64 words; each target's source includes this once, behind its Masks: steps_masks.h
// has those of the portable targets, and what theirs must offer. Everything is local to the including source.
#pragma once
#include <cstring>

#include "transforms/dense_steps_impl.h"
#include "transforms/steps_masks.h"

namespace tw {
namespace {

size_t compare(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, LineFetcher* fetcher,
               uint64_t* masks) {
  return with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    size_t count = 0;
    for_groups<T>(words, base, n, [&](const uint8_t* a, const uint8_t* b, size_t g, uint64_t) {
      if (g % 2 == 0) fetcher->step();
      masks[g] = Masks::differ<T>(a, b);
      count += count_bits(masks[g]);
    });
    return count;
  });
}

size_t list(const uint64_t* masks, size_t n, LineFetcher* fetcher, uint32_t* places) {
  size_t count = 0;
  for (size_t first = 0; first < n; first += kMaskWords) {
    if (first % (2 * kMaskWords) == 0) fetcher->step();
    const uint64_t mask = masks[first / kMaskWords];
    const unsigned bits = count_bits(mask);
    Masks::list(mask, bits, static_cast<uint32_t>(first), places + count);
    count += bits;
  }
  return count;
}

template <class T, bool kOrdered>
inline uint64_t steps_at(const Layout& dtype, const uint8_t* words, const uint8_t* base, const uint32_t* places,
                         size_t count, LineFetcher* fetcher, uint8_t* __restrict exponents,
                         uint64_t* __restrict steps) {
  constexpr size_t kAtOnce = 256;
  const ExponentOf exponent_of(dtype);
  uint64_t largest = 0;
  for (size_t first = 0; first < count; first += kAtOnce) {
    const size_t n = count - first < kAtOnce ? count - first : kAtOnce;
    T from[kAtOnce], to[kAtOnce];
    for (size_t i = 0; i < n; ++i) {
      if (i % 2 == 0) fetcher->step();
      const size_t at = places[first + i] * sizeof(T);
      from[i] = load<T>(base + at);
      to[i] = load<T>(words + at);
    }
    T sizes[kAtOnce], all = 0;
    for (size_t i = 0; i < n; ++i) {
      const T step = static_cast<T>(order<T, kOrdered>(to[i]) - order<T, kOrdered>(from[i]));
      const T negative = static_cast<T>(step >> (8 * sizeof(T) - 1));
      const T size = static_cast<T>((step ^ static_cast<T>(0 - negative)) + negative);
      sizes[i] = size;
      to[i] = negative;
      all = static_cast<T>(all | size);
    }
    for (size_t i = 0; i < n; ++i) exponents[first + i] = exponent_of(from[i]);
    for (size_t i = 0; i < n; ++i) steps[first + i] = uint64_t{sizes[i]} << 1 | to[i];
    largest |= all;
  }
  return largest;
}

uint64_t steps(const Layout& dtype, const uint8_t* words, const uint8_t* base, const uint32_t* places, size_t count,
               LineFetcher* fetcher, uint8_t* exponents, uint64_t* steps) {
  return with_words(dtype, [&](auto word, auto ordered) {
    using T = decltype(word);
    return steps_at<T, decltype(ordered)::value>(dtype, words, base, places, count, fetcher, exponents, steps);
  });
}

// The highest 8 bits of a magnitude, which hold all of its exponent.
template <class T>
inline uint8_t top_of(T magnitude) {
  return static_cast<uint8_t>(static_cast<T>(magnitude << 1) >> (8 * sizeof(T) - 8));
}

template <class T, unsigned kClasses>
inline void divide_into(const uint8_t* base, size_t n, const StepClasses& classes, LineFetcher* fetcher,
                        ClassWords* divided) {
  uint8_t limits[kClasses] = {};
  uint64_t exists[kClasses] = {}, before[kClasses] = {};
  for (unsigned c = 0; c + 1 < classes.count; ++c) {
    limits[c] = top_of(static_cast<T>(classes.limits[c]));
    exists[c] = ~uint64_t{0};
  }
  for_groups<T>(base, base, n, [&](const uint8_t* group, const uint8_t*, size_t, uint64_t all) {
    uint8_t tops[kMaskWords];
    for (size_t i = 0; i < kMaskWords; ++i) tops[i] = top_of(load<T>(group + i * sizeof(T)));
    fetcher->step();
    uint64_t left = all;  // words of this class and of higher ones
#pragma GCC unroll 8
    for (unsigned c = 0; c < kClasses; ++c) {
      uint64_t higher = 0;
      if (c + 1 < kClasses) higher = Masks::at_least(tops, limits[c]) & left & exists[c];
      uint64_t mask = left ^ higher;
      asm("" : "+r"(mask));  // else GCC puts both numbers into a vector to store them
      divided->mask = mask;
      divided++->before = before[c];
      before[c] += count_bits(mask);
      left = higher;
    }
  });
}

void divide(const Layout& dtype, const uint8_t* base, size_t n, const StepClasses& classes, LineFetcher* fetcher,
            ClassWords* divided) {
  with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    if (divided_classes(classes.count) == kMaxClasses)
      return divide_into<T, kMaxClasses>(base, n, classes, fetcher, divided);
    divide_into<T, kFewClasses>(base, n, classes, fetcher, divided);
  });
}

template <unsigned kClasses>
inline void sort_into(const ClassWords* divided, const uint8_t class_of[256], const uint32_t* places,
                      const uint8_t* exponents, const uint64_t* steps, size_t count, LineFetcher* fetcher,
                      uint32_t ends[kMaxClasses], uint32_t* ranks, uint64_t* sorted_steps) {
  // Four ends of 16 bits in a number, so that all stay in registers.
  constexpr unsigned kEach = 4, kBits = 16;
  uint64_t low = 0, high = 0;
  for (unsigned c = 0; c < kClasses; ++c) (c < kEach ? low : high) |= uint64_t{ends[c]} << (c % kEach * kBits);
  for (size_t i = 0; i < count; ++i) {
    if (i % 2 == 0) fetcher->step();
    const uint32_t place = places[i];
    const unsigned c = class_of[exponents[i]], shift = c % kEach * kBits;
    const ClassWords& words = divided[place / kMaskWords * kClasses + c];
    const uint64_t in_high = kClasses > kEach ? 0 - uint64_t{c / kEach} : 0, one = uint64_t{1} << shift;
    const size_t at = ((low & ~in_high) | (high & in_high)) >> shift & low_bits(kBits);
    low += one & ~in_high;
    high += one & in_high;
    const uint64_t earlier = (uint64_t{1} << place % kMaskWords) - 1;
    ranks[at] = static_cast<uint32_t>(words.before) + count_bits(words.mask & earlier);
    sorted_steps[at] = steps[i];
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    ends[c] = static_cast<uint32_t>((c < kEach ? low : high) >> (c % kEach * kBits) & low_bits(kBits));
  }
}

void sort(unsigned num_classes, const ClassWords* divided, const uint8_t class_of[256], const uint32_t* places,
          const uint8_t* exponents, const uint64_t* steps, size_t count, LineFetcher* fetcher,
          uint32_t ends[kMaxClasses], uint32_t* ranks, uint64_t* sorted_steps) {
  const bool few = divided_classes(num_classes) == kFewClasses;
  const auto sort = few ? sort_into<kFewClasses> : sort_into<kMaxClasses>;
  sort(divided, class_of, places, exponents, steps, count, fetcher, ends, ranks, sorted_steps);
}

// 64 bits from bit `at` on; the word behind them is readable.
inline uint64_t bits_at(const uint64_t* bits, uint64_t at) {
  return bits[at / 64] >> at % 64 | bits[at / 64 + 1] << 1 << (63 - at % 64);
}

template <class T, unsigned kClasses>
inline Changed<kClasses> find_changed(const uint8_t* base, uint64_t present, Cursor<kClasses>* at) {
  // The target that adds compares words at once; others their upper bytes, if more than once.
  constexpr bool kByTops = kClasses > 2 && !Masks::kAdds;
  uint8_t tops[kMaskWords];
  if constexpr (kByTops) {
    for (size_t i = 0; i < kMaskWords; ++i) tops[i] = top_of(load<T>(base + i * sizeof(T)));
  }
  Changed<kClasses> changed;
  uint64_t rest = present;  // words of this class and of higher ones
#pragma GCC unroll 8
  for (unsigned c = 0; c < kClasses; ++c) {
    uint64_t higher = 0;
    if (c + 1 < kClasses) {
      const T limit = static_cast<T>(at->limits[c]);
      higher = (kByTops ? Masks::at_least(tops, top_of(limit)) : Masks::reach<T>(base, limit)) & present;
    }
    const uint64_t mask = rest & ~higher;
    uint64_t seen = at->seen[c];
    asm("" : "+r"(seen));  // else GCC keeps those of two classes in a vector, from which both are taken each time
    changed.of[c] = Masks::deposit(bits_at(at->ranks[c], seen), mask);
    at->seen[c] = seen + count_bits(mask);
    rest = higher;
  }
  return changed;
}

constexpr size_t kListed = 2048;  // words of which the changed ones are listed at a time

// 64 words at a time, all of them.
template <class M, class T, bool kOrdered, unsigned kClasses>
inline void add_groups(const uint8_t* base, size_t n, Cursor<kClasses>* at, uint8_t* words) {
  constexpr size_t nbytes = kMaskWords * sizeof(T);
  size_t g = 0;
  for (; g < n / kMaskWords; ++g) {
    fetch_ahead<T>(base + g * nbytes);
    const Changed<kClasses> changed = find_changed<T, kClasses>(base + g * nbytes, ~uint64_t{0}, at);
    M::template add<T, kOrdered, kClasses>(base + g * nbytes, changed, at, words + g * nbytes);
  }
  const size_t left = n % kMaskWords;
  if (left == 0) return;
  uint8_t last[nbytes] = {};
  std::memcpy(last, base + g * nbytes, left * sizeof(T));
  const Changed<kClasses> changed = find_changed<T, kClasses>(last, low_bits(left), at);
  M::template add<T, kOrdered, kClasses>(last, changed, at, last);
  std::memcpy(words + g * nbytes, last, left * sizeof(T));
}

template <class T>
inline void copy_group(const uint8_t* group, uint8_t* out) {
  typedef uint64_t Vector __attribute__((vector_size(32)));
  for (size_t i = 0; i < kMaskWords * sizeof(T); i += sizeof(Vector)) {
    Vector some;
    std::memcpy(&some, group + i, sizeof some);
    std::memcpy(out + i, &some, sizeof some);
  }
}

// The next step of the class of a word. One or two classes stay in registers.
template <class T, unsigned kClasses>
inline T next_step(T word, Cursor<kClasses>* at) {
  const auto reaches = [&](unsigned t) { return magnitude_of(word) >= static_cast<T>(at->limits[t]); };
  if constexpr (kClasses == 2) {
    size_t high = reaches(0) ? sizeof(T) : 0;
    asm("" : "+r"(high));  // else GCC branches, and no processor foresees classes
    const ptrdiff_t apart = (at->steps[1] - at->steps[0]) & (0 - static_cast<ptrdiff_t>(high != 0));
    const T step = load<T>(at->steps[0] + apart);
    at->steps[1] += high;
    at->steps[0] += sizeof(T) - high;
    return step;
  } else {
    unsigned c = 0;
    for (unsigned t = 0; t + 1 < kClasses; ++t) c += reaches(t);
    const T step = load<T>(at->steps[c]);
    at->steps[c] += sizeof(T);
    return step;
  }
}

// The changed words one by one, kListed words at most. They are listed first: how many of 64 changed, no processor
// foresees.
template <class T, bool kOrdered, unsigned kClasses>
inline void add_listed(const uint8_t* base, size_t n, Cursor<kClasses>* cursor, uint8_t* words) {
  Cursor<kClasses> own = *cursor;  // which no pointer to words can reach
  Cursor<kClasses>* const at = &own;
  uint32_t places[kListed + kMaskWords];
  size_t count = 0;
  for_groups<T>(base, base, n, [&](const uint8_t* group, const uint8_t*, size_t g, uint64_t present) {
    fetch_ahead<T>(base + g * kMaskWords * sizeof(T));
    const Changed<kClasses> changed = find_changed<T, kClasses>(group, present, at);
    uint64_t mask = 0;
    for (unsigned c = 0; c < kClasses; ++c) mask |= changed.of[c];
    const unsigned bits = count_bits(mask);
    Masks::list(mask, bits, static_cast<uint32_t>(g * kMaskWords), places + count);
    count += bits;
    if (words == base) return;
    uint8_t* const out = words + g * kMaskWords * sizeof(T);
    if (present == ~uint64_t{0}) {
      copy_group<T>(group, out);
    } else {
      std::memcpy(out, group, n % kMaskWords * sizeof(T));
    }
  });
  for (size_t i = 0; i < count; ++i) {
    uint8_t* const place = words + places[i] * sizeof(T);
    const T word = load<T>(place);
    const T sum = static_cast<T>(order<T, kOrdered>(word) + next_step(word, at));
    store(place, order<T, kOrdered>(sum));
  }
  *cursor = own;
}

template <class T, bool kOrdered, unsigned kClasses>
inline void apply_classes(const uint8_t* base, size_t n, SparseSteps* sparse, uint8_t* words) {
  Cursor<kClasses> at;
  for (unsigned c = 0; c < kClasses; ++c) {
    at.limits[c] = c + 1 < kClasses ? sparse->classes.limits[c] : 0;
    at.ranks[c] = sparse->ranks[c];
    at.steps[c] = sparse->steps[c];
    at.seen[c] = sparse->seen[c];
  }
  if constexpr (Masks::kAdds) {
    add_groups<Masks, T, kOrdered, kClasses>(base, n, &at, words);
  } else {
    for (size_t first = 0; first < n; first += kListed) {
      const size_t count = n - first < kListed ? n - first : kListed;
      add_listed<T, kOrdered, kClasses>(base + first * sizeof(T), count, &at, words + first * sizeof(T));
    }
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    sparse->steps[c] = at.steps[c];
    sparse->seen[c] = at.seen[c];
  }
}

// Word by word, for the layouts with classes that no dtype of the table has.
template <class T, bool kOrdered>
inline void apply_singly(const uint8_t* base, size_t n, SparseSteps* sparse, uint8_t* words) {
  for (size_t i = 0; i < n; ++i) {
    T word = load<T>(base + i * sizeof(T));
    unsigned c = 0;
    while (c + 1 < sparse->classes.count && magnitude_of(word) >= sparse->classes.limits[c]) ++c;
    const uint64_t rank = sparse->seen[c]++;
    if ((sparse->ranks[c][rank / 64] >> rank % 64 & 1) != 0) {
      word = order<T, kOrdered>(static_cast<T>(order<T, kOrdered>(word) + load<T>(sparse->steps[c])));
      sparse->steps[c] += sizeof(T);
    }
    store(words + i * sizeof(T), word);
  }
}

void apply_sparse(const Layout& dtype, const uint8_t* base, size_t n, SparseSteps* sparse, uint8_t* words) {
  with_words(dtype, [&](auto word, auto ordered) {
    using T = decltype(word);
    constexpr bool kOrdered = decltype(ordered)::value;
    if constexpr (sizeof(T) < 8 && kOrdered) {
      switch (sparse->classes.count) {
        case 2:
          return apply_classes<T, kOrdered, 2>(base, n, sparse, words);
        case 3:
          return apply_classes<T, kOrdered, 3>(base, n, sparse, words);
        case 4:
          return apply_classes<T, kOrdered, 4>(base, n, sparse, words);
        case 5:
          return apply_classes<T, kOrdered, 5>(base, n, sparse, words);
        case 6:
          return apply_classes<T, kOrdered, 6>(base, n, sparse, words);
        case 7:
          return apply_classes<T, kOrdered, 7>(base, n, sparse, words);
        case 8:
          return apply_classes<T, kOrdered, 8>(base, n, sparse, words);
        default:
          break;
      }
    }
    if (sparse->classes.count > 1) return apply_singly<T, kOrdered>(base, n, sparse, words);
    apply_classes<T, kOrdered, 1>(base, n, sparse, words);
  });
}

constexpr StepKernels kStepKernels = {compare, list, steps, divide, sort, apply_sparse, classify, measure, apply_dense};

}  // namespace
}  // namespace tw
