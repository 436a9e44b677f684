// The step kernels of kind dense; steps_impl.h includes this, behind a target's Masks. Everything is local to the
// including source.
#pragma once
#include <cstring>
#include <limits>

#include "transforms/steps_masks.h"

namespace tw {
namespace {

// As the Classifier of a target's Dense.
template <class T>
class PortableClassifier {
 public:
  PortableClassifier(const Layout&, const StepClasses& classes, unsigned shift) : classes_(classes), shift_(shift) {}

  void operator()(const uint8_t* group, uint8_t* out) const {
    // Magnitudes are not negative as signed numbers, which is what vectors compare best.
    using Signed = std::make_signed_t<T>;
    typedef Signed Vector __attribute__((vector_size(32)));
    constexpr size_t kLanes = sizeof(Vector) / sizeof(T);
    Signed counts[kMaskWords];
    for (size_t i = 0; i < kMaskWords; i += kLanes) {
      Vector magnitudes, sum = {};
      std::memcpy(&magnitudes, group + i * sizeof(T), sizeof magnitudes);
      magnitudes &= std::numeric_limits<Signed>::max();
      for (unsigned c = 0; c + 1 < classes_.count; ++c) {
        sum -= magnitudes > static_cast<Signed>(static_cast<Signed>(classes_.limits[c]) - 1);
      }
      std::memcpy(counts + i, &sum, sizeof sum);
    }
    for (size_t i = 0; i < kMaskWords; ++i) out[i] = static_cast<uint8_t>(out[i] | counts[i] << shift_);
  }

 private:
  const StepClasses& classes_;
  const unsigned shift_;
};

template <class Classifier, class T>
void classify_words(const Classifier& sort, const uint8_t* base, size_t n, uint8_t* out) {
  for_groups<T>(base, base, n, [&](const uint8_t* group, const uint8_t*, size_t g, uint64_t present) {
    fetch_ahead<T>(base + g * kMaskWords * sizeof(T));
    uint8_t* const to = out + g * kMaskWords;
    if (present == ~uint64_t{0}) return sort(group, to);
    uint8_t last[kMaskWords];
    std::memcpy(last, to, count_bits(present));
    sort(group, last);
    std::memcpy(to, last, count_bits(present));
  });
}

template <class M, class T>
void classify_as(const Layout& dtype, const uint8_t* base, size_t n, const StepClasses& classes, unsigned shift,
                 uint8_t* out) {
  if constexpr (M::template kDense<T>) {
    using Classifier = typename M::Dense::Classifier;
    classify_words<Classifier, T>(Classifier(dtype, classes, shift), base, n, out);
  } else {
    classify_words<PortableClassifier<T>, T>(PortableClassifier<T>(dtype, classes, shift), base, n, out);
  }
}

void classify(const Layout& dtype, const uint8_t* base, size_t n, const StepClasses& classes, unsigned shift,
              uint8_t* out) {
  if (classes.count == 1) return;
  with_words(dtype, [&](auto word, auto) { classify_as<Masks, decltype(word)>(dtype, base, n, classes, shift, out); });
}

// The symbols of 64 sizes: docs/format.md, kind dense.
inline void find_symbols_of(const uint64_t sizes[kMaskWords], uint8_t symbols[kMaskWords]) {
  for (size_t i = 0; i < kMaskWords; ++i) {
    const unsigned length = bit_length(sizes[i]);
    symbols[i] = static_cast<uint8_t>(length < 3 ? sizes[i] : 2 * (length - 1) + (sizes[i] >> (length - 2) & 1));
  }
}

// A float's bits below its sign are the exponent and, below it, the bit after the leading one: the symbol of a size
// over 1, but for the exponent's bias. A float holds 24 bits; of larger sizes the lowest 8 do not matter, and would
// only round up. Loops without branches, for the vectoriser.
template <class T>
inline void find_symbols_of(const T sizes[kMaskWords], uint8_t symbols[kMaskWords]) {
  float numbers[kMaskWords];
  uint32_t bits[kMaskWords];
  for (size_t i = 0; i < kMaskWords; ++i) {
    const uint32_t size = sizes[i], large = sizeof(T) == 4 ? 0u - (size >= 1u << 24) : 0u;
    numbers[i] = static_cast<float>(static_cast<int32_t>((size & ~large) | (size >> 8 & large)));
  }
  std::memcpy(bits, numbers, sizeof bits);
  for (size_t i = 0; i < kMaskWords; ++i) {
    const uint32_t size = sizes[i], large = sizeof(T) == 4 ? 0u - (size >= 1u << 24) : 0u, one = 0u - (size < 2);
    symbols[i] = static_cast<uint8_t>(((bits[i] >> 22) - 254 + (16 & large)) & ~one) | static_cast<uint8_t>(size & one);
  }
}

// Width of the low bits of a size whose symbol is 4 or more.
inline unsigned low_width(uint8_t symbol) { return symbol / 2 - 1; }

// As the Measurer of a target's Dense.
template <class T>
class PortableMeasurer {
 public:
  explicit PortableMeasurer(BitSink* low) : low_(low) {}

