// The word kernels, written for the compiler's vectoriser: each target's source includes this once. Everything is
// local to the including source.
#pragma once
#include <cstring>
#include <type_traits>

#include "common/bits.h"
#include "common/split.h"
#include "transforms/fields_impl.h"
#if defined(__AVX2__)
#include "common/x86_bytes.h"
#endif

namespace tw {
namespace {

template <class F>
inline void split_run(F format, const uint8_t* __restrict words, size_t n, uint8_t* __restrict exponents,
                      uint8_t* __restrict sign_mantissas) {
  using Word = typename F::Word;
  using Rest = typename F::Rest;
  for (size_t i = 0; i < n; ++i) {
    const Word word = as<Word>(words)[i].value;
    exponents[i] = format.exponent(word);
    as<Rest>(sign_mantissas)[i].value = format.rest(word);
  }
}

// BF16 byte by byte, as below.
template <>
inline void split_run(Bf16, const uint8_t* __restrict words, size_t n, uint8_t* __restrict exponents,
                      uint8_t* __restrict sign_mantissas) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t low = words[2 * i], high = words[2 * i + 1];
    exponents[i] = static_cast<uint8_t>(high << 1 | low >> 7);
    sign_mantissas[i] = static_cast<uint8_t>((high & 0x80) | (low & 0x7f));
  }
}

template <class T>
inline uint64_t or_run(const uint8_t* numbers, size_t n) {
  T all = 0;
  for (size_t i = 0; i < n; ++i) all = static_cast<T>(all | as<T>(numbers)[i].value);
  return all;
}

template <class F>
inline void split_runs(F format, const uint8_t* words, size_t n, uint8_t* exponents, uint8_t* sign_mantissas,
                       uint64_t* runs) {
  using Rest = typename F::Rest;
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = n - i < kRun ? n - i : kRun;
    split_run(format, words + i * sizeof(typename F::Word), count, exponents + i, sign_mantissas + i * sizeof(Rest));
    *runs++ = or_run<Rest>(sign_mantissas + i * sizeof(Rest), count);
  }
}

void split(const Layout& dtype, const uint8_t* words, size_t n, uint8_t* exponents, uint8_t* sign_mantissas,
           uint64_t* runs) {
  with_split(dtype, [&](auto format) { split_runs(format, words, n, exponents, sign_mantissas, runs); });
}

void or_runs(unsigned nbytes, const uint8_t* numbers, size_t n, uint64_t* runs) {
  with_number(nbytes, [&](auto number) {
    using T = decltype(number);
    for (size_t i = 0; i < n; i += kRun) *runs++ = or_run<T>(numbers + i * sizeof(T), n - i < kRun ? n - i : kRun);
  });
}

// The sign above `low` bits to the uppermost bit of a word. The sum carries it there.
template <class Word, unsigned low>
inline Word move_sign(Word sign_mantissa) {
  constexpr Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1)), below = static_cast<Word>(Word{1} << low);
  constexpr Word mask = static_cast<Word>(sign | (below - 1)), carry = static_cast<Word>(sign - below);
  return static_cast<Word>((sign_mantissa + carry) & mask);
}

// For layouts that the compiler does not know.
template <class F>
inline void assemble_any(F format, const uint8_t* __restrict symbols, uint16_t base, unsigned k,
                         const uint8_t* __restrict sign_mantissas, size_t n, uint8_t* __restrict words) {
  using Word = typename F::Word;
  using Rest = typename F::Rest;
  for (size_t i = 0; i < n; ++i) {
    const Word x = static_cast<Word>(symbols[i] + base);
    as<Word>(words)[i].value = format.word(x, as<Rest>(sign_mantissas)[i].value, k);
  }
}

// For layouts that it does.
template <class F, unsigned K>
inline void assemble_all(const uint8_t* __restrict symbols, uint16_t base, const uint8_t* __restrict sign_mantissas,
                         size_t n, uint8_t* __restrict words) {
  using Word = typename F::Word;
  using Rest = typename F::Rest;
  if constexpr (std::is_same_v<F, I8> || std::is_same_v<F, U8>) {
    const uint8_t low_base = static_cast<uint8_t>(base);
    for (size_t i = 0; i < n; ++i) {
      words[i] = static_cast<uint8_t>((static_cast<uint8_t>(symbols[i] + low_base) << (4 - K) | sign_mantissas[i]) ^
                                      F::kInverted);
    }
    return;
  }
  constexpr unsigned kBelow = F::layout().exponent_shift();
  constexpr unsigned low = kBelow < K ? 0 : kBelow - K;  // bits below the sign
  for (size_t i = 0; i < n; ++i) {
    const Word x = static_cast<Word>(symbols[i] + base);
    as<Word>(words)[i].value = static_cast<Word>(move_sign<Word, low>(as<Rest>(sign_mantissas)[i].value) | x << low);
  }
}

