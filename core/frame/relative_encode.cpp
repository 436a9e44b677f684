#include "frame/relative_encode.h"

#include <algorithm>
#include <cstring>

#include "frame/encode_kinds.h"

namespace tw {
namespace {

// By the share of changed words: kind sparse is tried up to one in kSparseShare, dense above; by profile compact, whose
// classes are more, from one in kDenseShare on. Measured on pairs of MiniLM and mixtures of them, 0.5 to 80 % changed:
// sparse up to one in 6 takes 0.1 to 0.4 % more and a quarter longer to encode, up to one in 12 it leaves blocks to
// dense that apply 1.3 times as long. Dense from one in 32 saves 0.1 %, and encodes 1.5 times as long; from one in 12
// it costs 0.2 %.
constexpr size_t kSparseShare = 8, kDenseShare = 16;
// In `fast`. Kind sparse with two takes 5 to 7 % more for near pairs, and applies in a tenth less time; with eight it
// takes 1 to 2 % less, and a tenth longer to encode.
constexpr unsigned kFastClasses = 4;
// By how much a block of kind dense may be smaller than planned: a share, and what the states of its stream hold.
constexpr size_t kLessShare = 512, kLessNbytes = 40;
// Samples of a block's words, and the counters that they hash to.
constexpr size_t kMaxSamples = 1024, kMinSamples = 64, kCounterBits = 10;

// Find the words that differ. Returns how many; not all are looked at once they are more than `enough`.
size_t find_changed(const Layout& dtype, const uint8_t* words, const uint8_t* base, size_t n, size_t enough,
                    LineFetcher* fetcher, uint64_t* masks) {
  constexpr size_t kTile = 64 * kMaskWords;
  size_t count = 0;
  for (size_t first = 0; first < n && count <= enough; first += kTile) {
    const size_t at = first * dtype.word_nbytes;
    count += step_kernels.compare(dtype, words + at, base + at, std::min(kTile, n - first), fetcher,
                                  masks + first / kMaskWords);
  }
  return count;
}

// What stands behind the parameters of either kind.
void push_classes(const Thresholds& thresholds, ExtendedKind kind, Written* written) {
  const uint8_t variant = static_cast<uint8_t>(thresholds.num_classes - 1);
  for (unsigned c = 0; c < variant; ++c) written->push(thresholds.thresholds[c], 1);
  written->push(kind, kExtendedNbytes);
  written->push(Tag{kExtended, kVerbatim, variant}.byte(), kTagNbytes);
}

// Whether no kind that ignores the base can take fewer than `nbytes` for the block. Such kinds code word by word, by
// how often the words or parts of them occur, so that they take at least about log2(1 / p) bits a word, p being the
// chance that two words of the block are equal. Here p is counted among samples, and words of one hash count as equal,
// which only lowers the bound.
bool beats_plain(const Layout& dtype, const uint8_t* words, size_t n, size_t nbytes) {
  const uint64_t bits = ceil_div(8 * uint64_t{nbytes}, n) + 1;  // a word, and one to be sure
  if (bits >= 32) return false;
  uint16_t counters[1 << kCounterBits] = {};
  uint64_t samples = 0, pairs = 0;  // of equal words
  with_words(dtype, [&](auto word, auto) {
    using T = decltype(word);
    const size_t distance = n / std::min(kMaxSamples, kMinSamples << bits) | 1;
    for (size_t i = 0; i < n; i += distance, ++samples) {
      const uint64_t hash = uint64_t{load<T>(words + i * sizeof(T))} * 0x9e3779b97f4a7c15u;
      pairs += counters[hash >> (64 - kCounterBits)]++;
    }
  });
  return (2 * pairs) << bits <= samples * samples;
}

}  // namespace

RelativeBlock encode_relative(const BlockSpec& spec, const uint8_t* words, size_t n, const FetchPair& upcoming,
                              uint8_t* dst, RelativeEncodeScratch* scratch) {
  const Layout& dtype = spec.dtype;
  const size_t stored = stored_nbytes(spec, n);
  LineFetcher fetcher(upcoming);
  const size_t count = find_changed(dtype, words, spec.base, n, n / kSparseShare, &fetcher, scratch->changed);
  scratch->dense_alone = count > n / kSparseShare;
  if (count == 0) return {0, true};
  const bool compact = spec.profile == kProfileCompact;
  SparsePlan sparse;
  DensePlan dense;
  uint64_t sparse_nbytes = UINT64_MAX, dense_nbytes = UINT64_MAX;
  if (count <= n / kSparseShare && sparse_plan(dtype, words, spec.base, n, scratch->changed, &fetcher,
                                               compact ? kMaxClasses : kFastClasses, &sparse, &scratch->sparse)) {
    sparse_nbytes = sparse.nbits / 8;
  }
  if (count > n / (compact ? kDenseShare : kSparseShare) || sparse_nbytes == UINT64_MAX) {
    dense_plan(dtype, words, spec.base, n, upcoming, compact ? kMaxClasses : kFastClasses, &dense, &scratch->dense);
    dense_nbytes = dense.nbytes;
  }
  Written written{};
  if (sparse_nbytes <= dense_nbytes && sparse_nbytes < stored) {
    written.streams = sparse_encode(dtype, spec.base, n, sparse, &fetcher, dst, stored, &scratch->sparse);
    push_classes(sparse.thresholds, kSparse, &written);
  } else if (dense_nbytes < stored) {
    written.streams = dense_encode(n, dense, dst, stored, &scratch->dense);
    written.push(dense.bits.signs, sizeof(uint32_t));
    push_classes(dense.thresholds, kDense, &written);
  }
  size_t length = 0;
  if (written.streams != 0) {
    length = finish(dst, stored, spec.align, written.streams, written.descriptor, written.descriptor_nbytes);
  }
  if (length == 0) return {stored, false};
  return {length, beats_plain(dtype, words, n, length)};
}

size_t least_of_part(const BlockSpec& part, const uint8_t* words, size_t first, size_t n,
                     RelativeEncodeScratch* scratch) {
  DensePlan plan;
  dense_plan_part(part.dtype, part.base, first, n, kFastClasses, &plan, &scratch->dense);
  const size_t less = plan.nbytes / kLessShare + kLessNbytes, least = plan.nbytes - std::min(plan.nbytes, less);
  const bool dense_alone = plan.bits.signs > n / kSparseShare;
  return dense_alone && beats_plain(part.dtype, words, n, least) ? std::min(least, stored_nbytes(part, n)) : 0;
}

}  // namespace tw