  // Symbols of 64 words. Returns a mask of the steps that are negative.
  template <bool kOrdered>
  uint64_t measure(const uint8_t* words, const uint8_t* base, uint8_t symbols[kMaskWords]) {
    T sizes[kMaskWords], old[kMaskWords];
    uint8_t signs[kMaskWords];
    std::memcpy(sizes, words, sizeof sizes);
    std::memcpy(old, base, sizeof old);
    for (size_t i = 0; i < kMaskWords; ++i) {
      const T step = static_cast<T>(order<T, kOrdered>(sizes[i]) - order<T, kOrdered>(old[i]));
      const T sign = static_cast<T>(0 - (step >> (8 * sizeof(T) - 1)));
      signs[i] = static_cast<uint8_t>(sign);
      sizes[i] = static_cast<T>((step ^ sign) - sign);
    }
    find_symbols_of(sizes, symbols);
    for (uint64_t large = Masks::at_least(symbols, 4); large != 0; large &= large - 1) {
      const unsigned i = trailing_zeros(large, 0), width = low_width(symbols[i]);
      low_->put_long(sizes[i] & ((uint64_t{1} << width) - 1), width);
    }
    return Masks::at_least(signs, 1);
  }
  // The low bits of all sizes so far, if they are not written yet.
  void write() {}

