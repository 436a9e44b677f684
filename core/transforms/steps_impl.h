// The step kernels over groups of 64 words; each target's source includes this once, behind its Masks: steps_masks.h
// has those of the portable targets, and what theirs must offer. Everything is local to the including source.
#pragma once
#include <cstring>

#include "transforms/steps_masks.h"

namespace tw {
namespace {

// body(words, base, g, mask of what there is) for each 64 words. The last ones, if they are fewer, are handed out in a
// copy.
template <class T, class Body>
inline void for_groups(const uint8_t* words, const uint8_t* base, size_t n, Body&& body) {
  constexpr size_t nbytes = kMaskWords * sizeof(T);
  size_t g = 0;
  for (; g < n / kMaskWords; ++g) body(words + g * nbytes, base + g * nbytes, g, ~uint64_t{0});
  const size_t left = n % kMaskWords;
  if (left == 0) return;
  uint8_t last_words[nbytes] = {}, last_base[nbytes] = {};
  std::memcpy(last_words, words + g * nbytes, left * sizeof(T));
  std::memcpy(last_base, base + g * nbytes, left * sizeof(T));
  body(last_words, last_base, g, low_bits(left));
}

size_t compare(const Dtype& dtype, const uint8_t* words, const uint8_t* base, size_t n, uint64_t* masks) {
  return with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    size_t count = 0;
    for_groups<T>(words, base, n, [&](const uint8_t* a, const uint8_t* b, size_t g, uint64_t) {
      masks[g] = Masks::differ<T>(a, b);
      count += count_bits(masks[g]);
    });
    return count;
  });
}

void reach(const Dtype& dtype, const uint8_t* base, size_t n, const StepClasses& classes, uint64_t* masks) {
  with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    if constexpr (sizeof(T) < 8) {
      for_groups<T>(base, base, n, [&](const uint8_t* group, const uint8_t*, size_t, uint64_t all) {
        for (unsigned c = 0; c + 1 < classes.count; ++c) {
          *masks++ = Masks::reach<T>(group, static_cast<T>(classes.limits[c])) & all;
        }
      });
    }
  });
}

// 64 bits from bit `at` on; the word behind them is readable.
inline uint64_t bits_at(const uint64_t* bits, uint64_t at) {
  return bits[at / 64] >> at % 64 | bits[at / 64 + 1] << 1 << (63 - at % 64);
}

template <class T, unsigned kClasses>
inline Changed find_changed(const uint8_t* base, uint64_t present, SparseSteps* sparse) {
  Changed changed;
  changed.all = 0;
  uint64_t rest = present;  // words of this class and of higher ones
#pragma GCC unroll 8
  for (unsigned c = 0; c < kClasses; ++c) {
    uint64_t higher = 0;
    if constexpr (sizeof(T) < 8) {
      if (c + 1 < kClasses) higher = Masks::reach<T>(base, static_cast<T>(sparse->classes.limits[c])) & present;
    }
    const uint64_t mask = rest & ~higher;
    changed.of[c] = Masks::deposit(bits_at(sparse->ranks[c], sparse->seen[c]), mask);
    changed.all |= changed.of[c];
    sparse->seen[c] += count_bits(mask);
    rest = higher;
  }
  return changed;
}

template <class T, bool kOrdered, unsigned kClasses>
inline void apply_classes(const uint8_t* base, size_t n, SparseSteps* state, uint8_t* words) {
  constexpr size_t nbytes = kMaskWords * sizeof(T);
  SparseSteps sparse = *state;  // to the compiler, nothing that is stored changes it
  size_t g = 0;
  for (; g < n / kMaskWords; ++g) {
    const Changed changed = find_changed<T, kClasses>(base + g * nbytes, ~uint64_t{0}, &sparse);
    Masks::add<T, kOrdered, kClasses>(base + g * nbytes, changed, &sparse, words + g * nbytes);
  }
  const size_t left = n % kMaskWords;
  if (left != 0) {
    uint8_t last[nbytes] = {};
    std::memcpy(last, base + g * nbytes, left * sizeof(T));
    const Changed changed = find_changed<T, kClasses>(last, low_bits(left), &sparse);
    Masks::add<T, kOrdered, kClasses>(last, changed, &sparse, last);
    std::memcpy(words + g * nbytes, last, left * sizeof(T));
  }
  *state = sparse;
}