// BF16 without extra bits, byte by byte: half of a word's bits each, so no byte is widened.
template <>
inline void assemble_all<Bf16, 0>(const uint8_t* __restrict symbols, uint16_t base,
                                  const uint8_t* __restrict sign_mantissas, size_t n, uint8_t* __restrict words) {
  const uint8_t low_base = static_cast<uint8_t>(base);
  for (size_t i = 0; i < n; ++i) {
    const uint8_t x = static_cast<uint8_t>(symbols[i] + low_base);
    words[2 * i] = static_cast<uint8_t>((sign_mantissas[i] & 0x7f) | x << 7);
    words[2 * i + 1] = static_cast<uint8_t>((sign_mantissas[i] & 0x80) | x >> 1);
  }
}

template <class F>
inline void assemble_as(const uint8_t* symbols, uint16_t base, unsigned k, const uint8_t* sign_mantissas, size_t n,
                        uint8_t* words) {
  switch (k) {
    case 0:
      if (base == 0) return assemble_all<F, 0>(symbols, 0, sign_mantissas, n, words);  // a constant to the compiler
      return assemble_all<F, 0>(symbols, base, sign_mantissas, n, words);
    case 1:
      return assemble_all<F, 1>(symbols, base, sign_mantissas, n, words);
    case 2:
      return assemble_all<F, 2>(symbols, base, sign_mantissas, n, words);
    default:
      return assemble_all<F, 3>(symbols, base, sign_mantissas, n, words);
  }
}

void assemble(const Layout& dtype, const uint8_t* symbols, uint16_t base, unsigned k, const uint8_t* sign_mantissas,
              size_t n, uint8_t* words) {
  with_split(dtype, [&](auto format) {
    using F = decltype(format);
    if constexpr (F::kAny) return assemble_any(format, symbols, base, k, sign_mantissas, n, words);
    if constexpr (!F::kAny) return assemble_as<F>(symbols, base, k, sign_mantissas, n, words);
  });
}

void join(const Layout& dtype, const uint8_t* exponents, const uint8_t* sign_mantissas, size_t n, unsigned k,
          uint16_t base, uint8_t* symbols) {
  with_split(dtype, [&](auto format) {
    using F = decltype(format);
    using Rest = typename F::Rest;
    for (size_t i = 0; i < n; ++i) {
      const unsigned top = format.top(as<Rest>(sign_mantissas)[i].value, k);
      const uint16_t symbol = static_cast<uint16_t>(((static_cast<unsigned>(exponents[i]) << k) | top) - base);
      symbols[i] = static_cast<uint8_t>(symbol < 255 ? symbol : 255);
    }
  });
}

void narrow(const Layout& dtype, uint8_t* sign_mantissas, size_t n, unsigned k) {
  with_split(dtype, [&](auto format) {
    using F = decltype(format);
    using Rest = typename F::Rest;
    for (size_t i = 0; i < n; ++i) {
      Unaligned<Rest>& rest = as<Rest>(sign_mantissas)[i];
      rest.value = format.without_top(rest.value, k);
    }
  });
}

bool fits(const uint8_t* symbols, size_t n, unsigned bits) {
  const uint8_t limit = static_cast<uint8_t>(1u << bits);
  uint8_t beyond = 0;
  for (size_t i = 0; i < n; ++i) beyond |= static_cast<uint8_t>((symbols[i] >= limit) & (symbols[i] != 255));
  return beyond == 0;
}

inline void interleave_halves(const uint8_t* __restrict lower, const uint8_t* __restrict upper, size_t n,
                              uint8_t* __restrict words) {
  for (size_t i = 0; i < n; ++i) {
    as<uint16_t>(words)[2 * i].value = as<uint16_t>(lower)[i].value;
    as<uint16_t>(words)[2 * i + 1].value = as<uint16_t>(upper)[i].value;
  }
}