 private:
  BitSink* const low_;
};

template <class M, class T>
auto make_measurer(BitSink* low) {
  if constexpr (M::template kDense<T>) {
    return typename M::Dense::Measurer(low);
  } else {
    return PortableMeasurer<T>(low);
  }
}

template <class M, class T, bool kOrdered>
inline DenseBits measure_words(const uint8_t* words, const uint8_t* base, size_t n, const FetchPair& upcoming,
                               uint8_t* symbols, uint8_t* signs, uint8_t* low) {
  Prefetcher<kSecondLevel> next_words(upcoming.words, ceil_div(n, kMaskWords));
  Prefetcher<kSecondLevel> next_base(upcoming.base, ceil_div(n, kMaskWords));
  BitSink signs_sink(signs), low_sink(low);
  auto measurer = make_measurer<M, T>(&low_sink);
  for_groups<T>(words, base, n, [&](const uint8_t* a, const uint8_t* b, size_t g, uint64_t present) {
    next_words.step();
    next_base.step();
    uint8_t last[kMaskWords];
    uint8_t* const found = present == ~uint64_t{0} ? symbols + g * kMaskWords : last;
    const uint64_t negative = measurer.template measure<kOrdered>(a, b, found);
    const uint64_t changed = Masks::at_least(found, 1);
    signs_sink.put_long(Masks::extract(negative, changed), count_bits(changed));
    if (found == last) std::memcpy(symbols + g * kMaskWords, last, count_bits(present));
  });
  measurer.write();
  return {signs_sink.finish(signs), low_sink.finish(low)};
}

DenseBits measure(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, const FetchPair& upcoming,
                  uint8_t* symbols, uint8_t* signs, uint8_t* low) {
  return with_words(dtype, [&](auto word, auto ordered) {
    return measure_words<Masks, decltype(word), decltype(ordered)::value>(words, base, n, upcoming, symbols, signs,
                                                                          low);
  });
}

// Reads bits where enough of them are readable.
inline uint64_t take(const uint8_t* src, uint64_t* at, unsigned width) {
  const uint8_t* const from = src + *at / 8;
  const unsigned shift = *at % 8;
  *at += width;
  const uint64_t bits = load<uint64_t>(from) >> shift | uint64_t{from[8]} << 1 << (63 - shift);
  return width == 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

// The sizes of 64 words. False if there is one that no word can move by.
template <class T>
inline bool read_sizes(const uint8_t symbols[kMaskWords], uint64_t negative, const uint8_t* low, uint64_t* at,
                       T sizes[kMaskWords]) {
  constexpr unsigned kHighest = 2 * (8 * sizeof(T) - 1);  // the symbol of the largest size
  if (Masks::at_least(symbols, kHighest + 1) != 0) return false;
  for (size_t i = 0; i < kMaskWords; ++i) sizes[i] = symbols[i];
  for (uint64_t large = Masks::at_least(symbols, 4); large != 0; large &= large - 1) {
    const unsigned i = trailing_zeros(large, 0), width = low_width(symbols[i]);
    const uint64_t bits = take(low, at, width);
    if (symbols[i] == kHighest && (bits != 0 || (negative >> i & 1) == 0)) return false;
    sizes[i] = static_cast<T>(uint64_t{2u | (symbols[i] & 1u)} << width | bits);
  }
  return true;
}

template <class T, bool kOrdered>
inline void move_group(const uint8_t* base, const T sizes[kMaskWords], uint64_t negative, uint8_t* words) {
  T sums[kMaskWords];
  uint8_t signs[kMaskWords];
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
}

// The signs of the words that changed among 64.
inline uint64_t take_signs(uint64_t changed, BitSource* signs) {
  constexpr size_t kNbytes = kMaskWords / 8 + 1;
  uint8_t copy[kNbytes];
  uint64_t at = signs->at % 8;
  const uint64_t bits = take(next_bytes<kNbytes>(*signs, copy), &at, 64);
  signs->at += count_bits(changed);
  return Masks::deposit(bits, changed);
}

// 64 words, all of them.
template <class T, bool kOrdered>
inline bool apply_group(const uint8_t* base, const uint8_t symbols[kMaskWords], BitSource* signs, BitSource* low,
                        uint8_t* words) {
  constexpr size_t kNbytes = kMaskWords * sizeof(T) + 8;
  uint8_t copy[kNbytes];
  const uint64_t negative = take_signs(Masks::at_least(symbols, 1), signs);
  uint64_t at = low->at % 8;
  const uint64_t first = at;
  T sizes[kMaskWords];
  if (!read_sizes(symbols, negative, next_bytes<kNbytes>(*low, copy), &at, sizes)) return false;
  low->at += at - first;
  move_group<T, kOrdered>(base, sizes, negative, words);
  return true;
}

// Whole groups by a target's Mover, up to those that it leaves. Returns the words that are done.
template <class Mover, bool kOrdered>
inline size_t move_words(const uint8_t* base, size_t n, const uint8_t* symbols, BitSource* signs, BitSource* low,
                         uint8_t* words) {
  Mover mover;
  size_t done = 0;
  while (n - done >= kMaskWords) {
    const size_t count = n - done < Mover::kMaxWords ? (n - done) / kMaskWords * kMaskWords : Mover::kMaxWords;
    if (!mover.read(symbols + done, count, low)) break;
    for (const size_t end = done + count; done < end; done += kMaskWords) {
      const uint64_t negative = take_signs(Masks::at_least(symbols + done, 1), signs);
      mover.template move<kOrdered>(base + 2 * done, symbols + done, negative, words + 2 * done);
    }
  }
  return done;
}

template <class M, class T, bool kOrdered>
inline bool apply_words(const uint8_t* base, size_t n, const uint8_t* symbols, BitSource* signs, BitSource* low,
                        uint8_t* words) {
  constexpr size_t nbytes = kMaskWords * sizeof(T);
  size_t g = 0;
  if constexpr (M::template kDense<T>) {
    g = move_words<typename M::Dense::Mover, kOrdered>(base, n, symbols, signs, low, words) / kMaskWords;
  }
  for (; g < n / kMaskWords; ++g) {
    if (!apply_group<T, kOrdered>(base + g * nbytes, symbols + g * kMaskWords, signs, low, words + g * nbytes)) {
      return false;
    }
  }
  const size_t left = n % kMaskWords;
  if (left == 0) return true;
  uint8_t last[nbytes] = {}, last_symbols[kMaskWords] = {};
  std::memcpy(last, base + g * nbytes, left * sizeof(T));
  std::memcpy(last_symbols, symbols + g * kMaskWords, left);
  if (!apply_group<T, kOrdered>(last, last_symbols, signs, low, last)) return false;
  std::memcpy(words + g * nbytes, last, left * sizeof(T));
  return true;
}

bool apply_dense(const Layout& dtype, const uint8_t* base, size_t n, const uint8_t* symbols, BitSource* signs,
                 BitSource* low, uint8_t* words) {
  return with_words(dtype, [&](auto word, auto ordered) {
    return apply_words<Masks, decltype(word), decltype(ordered)::value>(base, n, symbols, signs, low, words);
  });
}

}  // namespace
}  // namespace tw