void apply_sparse(const Dtype& dtype, const uint8_t* base, size_t n, SparseSteps* sparse, uint8_t* words) {
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
    apply_classes<T, kOrdered, 1>(base, n, sparse, words);
  });
}

void classify(const Dtype& dtype, const uint8_t* base, size_t n, const StepClasses& classes, unsigned shift,
              uint8_t* out) {
  std::memset(out, 0, n);
  with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    struct __attribute__((packed, may_alias)) Word {
      T value;
    };
    const Word* words = reinterpret_cast<const Word*>(base);
    const uint8_t one = static_cast<uint8_t>(1u << shift);
    for (unsigned c = 0; c + 1 < classes.count; ++c) {
      const T limit = static_cast<T>(classes.limits[c]);
      for (size_t i = 0; i < n; ++i) {
        out[i] = static_cast<uint8_t>(out[i] + (magnitude_of(words[i].value) >= limit ? one : 0));
      }
    }
  });
}

// docs/format.md, kind dense. A float's bits below its sign are the exponent and, below it, the bit after the leading
// one: the symbol of a size over 1, but for the exponent's bias.
template <class T>
inline uint8_t symbol_of(T size) {
  if constexpr (sizeof(T) == 8) {
    const unsigned length = bit_length(size);
    return static_cast<uint8_t>(length < 3 ? size : 2 * (length - 1) + (size >> (length - 2) & 1));
  } else {
    // A float holds 24 bits: of larger sizes the lowest 8 do not matter, and would only round up.
    const uint32_t wide = size, beyond = sizeof(T) == 4 && wide >= 1u << 24 ? 8 : 0;
    const float number = static_cast<float>(static_cast<int32_t>(wide >> beyond));
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const uint32_t symbol = (bits >> 22) - 254 + 2 * beyond;
    return static_cast<uint8_t>(wide < 2 ? wide : symbol);
  }
}

template <class T, bool kOrdered>
inline size_t measure_words(const uint8_t* words, const uint8_t* base, size_t n, uint8_t* symbols, uint64_t* negative,
                            uint64_t* changed, uint64_t* large, uint8_t* large_sizes) {
  size_t num_large = 0;
  for_groups<T>(words, base, n, [&](const uint8_t* a, const uint8_t* b, size_t g, uint64_t) {
    T sizes[kMaskWords], old[kMaskWords];
    uint8_t signs[kMaskWords], found[kMaskWords];
    std::memcpy(sizes, a, sizeof sizes);
    std::memcpy(old, b, sizeof old);
    for (size_t i = 0; i < kMaskWords; ++i) {
      const T step = static_cast<T>(order<T, kOrdered>(sizes[i]) - order<T, kOrdered>(old[i]));
      const T sign = static_cast<T>(0 - (step >> (8 * sizeof(T) - 1)));
      signs[i] = static_cast<uint8_t>(sign);
      sizes[i] = static_cast<T>((step ^ sign) - sign);
    }
    for (size_t i = 0; i < kMaskWords; ++i) found[i] = symbol_of(sizes[i]);
    negative[g] = Masks::above(signs, 0);
    changed[g] = Masks::above(found, 0);
    large[g] = Masks::above(found, 3);
    std::memcpy(symbols + g * kMaskWords, found, n - g * kMaskWords < kMaskWords ? n - g * kMaskWords : kMaskWords);
    for (uint64_t left = large[g]; left != 0; left &= left - 1) {
      store(large_sizes + num_large++ * sizeof(T), sizes[trailing_zeros(left, 0)]);
    }
  });
  return num_large;
}

