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
constexpr unsigned kMaxClasses = 8;
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

// The words, among 64, whose magnitude reaches a limit, and how many of all words before them do.
struct Reach {
  uint64_t mask;
  uint64_t before;
};

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
// last word.
struct StepKernels {
  // Which words differ. Returns how many.
  size_t (*compare)(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, uint64_t* masks);
  // The numbers of the words in the masks. Writes up to 64 more than there are. Returns how many they are.
  size_t (*list)(const uint64_t* masks, size_t n, uint32_t* places);
  // For each 64 words and each limit (classes.count - 1, at least 1) a mask of those whose magnitude reaches it, and
  // how many earlier words do.
  void (*reach)(const Layout& dtype, const uint8_t* base, size_t n, const StepClasses& classes, Reach* reach);
  // The ranks, in their classes (at least 2), of the words at these places, whose classes are given.
  void (*rank)(unsigned num_classes, const Reach* reach, const uint32_t* places, const uint8_t* classes, size_t count,
               uint32_t* ranks);
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