// A run of words of one byte whose rests are a plane of 4 bits: byte l has those of the words l and l + 128.
template <class F>
inline void assemble_nibbles(const uint8_t* __restrict exponents, const uint8_t* __restrict plane,
                             uint8_t* __restrict words) {
  constexpr size_t kHalf = kRun / 2;
  const auto word = [](uint8_t x, uint8_t rest) {
    if constexpr (std::is_same_v<F, E4m3>) return static_cast<uint8_t>(move_sign<uint8_t, 3>(rest) | x << 3);
    if constexpr (!std::is_same_v<F, E4m3>) return static_cast<uint8_t>((x << 4 | rest) ^ F::kInverted);
  };
  for (size_t l = 0; l < kHalf; ++l) words[l] = word(exponents[l], plane[l] & 15);
  for (size_t l = 0; l < kHalf; ++l) words[kHalf + l] = word(exponents[kHalf + l], plane[l] >> 4);
}

// Words of exponents and fields that nothing is trimmed of, with the planes of whole bytes where they stand.
template <class F>
inline void weave_typed(const uint8_t* __restrict exponents, const uint8_t* __restrict field, size_t n, size_t first,
                        size_t count, uint8_t* __restrict words) {
  alignas(64) uint8_t small[kSegment + kSlack];
  constexpr unsigned kRestBits = F::layout().rest_bits;
  if constexpr (std::is_same_v<F, Bf16>) return assemble_all<F, 0>(exponents, 0, field + first, count, words);
  if constexpr (sizeof(typename F::Word) == 1) {
    if constexpr (kRestBits == 4) {
      for (; count >= kRun; first += kRun, count -= kRun, exponents += kRun, words += kRun) {
        assemble_nibbles<F>(exponents, field + first / 2, words);
      }
      if (count == 0) return;
    }
    plane_kernels.unpack_field_tile(kRestBits, field, n, first, count, small);
    return assemble_all<F, 0>(exponents, 0, small, count, words);
  }
  if constexpr (std::is_same_v<F, F16>) {
    plane_kernels.unpack_field_tile(kRestBits - 8, field + plane_nbytes(8, n), n, first, count, small);
    const uint8_t* __restrict low = field + first;
    const uint8_t* __restrict high = small;
    for (size_t i = 0; i < count; ++i) {
      words[2 * i] = low[i];
      words[2 * i + 1] = static_cast<uint8_t>(move_sign<uint8_t, 2>(high[i]) | exponents[i] << 2);
    }
  }
  if constexpr (std::is_same_v<F, F32>) {
    // The upper half of a word is one of BF16.
    alignas(64) uint8_t upper[2 * kSegment];
    assemble_all<Bf16, 0>(exponents, 0, field + plane_nbytes(16, n) + first, count, upper);
    interleave_halves(field + 2 * first, upper, count, words);
  }
}

template <class F>
inline void weave_any(F format, const uint8_t* exponents, const uint8_t* field, size_t n, size_t first, size_t count,
                      uint8_t* words) {
  using Rest = typename F::Rest;
  alignas(64) uint8_t rests[kSegment * sizeof(Rest) + kSlack];
  unpack_typed<Rest>(format.layout().rest_bits, 0, field, n, first, count, rests);
  assemble_any(format, exponents, 0, 0, rests, count, words);
}

void weave(const Layout& dtype, const uint8_t* exponents, const uint8_t* field, size_t n, size_t first, size_t count,
           uint8_t* words) {
  with_split(dtype, [&](auto format) {
    using F = decltype(format);
    if constexpr (F::kAny) return weave_any(format, exponents, field, n, first, count, words);
    if constexpr (!F::kAny) return weave_typed<F>(exponents, field, n, first, count, words);
  });
}