size_t measure(const Dtype& dtype, const uint8_t* words, const uint8_t* base, size_t n, uint8_t* symbols,
               uint64_t* negative, uint64_t* changed, uint64_t* large, uint8_t* large_sizes) {
  return with_words(dtype, [&](auto word, auto ordered) {
    return measure_words<decltype(word), decltype(ordered)::value>(words, base, n, symbols, negative, changed, large,
                                                                   large_sizes);
  });
}

void find_symbols(const uint8_t* symbols, size_t n, uint64_t* changed, uint64_t* large) {
  for_groups<uint8_t>(symbols, symbols, n, [&](const uint8_t* group, const uint8_t*, size_t g, uint64_t) {
    changed[g] = Masks::above(group, 0);
    large[g] = Masks::above(group, 3);
  });
}

template <class T, bool kOrdered>
inline const uint8_t* join_words(const uint8_t* base, const uint8_t* symbols, uint64_t negative, uint64_t large,
                                 const uint8_t* large_sizes, uint8_t* words) {
  T sizes[kMaskWords], sums[kMaskWords];
  uint8_t signs[kMaskWords];
  for (size_t i = 0; i < kMaskWords; ++i) sizes[i] = symbols[i];
  for (; large != 0; large &= large - 1, large_sizes += sizeof(T)) {
    sizes[trailing_zeros(large, 0)] = load<T>(large_sizes);
  }
  // Each byte gets its bit: the byte of 8 bits, spread over 8 lanes, masked and compared.
  for (size_t i = 0; i < kMaskWords; i += 8) {
    const uint64_t spread = (negative >> i & 0xff) * 0x0101010101010101u & 0x8040201008040201u;
    const uint64_t ones = (spread + 0x7f7f7f7f7f7f7f7fu) | spread;  // the highest bit where there is any
    store(signs + i, (ones >> 7 & 0x0101010101010101u) * 0xff);
  }
  std::memcpy(sums, base, sizeof sums);
  for (size_t i = 0; i < kMaskWords; ++i) {
    const T sign = static_cast<T>(static_cast<std::make_signed_t<T>>(static_cast<int8_t>(signs[i])));
    sums[i] = order<T, kOrdered>(static_cast<T>(order<T, kOrdered>(sums[i]) + ((sizes[i] ^ sign) - sign)));
  }
  std::memcpy(words, sums, sizeof sums);
  return large_sizes;
}

void apply_dense(const Dtype& dtype, const uint8_t* base, size_t n, const uint8_t* symbols, const uint64_t* negative,
                 const uint64_t* large, const uint8_t* large_sizes, uint8_t* words) {
  with_words(dtype, [&](auto word, auto ordered) {
    using T = decltype(word);
    constexpr bool kOrdered = decltype(ordered)::value;
    constexpr size_t nbytes = kMaskWords * sizeof(T);
    size_t g = 0;
    for (; g < n / kMaskWords; ++g) {
      large_sizes = join_words<T, kOrdered>(base + g * nbytes, symbols + g * kMaskWords, negative[g], large[g],
                                            large_sizes, words + g * nbytes);
    }
    const size_t left = n % kMaskWords;
    if (left == 0) return;
    uint8_t last[nbytes] = {}, last_symbols[kMaskWords] = {};
    std::memcpy(last, base + g * nbytes, left * sizeof(T));
    std::memcpy(last_symbols, symbols + g * kMaskWords, left);
    join_words<T, kOrdered>(last, last_symbols, negative[g], large[g], large_sizes, last);
    std::memcpy(words + g * nbytes, last, left * sizeof(T));
  });
}

constexpr StepKernels kStepKernels = {compare,      reach,       apply_sparse,   classify,      measure,
                                      find_symbols, apply_dense, Masks::deposit, Masks::extract};

}  // namespace
}  // namespace tw
