// Which elements of a tensor differ from those of a base, one by one: what receivers take that decode no frames.
#include <type_traits>

#include "common/bits.h"
#include "common/status.h"
#include "include/tensorwire.h"
#include "transforms/steps.h"

namespace tw {
namespace {

// Words that are compared at a time: they, their masks and their places stay in the first-level cache.
constexpr size_t kWordsAtOnce = 4096;

struct Places {
  uint64_t masks[kWordsAtOnce / kMaskWords];
  uint32_t numbers[kWordsAtOnce + kMaskWords];  // in order; list() writes up to 64 more than there are
};

// Those of at most kWordsAtOnce words that differ; without a base all. Returns how many.
size_t find(const Layout& word, const uint8_t* content, const uint8_t* base, size_t count, Places* places) {
  if (base == nullptr) {
    for (size_t i = 0; i < count; ++i) places->numbers[i] = static_cast<uint32_t>(i);
    return count;
  }
  LineFetcher none;
  if (step_kernels.compare(word, content, base, count, &none, places->masks) == 0) return 0;
  return step_kernels.list(places->masks, count, &none, places->numbers);
}

template <class T>
void put_indices(const uint32_t* numbers, size_t count, uint64_t first, uint8_t* indices) {
  for (size_t i = 0; i < count; ++i) store(indices + i * sizeof(T), static_cast<T>(first + numbers[i]));
}

template <size_t kNbytes>
void put_values(const uint32_t* numbers, size_t count, const uint8_t* content, uint8_t* values) {
  for (size_t i = 0; i < count; ++i) std::memcpy(values + i * kNbytes, content + numbers[i] * kNbytes, kNbytes);
}

// body(std::integral_constant<size_t, nbytes>{}); false for another size.
template <class Body>
bool with_size(uint32_t nbytes, Body&& body) {
  switch (nbytes) {
    case 1:
      return body(std::integral_constant<size_t, 1>{}), true;
    case 2:
      return body(std::integral_constant<size_t, 2>{}), true;
    case 4:
      return body(std::integral_constant<size_t, 4>{}), true;
    case 8:
      return body(std::integral_constant<size_t, 8>{}), true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace tw

using namespace tw;

int tw_changes(uint32_t element_nbytes, const void* content, const void* base, uint64_t count, uint64_t first,
               uint32_t index_nbytes, void* indices, void* values, uint64_t* found, tw_error* error) {
  const bool known = with_size(element_nbytes, [](auto) {}) && (index_nbytes == 4 || index_nbytes == 8);
  if (!known) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected elements of 1, 2, 4 or 8 bytes and indices of 4 or 8, got %u and %u", element_nbytes,
                index_nbytes);
  }
  Layout word = kOpaque;
  word.word_nbytes = static_cast<uint8_t>(element_nbytes);
  const uint8_t* const source = static_cast<const uint8_t*>(content);
  const uint8_t* const old = static_cast<const uint8_t*>(base);
  uint8_t *index = static_cast<uint8_t*>(indices), *value = static_cast<uint8_t*>(values);
  *found = 0;
  Places places;
  for (uint64_t start = 0; start < count; start += kWordsAtOnce) {
    const size_t num_words = count - start < kWordsAtOnce ? count - start : kWordsAtOnce;
    const uint8_t* const part = source + start * element_nbytes;
    const uint8_t* const old_part = old == nullptr ? nullptr : old + start * element_nbytes;
    const size_t some = find(word, part, old_part, num_words, &places);
    if (index_nbytes == 4) {
      put_indices<uint32_t>(places.numbers, some, first + start, index);
    } else {
      put_indices<uint64_t>(places.numbers, some, first + start, index);
    }
    with_size(element_nbytes, [&](auto nbytes) { put_values<nbytes>(places.numbers, some, part, value); });
    index += some * index_nbytes;
    value += some * element_nbytes;
    *found += some;
  }
  return TW_OK;
}