// A run of words to exponents, and to the planes of their rests that have whole bytes; what rests have above those goes
// to `small`. Returns the OR of the rests, which is taken on the way: planes of the caller's may not be in the cache.
template <class F>
inline uint64_t unweave_run(const uint8_t* __restrict words, size_t n, size_t first, uint8_t* __restrict exponents,
                            uint8_t* __restrict field, uint8_t* __restrict small) {
  uint8_t all = 0, all_below = 0;
  if constexpr (sizeof(typename F::Word) == 1) {
    for (size_t i = 0; i < kRun; ++i) {
      const uint8_t rest = F::rest(words[i]);
      exponents[i] = F::exponent(words[i]);
      small[i] = rest;
      all |= rest;
    }
    return all;
  }
  if constexpr (std::is_same_v<F, Bf16>) {
    uint8_t* __restrict rests = field + first;
    for (size_t i = 0; i < kRun; ++i) {
      const uint8_t low = words[2 * i], high = words[2 * i + 1];
      const uint8_t rest = static_cast<uint8_t>((high & 0x80) | (low & 0x7f));
      exponents[i] = static_cast<uint8_t>(high << 1 | low >> 7);
      rests[i] = rest;
      all |= rest;
    }
    return all;
  }
  if constexpr (std::is_same_v<F, F16>) {
    uint8_t* __restrict lows = field + first;
    for (size_t i = 0; i < kRun; ++i) {
      const uint8_t low = words[2 * i], high = words[2 * i + 1];
      const uint8_t above = static_cast<uint8_t>((high >> 5 & 4) | (high & 3));
      lows[i] = low;
      exponents[i] = high >> 2 & 31;
      small[i] = above;
      all |= above;
      all_below |= low;
    }
    return uint64_t{all} << 8 | all_below;
  }
  if constexpr (std::is_same_v<F, F32>) {
    // The upper half of a word is one of BF16.
    uint8_t* __restrict lows = field + 2 * first;
    uint8_t* __restrict rests = field + 2 * n + first;
    uint8_t upper[2 * kRun];
    uint16_t all_lows = 0;
    for (size_t i = 0; i < kRun; ++i) {
      const uint16_t low = as<uint16_t>(words)[2 * i].value;
      as<uint16_t>(lows)[i].value = low;
      as<uint16_t>(upper)[i].value = as<uint16_t>(words)[2 * i + 1].value;
      all_lows |= low;
    }
    return unweave_run<Bf16>(upper, n, 0, exponents, rests, small) << 16 | all_lows;
  }
}

template <class F>
inline void unweave_typed(const uint8_t* words, size_t n, size_t first, size_t count, uint8_t* exponents,
                          uint8_t* field, uint64_t* runs) {
  alignas(64) uint8_t small[kSegment + kSlack];
  constexpr unsigned kRestBits = F::layout().rest_bits, kSmall = kRestBits % 8;
  for (size_t i = 0; i < count; i += kRun) {
    *runs++ = unweave_run<F>(words + i * sizeof(typename F::Word), n, first + i, exponents + i, field, small + i);
  }
  if constexpr (kSmall != 0) {
    plane_kernels.pack_field_tile(kSmall, small, n, first, count, field + (kRestBits - kSmall) / 8 * n);
  }
}

template <class F>
inline void unweave_any(F format, const uint8_t* words, size_t n, size_t first, size_t count, uint8_t* exponents,
                        uint8_t* field, uint64_t* runs) {
  using Rest = typename F::Rest;
  alignas(64) uint8_t rests[kSegment * sizeof(Rest)];
  split_runs(format, words, count, exponents, rests, runs);
  pack_typed<Rest>(format.layout().rest_bits, 0, rests, n, first, count, field);
}

void unweave(const Layout& dtype, const uint8_t* words, size_t n, size_t first, size_t count, uint8_t* exponents,
             uint8_t* field, uint64_t* runs) {
  with_split(dtype, [&](auto format) {
    using F = decltype(format);
    if constexpr (F::kAny) return unweave_any(format, words, n, first, count, exponents, field, runs);
    if constexpr (!F::kAny) return unweave_typed<F>(words, n, first, count, exponents, field, runs);
  });
}

// Around the caches, where the target has stores that go there.
void stream_copy(uint8_t* dst, const uint8_t* src, size_t nbytes) {
  size_t i = 0;
#if defined(__AVX2__)
  for (; i + sizeof(Bytes) <= nbytes; i += sizeof(Bytes)) stream(dst + i, load(src + i));
#endif
  std::memcpy(dst + i, src + i, nbytes - i);
}

constexpr WordKernels kWordKernels = {split,          or_runs,  assemble,     weave,   join, narrow,
                                      unpack_numbers, or_bytes, pack_numbers, unweave, fits, stream_copy};

}  // namespace
}  // namespace tw
