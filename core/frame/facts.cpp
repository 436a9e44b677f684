// The functions of the C ABI that neither encode nor decode.
#include <memory>
#include <new>

#include "common/cpu.h"
#include "frame/content_hash.h"
#include "frame/header.h"
#include "frame/workers.h"
#include "transforms/histogram.h"
#include "transforms/words.h"

#ifndef TW_VERSION_STRING
#error "the build defines TW_VERSION_STRING"
#endif

using namespace tw;

const char* tw_version(void) { return TW_VERSION_STRING; }

const char* tw_cpu_target(void) { return target_name(cpu_target()); }

void tw_hash_leaves(const void* src, uint64_t nbytes, void* leaves, uint32_t threads) {
  struct None {};
  const bool ran = run_tiles<None>(ceil_div(nbytes, TW_LEAF_NBYTES), threads, [&](None&, uint64_t leaf) {
    const uint64_t start = leaf * TW_LEAF_NBYTES;
    hash_leaves(static_cast<const uint8_t*>(src) + start,
                nbytes - start < TW_LEAF_NBYTES ? nbytes - start : TW_LEAF_NBYTES,
                static_cast<uint8_t*>(leaves) + 16 * leaf);
    return true;
  });
  // There was no memory for threads, and this call has no way to fail.
  if (!ran) hash_leaves(static_cast<const uint8_t*>(src), nbytes, static_cast<uint8_t*>(leaves));
}

void tw_hash_root(uint64_t nbytes, const void* leaves, void* hash) {
  store_hash(hash_root(nbytes, static_cast<const uint8_t*>(leaves)), static_cast<uint8_t*>(hash));
}

int tw_find_dtype(const char* name, uint32_t* bits, tw_layout* layout) {
  const NamedDtype* const row = find_dtype(name);
  if (row == nullptr) return TW_INVALID_ARGUMENT;
  *bits = row->bits;
  *layout = numbers_of(row->layout);
  return TW_OK;
}

int tw_exponent_histogram(const char* dtype, const void* src, uint64_t nbytes, uint64_t* counts) {
  const NamedDtype* const named = find_dtype(dtype);
  const Layout row = named == nullptr ? kOpaque : named->layout;
  if (row.split != Split::kFloat || nbytes % row.word_nbytes != 0) return TW_INVALID_ARGUMENT;
  constexpr size_t kWords = kSegment;
  uint8_t exponents[kWords], sign_mantissas[kWords * kMaxWordNbytes];
  uint64_t runs[kWords / 256];
  uint32_t histogram[256];
  const uint8_t* words = static_cast<const uint8_t*>(src);
  for (uint64_t left = nbytes / row.word_nbytes; left != 0;) {
    const size_t n = left < kWords ? left : kWords;
    word_kernels.split(row, words, n, exponents, sign_mantissas, runs);
    histogram_kernels.bytes(exponents, n, histogram);
    for (unsigned x = 0; x < 256; ++x) counts[x] += histogram[x];
    words += n * row.word_nbytes;
    left -= n;
  }
  return TW_OK;
}
