#include "frame/relative_encode.h"

#include <cstring>

namespace tw {
namespace {

// By the share of changed words: kind sparse is tried up to one in kSparseShare, dense from one in kDenseShare on,
// which in other profiles than compact has to be worth its slower decoding.
constexpr size_t kSparseShare = 3, kDenseShare = 32, kFastDenseShare = 8;
constexpr unsigned kFastClasses = 2, kFastDenseClasses = 4;
// Samples of a block's words, and the counters that they hash to.
constexpr size_t kMaxSamples = 1024, kCounterBits = 10;

// Streams that stand in dst, with their descriptor. Returns the block's length, or `stored` if that is not larger.
size_t finish(const Thresholds& thresholds, ExtendedKind kind, const uint8_t* params, size_t params_nbytes,
              size_t streams, size_t stored, uint8_t* dst) {
  const uint8_t variant = static_cast<uint8_t>(thresholds.num_classes - 1);
  const size_t descriptor = params_nbytes + variant + kExtendedNbytes + kTagNbytes;
  const size_t length = ceil_to(streams + descriptor, kBlockAlign);
  if (length >= stored) return stored;
  std::memset(dst + streams, 0, length - streams);
  uint8_t* out = dst + length - descriptor;
  if (params_nbytes != 0) std::memcpy(out, params, params_nbytes);
  std::memcpy(out + params_nbytes, thresholds.thresholds, variant);
  out += params_nbytes + variant;
  out[0] = kind;
  out[1] = Tag{kExtended, kVerbatim, variant}.byte();
  return length;
}

// Whether no kind that ignores the base can take fewer than `nbytes` for the block. Those kinds code word by word, by
// how often the words or parts of them occur, so that they take at least about log2(1 / p) bits a word, p being the
// chance that two words of the block are equal. Here p is counted among samples, and words of one hash count as equal,
// which only lowers the bound.
bool beats_plain(const Dtype& dtype, const uint8_t* words, size_t n, size_t nbytes) {
  uint16_t counters[1 << kCounterBits] = {};
  uint64_t samples = 0, pairs = 0;  // of equal words
  with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    const size_t distance = n / kMaxSamples | 1;
    for (size_t i = 0; i < n; i += distance, ++samples) {
      const uint64_t hash = uint64_t{load<T>(words + i * sizeof(T))} * 0x9e3779b97f4a7c15u;
      pairs += counters[hash >> (64 - kCounterBits)]++;
    }
  });
  const uint64_t bits = ceil_div(8 * uint64_t{nbytes}, n) + 1;  // a word, and one to be sure
  return bits < 32 && (2 * pairs) << bits <= samples * samples;
}

}  // namespace

RelativeBlock encode_relative(const BlockSpec& spec, const uint8_t* words, size_t n, uint8_t* dst,
                              RelativeEncodeScratch* scratch) {
  const Dtype& dtype = *spec.dtype;
  const size_t stored = stored_nbytes(dtype, n);
  const size_t count = step_kernels.compare(dtype, words, spec.base, n, scratch->changed);
  if (count == 0) return {0, true};
  const bool compact = spec.profile == kProfileCompact;
  SparsePlan sparse;
  DensePlan dense;
  uint64_t sparse_nbytes = UINT64_MAX, dense_nbytes = UINT64_MAX;
  if (count <= n / kSparseShare && sparse_plan(dtype, words, spec.base, n, scratch->changed,
                                               compact ? kMaxClasses : kFastClasses, &sparse, &scratch->sparse)) {
    sparse_nbytes = sparse.nbits / 8;
  }
  if (count > n / (compact ? kDenseShare : kFastDenseShare) || sparse_nbytes == UINT64_MAX) {
    dense_plan(dtype, words, spec.base, n, compact ? kMaxClasses : kFastDenseClasses, &dense, &scratch->dense);
    dense_nbytes = dense.nbytes;
  }
  size_t length = stored;
  if (sparse_nbytes <= dense_nbytes && sparse_nbytes < stored) {
    const size_t streams = sparse_encode(dtype, spec.base, n, sparse, dst, stored, &scratch->sparse);
    if (streams != 0) length = finish(sparse.thresholds, kSparse, nullptr, 0, streams, stored, dst);
  } else if (dense_nbytes < stored) {
    const size_t streams = dense_encode(dtype, n, dense, dst, stored, &scratch->dense);
    uint8_t params[sizeof(uint32_t)];
    store(params, static_cast<uint32_t>(dense.bits.signs));
    if (streams != 0) {
      length = finish(dense.thresholds, kDense, params, sizeof params, streams, stored, dst);
    }
  }
  return {length, length < stored && beats_plain(dtype, words, n, length)};
}

}  // namespace tw
