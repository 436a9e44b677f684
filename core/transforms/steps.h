// Words against those of a base: which changed, to which class the base's word sorts each, by how many steps. A mask is
// about 64 words: bit i stands for word i.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/bits.h"
#include "common/dtype.h"
#include "common/prefetch.h"

namespace tw {

constexpr size_t kMaskWords = 64;
constexpr unsigned kMaxClasses = 8, kFewClasses = 4;
constexpr size_t kStepSlack = 64;  // bytes that kernels may read past steps

// The classes of a block. limits[c] is the smallest magnitude (the word without its sign) of class c + 1.
struct StepClasses {
  unsigned count;  // 1 to kMaxClasses; 1 where has_classes() says no
  uint64_t limits[kMaxClasses - 1];
};

// Whether classes may be told apart: words are split as floats.
static inline bool has_classes(const Layout& dtype) { return dtype.split == Split::kFloat; }

// The steps of a block in which few words changed, class by class.
struct SparseSteps {
  StepClasses classes;
  const uint64_t* ranks[kMaxClasses];  // bit r: word r of the class changed; zeros follow, as many as the block's words
  const uint8_t* steps[kMaxClasses];   // of the changed words in order, as words; moved on by apply_sparse()
  uint64_t seen[kMaxClasses];          // words of the class so far
  uint64_t needed[kMaxClasses];        // words that the class must have

  // After the last word.
  bool complete() const {
    bool all = true;
    for (unsigned c = 0; c < classes.count; ++c) all &= seen[c] >= needed[c];
    return all;
  }
};

// Numbers that order floats by value: w with its lower bits inverted where the sign is set. It differs from the page's
// ordinal by 2^(8W - 1), which no difference shows, and undoes itself. Integers order themselves.
template <class T, bool kOrdered>
static inline T order(T word) {
  using Signed = std::make_signed_t<T>;
  if (!kOrdered) return word;
  const T sign = static_cast<T>(static_cast<Signed>(word) >> (8 * sizeof(T) - 1));
  return static_cast<T>(word ^ (sign & static_cast<T>(static_cast<T>(~T{0}) >> 1)));
}

// body(T{}, std::bool_constant<ordered>{}) with the type of a dtype's words.
template <class Body>
static inline auto with_words(const Layout& dtype, Body&& body) {
  switch (dtype.word_nbytes) {
    case 1:
      return dtype.ordered ? body(uint8_t{}, std::true_type{}) : body(uint8_t{}, std::false_type{});
    case 2:
      return dtype.ordered ? body(uint16_t{}, std::true_type{}) : body(uint16_t{}, std::false_type{});
    case 4:
      return dtype.ordered ? body(uint32_t{}, std::true_type{}) : body(uint32_t{}, std::false_type{});
    default:
      return dtype.ordered ? body(uint64_t{}, std::true_type{}) : body(uint64_t{}, std::false_type{});
  }
}

// Words to their exponents; to 0 where there are no classes.
struct ExponentOf {
  unsigned shift, mask;

  explicit ExponentOf(const Layout& dtype)
      : shift(has_classes(dtype) ? dtype.exponent_shift() : 0),
        mask(has_classes(dtype) ? (1u << dtype.exponent_bits) - 1 : 0) {}
  template <class T>
  uint8_t operator()(T word) const {
    return static_cast<uint8_t>(word >> shift & mask);
  }
};

// The words of a class among 64, and how many words of the class there are before these.
struct ClassWords {
  uint64_t mask;
  uint64_t before;
};
// So many stand together; classes that do not exist have no words.
static inline unsigned divided_classes(unsigned num_classes) {
  return num_classes <= kFewClasses ? kFewClasses : kMaxClasses;
}

// A bit string that is read from bit `at` on. Bits behind its bytes are zeros.
struct BitSource {
  const uint8_t* src;
  size_t nbytes;
  uint64_t at;
};

// Bits of the two strings of a block of kind dense.
struct DenseBits {
  uint64_t signs, low;
};

// Kernels, one set per target. No pointer needs alignment. Masks cover n words: ceil(n / 64) of them, zeros behind the
// last word. A fetcher makes steps meanwhile, so few that hardly any waits for the one before.
struct StepKernels {
  // Which words differ. Returns how many.
  size_t (*compare)(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, LineFetcher* fetcher,
                    uint64_t* masks);
  // The numbers of the words in the masks. Writes up to 64 more than there are. Returns how many they are.
  size_t (*list)(const uint64_t* masks, size_t n, LineFetcher* fetcher, uint32_t* places);
  // Of words at these places the exponents of their bases, by ExponentOf, and their steps: size << 1 | negative.
  // Returns all sizes together by OR.
  uint64_t (*steps)(const Layout& dtype, const uint8_t* words, const uint8_t* base, const uint32_t* places,
                    size_t count, LineFetcher* fetcher, uint8_t* exponents, uint64_t* steps);
  // For each 64 words those of each class, divided_classes() of them.
  void (*divide)(const Layout& dtype, const uint8_t* base, size_t n, const StepClasses& classes, LineFetcher* fetcher,
                 ClassWords* divided);
  // Sort words of a block by class, each class in order. Of each, at most 65,535, its place, the exponent of its base
  // and its step are given; class_of[exponent] is its class. Its rank in its class and its step go to where
  // ends[class] says, which moves on.
  void (*sort)(unsigned num_classes, const ClassWords* divided, const uint8_t class_of[256], const uint32_t* places,
               const uint8_t* exponents, const uint64_t* steps, size_t count, LineFetcher* fetcher,
               uint32_t ends[kMaxClasses], uint32_t* ranks, uint64_t* sorted_steps);
  // The next n words, a multiple of 64 but at the block's end: base plus steps. words may be base.
  void (*apply_sparse)(const Layout& dtype, const uint8_t* base, size_t n, SparseSteps* sparse, uint8_t* words);
  // Put the class of each word into out's bytes, from bit `shift` on, where those have zeros.
  void (*classify)(const Layout& dtype, const uint8_t* base, size_t n, const StepClasses& classes, unsigned shift,
                   uint8_t* out);
  // Kind dense (docs/format.md): the symbol of each word's step, the signs of the steps that are not 0, and the low
  // bits of their sizes. Both bit strings are whole, padding included; signs has room for n / 8 bytes and kStepSlack
  // more, low for as many as the words have and kStepSlack more. `upcoming` is fetched meanwhile.
  DenseBits (*measure)(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n,
                       const FetchPair& upcoming, uint8_t* symbols, uint8_t* signs, uint8_t* low);
  // The reverse: the next n words, a multiple of 64 but at the block's end, from those of the base, which may be in the
  // same place. False if symbols and low bits make no size, or one that no word can move by.
  bool (*apply_dense)(const Layout& dtype, const uint8_t* base, size_t n, const uint8_t* symbols, BitSource* signs,
                      BitSource* low, uint8_t* words);
};

extern const StepKernels& step_kernels;

}  // namespace tw
