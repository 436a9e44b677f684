#include "frame/relative_encode.h"

#include <algorithm>
#include <cstring>

#include "frame/encode_parts.h"

namespace tw {
namespace {

// By the share of changed words: kind sparse is tried up to one in kSparseShare, dense above; by profile compact, whose
// classes are more, from one in kDenseShare on. Measured on pairs of MiniLM and mixtures of them, 0.5 to 80 % changed:
// sparse up to one in 6 takes 0.1 to 0.4 % more and a quarter longer to encode, up to one in 12 it leaves blocks to
// dense that apply 1.3 times as long. Dense from one in 32 saves 0.1 %, and encodes 1.5 times as long; from one in 12
// it costs 0.2 %.
constexpr size_t kSparseShare = 8, kDenseShare = 16;
// Twice as many take 6 % off near pairs and 3 % off far ones, and 5 to 15 % longer to encode and to apply.
constexpr ClassLimits kSparseClasses = {kMaxClasses, 2}, kDenseClasses = {kMaxClasses, 4};
// Samples of a block's words, and the counters that they hash to.
constexpr size_t kMaxSamples = 1024, kCounterBits = 10;

// Find the words that differ. Returns how many; not all are looked at once they are more than `enough`.
size_t find_changed(const Dtype& dtype, const uint8_t* words, const uint8_t* base, size_t n, size_t enough,
                    uint64_t* masks) {
  constexpr size_t kTile = 64 * kMaskWords;
  size_t count = 0;
  for (size_t first = 0; first < n && count <= enough; first += kTile) {
    const size_t at = first * dtype.word_nbytes;
    count += step_kernels.compare(dtype, words + at, base + at, std::min(kTile, n - first), masks + first / kMaskWords);
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

// A block, and where it goes.
struct Change {
  const BlockSpec& spec;
  const uint8_t* words;
  size_t n, stored;
  const FetchPair& upcoming;
  uint8_t* dst;
  RelativeEncodeScratch* scratch;

  const Dtype& dtype() const { return spec.dtype; }
  // The block's length, or SIZE_MAX if it gains nothing.
  size_t finish(const Written& written) const {
    if (written.streams == 0) return SIZE_MAX;
    const size_t length =
        tw::finish(dst, stored, spec.align, written.streams, written.descriptor, written.descriptor_nbytes);
    return length == 0 ? SIZE_MAX : length;
  }
};

// A block that was written: its length, or SIZE_MAX if it gains nothing; and whether classes were chosen that save so
// little that fewer may do better.
struct Attempt {
  size_t length;
  bool doubtful = false;
};

// Whether few classes may cost less than those chosen, if costs are known up to some error.
bool are_close(const ClassCosts& costs, uint64_t error) {
  return costs.few != costs.chosen && costs.few - costs.chosen < error;
}

Attempt encode_sparse(const Change& change, ClassLimits limits) {
  SparseEncodeScratch* const scratch = &change.scratch->sparse;
  SparsePlan plan;
  if (!sparse_plan(change.dtype(), change.words, change.spec.base, change.n, change.scratch->changed, limits, &plan,
                   scratch)) {
    return {SIZE_MAX};
  }
  Written written{};
  written.streams = sparse_encode(change.dtype(), change.spec.base, change.n, plan, change.dst, change.stored, scratch);
  const uint64_t taken = 8 * uint64_t{written.streams} << kCostFraction, expected = plan.costs.chosen;
  const uint64_t error = std::max(taken, expected) - std::min(taken, expected);
  push_classes(plan.thresholds, kSparse, &written);
  return {change.finish(written), are_close(plan.costs, expected / 64 + error)};
}

// If it is expected to take less than `limit`.
Attempt encode_dense(const Change& change, ClassLimits limits, size_t limit) {
  DenseEncodeScratch* const scratch = &change.scratch->dense;
  DensePlan plan;
  dense_plan(change.dtype(), change.words, change.spec.base, change.n, change.upcoming, limits, &plan, scratch);
  if (plan.nbytes >= std::min(limit, change.stored)) return {SIZE_MAX};
  Written written{};
  written.streams = dense_encode(change.n, plan, change.dst, change.stored, scratch);
  written.push(plan.bits.signs, sizeof(uint32_t));
  push_classes(plan.thresholds, kDense, &written);
  return {change.finish(written), are_close(plan.costs, plan.costs.chosen / 64 + (uint64_t{512} << kCostFraction))};
}

// The smallest block of those that were written one over the other.
class Smallest {
 public:
  explicit Smallest(const Change& change) : change_(change) {}
  size_t length() const { return length_; }

  // encode(limits) writes a block. If few classes are not all that the profile has, they are tried where it is doubtful
  // that more of them are better.
  template <class Encode>
  void offer(ClassLimits limits, Encode&& encode) {
    const ClassLimits few = {limits.few, limits.few};
    const bool compact = change_.spec.profile == kProfileCompact;
    if (write(compact ? limits : few, encode) && compact) write(few, encode);
  }

 private:
  template <class Encode>
  bool write(ClassLimits limits, Encode&& encode) {
    uint8_t* const other = change_.scratch->other;
    if (length_ != SIZE_MAX) std::memcpy(other, change_.dst, length_);
    const Attempt attempt = encode(limits);
    if (attempt.length < length_) {
      length_ = attempt.length;
    } else if (length_ != SIZE_MAX) {
      std::memcpy(change_.dst, other, length_);
    }
    return attempt.doubtful;
  }

  const Change& change_;
  size_t length_ = SIZE_MAX;
};

}  // namespace

RelativeBlock encode_relative(const BlockSpec& spec, const uint8_t* words, size_t n, const FetchPair& upcoming,
                              uint8_t* dst, RelativeEncodeScratch* scratch) {
  const size_t count = find_changed(spec.dtype, words, spec.base, n, n / kSparseShare, scratch->changed);
  if (count == 0) return {0, true};
  const Change change = {spec, words, n, stored_nbytes(spec, n), upcoming, dst, scratch};
  Smallest smallest(change);
  if (count <= n / kSparseShare) {
    smallest.offer(kSparseClasses, [&](ClassLimits limits) { return encode_sparse(change, limits); });
  }
  if (count > n / (spec.profile == kProfileCompact ? kDenseShare : kSparseShare) || smallest.length() == SIZE_MAX) {
    smallest.offer(kDenseClasses, [&](ClassLimits limits) { return encode_dense(change, limits, smallest.length()); });
  }
  const size_t length = smallest.length();
  if (length == SIZE_MAX) return {change.stored, false};
  return {length, beats_plain(spec.dtype, words, n, length)};
}

}  // namespace tw
