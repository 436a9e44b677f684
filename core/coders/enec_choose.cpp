// The search for the best parameters of an enec block, exhaustive by counting.
//
// Whether a group is flagged depends on b and m alone: it is not if all its exponents lie in the window (b - 2^m, b]
// mod 2^E. With the shortest arc [start, end] of the circle that holds the group, those are the b with end <= b < start
// + 2^m. So one pass that counts words by `end` and by `start`, apart for each bit length of end - start, gives the
// number of unflagged words for every b and m at once, by prefix sums. An arc of more than half the circle fits no
// window, as m < E.
#include <algorithm>

#include "coders/enec.h"

namespace tw {
namespace {

// Smallest and largest exponent of each group of 4; returns their number.
size_t bound_quads(const uint8_t* x, size_t n, uint8_t* __restrict lows, uint8_t* __restrict highs) {
  const size_t whole = n / kQuad;
  for (size_t q = 0; q < whole; ++q) {
    const uint8_t* four = x + q * kQuad;
    lows[q] = std::min(std::min(four[0], four[1]), std::min(four[2], four[3]));
    highs[q] = std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
  }
  if (n % kQuad == 0) return whole;
  lows[whole] = *std::min_element(x + whole * kQuad, x + n);
  highs[whole] = *std::max_element(x + whole * kQuad, x + n);
  return whole + 1;
}

// Groups of twice the size, in place.
size_t bound_pairs(size_t groups, uint8_t* lows, uint8_t* highs) {
  for (size_t g = 0; g < groups / 2; ++g) {
    lows[g] = std::min(lows[2 * g], lows[2 * g + 1]);
    highs[g] = std::max(highs[2 * g], highs[2 * g + 1]);
  }
  if (groups % 2 != 0) {
    lows[groups / 2] = lows[groups - 1];
    highs[groups / 2] = highs[groups - 1];
  }
  return groups / 2 + groups % 2;
}

// The arc of a group that spans half the range or more: it may be short across the wrap, from `half` exponents on seen
// from the other side of the circle.
void shorten(const uint8_t* x, size_t count, unsigned half, unsigned* start, unsigned* extent) {
  unsigned low = 255, high = 0;
  for (size_t i = 0; i < count; ++i) {
    const unsigned opposite = x[i] ^ half;
    low = std::min(low, opposite);
    high = std::max(high, opposite);
  }
  *start = low ^ half;
  *extent = high - low;
}

// Where the arcs of a block start and end: from `first` on, before `start_stop` and `end_stop`. The exponents of most
// blocks lie close together, and small blocks have little else to do than to go through the counts.
struct ArcEnds {
  unsigned first, start_stop, end_stop;
};

// For exponents from low to high. Some arcs may wrap where these span half the range or more.
ArcEnds arc_ends(unsigned low, unsigned high, unsigned exponent_bits) {
  const unsigned circle = 1u << exponent_bits;
  return high - low < circle / 2 ? ArcEnds{low, high + 1, high + 1} : ArcEnds{0, circle, 2 * circle};
}

void count_arcs(const uint8_t* x, size_t n, unsigned exponent_bits, unsigned log2_group, const ArcEnds& ends,
                EnecScratch* scratch) {
  const unsigned half = 1u << (exponent_bits - 1);
  for (unsigned m = 1; m < exponent_bits; ++m) {
    std::fill(scratch->by_end[m] + ends.first, scratch->by_end[m] + ends.end_stop, 0u);
    std::fill(scratch->by_start[m] + ends.first, scratch->by_start[m] + ends.start_stop, 0u);
  }
  const size_t size = size_t{1} << log2_group;
  for (size_t first = 0, g = 0; first < n; first += size, ++g) {
    const size_t count = std::min(size, n - first);
    unsigned start = scratch->lows[g], extent = scratch->highs[g] - start;
    if (extent >= half) {
      shorten(x + first, count, half, &start, &extent);
      if (extent >= half) continue;
    }
    const unsigned length = bit_length(extent | 1);  // as m >= 1
    scratch->by_end[length][start + extent] += static_cast<uint32_t>(count);
    scratch->by_start[length][start] += static_cast<uint32_t>(count);
  }
}

// Take the counts of lengths below m in.
void add_shorter(unsigned m, const ArcEnds& ends, EnecScratch* scratch) {
  for (unsigned i = ends.first; i < ends.end_stop; ++i) scratch->by_end[m][i] += scratch->by_end[m - 1][i];
  for (unsigned i = ends.first; i < ends.start_stop; ++i) scratch->by_start[m][i] += scratch->by_start[m - 1][i];
}

// unflagged[b]: words of groups that fit the window of b and m. The counts of lengths below m have been taken in.
void sum_arcs(unsigned exponent_bits, unsigned m, const ArcEnds& ends, const EnecScratch& scratch,
              uint32_t unflagged[512]) {
  const unsigned circle = 1u << exponent_bits;
  const unsigned window = 1u << m;
  std::fill_n(unflagged, 2 * circle, 0u);
  uint32_t sum = 0;
  for (unsigned b = ends.first; b < std::max(ends.end_stop, ends.start_stop + window); ++b) {
    if (b < ends.end_stop) sum += scratch.by_end[m][b];
    if (b >= ends.first + window && b - window < ends.start_stop) sum -= scratch.by_start[m][b - window];
    unflagged[b] = sum;
  }
  for (unsigned b = 0; b < circle; ++b) unflagged[b] += unflagged[b + circle];
}

// The smallest nb for which y is exact for the exponents low to high: b - low < 2^(nb - 1), high - b <= 2^(nb - 1).
uint8_t least_nb(unsigned b, unsigned exponent_bits, unsigned low, unsigned high) {
  const int farthest = std::max({static_cast<int>(b - low), static_cast<int>(high - b) - 1, 1});
  return static_cast<uint8_t>(std::min(bit_length(static_cast<unsigned>(farthest)) + 1, exponent_bits));
}

constexpr unsigned kMinGroup = 2, kMaxGroup = 5;  // log2 of words

struct Best {
  size_t nbytes;  // at first a limit, which nothing else reaches
  EnecParams params = {};
  uint32_t num_high = 0;

  static uint32_t order(const EnecParams& p) {
    return uint32_t{p.b} << 24 | uint32_t{p.m} << 16 | uint32_t{p.nb} << 8 | p.log2_group;
  }
  void offer(size_t nbytes_, const EnecParams& params_, uint32_t num_high_) {
    if (nbytes_ > nbytes || (nbytes_ == nbytes && order(params_) > order(params))) return;
    nbytes = nbytes_, params = params_, num_high = num_high_;
  }
};

// The search over one block: its exponents lie in [low, high], and b needs an nb of at least least_nb[b].
class Search {
 public:
  Search(size_t n, const uint32_t histogram[256], unsigned exponent_bits, size_t limit)
      : best{limit}, n_(n), exponent_bits_(exponent_bits) {
    const unsigned circle = 1u << exponent_bits;
    unsigned low = 0, high = circle - 1;
    while (high > 0 && histogram[high] == 0) --high;
    while (low < high && histogram[low] == 0) ++low;
    ends = arc_ends(low, high, exponent_bits);
    for (unsigned b = 0; b < circle; ++b) least_nb_[b] = least_nb(b, exponent_bits, low, high);
    for (unsigned m = 1; m < exponent_bits; ++m) {
      if (worthwhile(m, fewest_groups())) least_high_[m] = least_outside(histogram, m, low, high);
    }
  }

  // Of the largest size that is tried.
  size_t fewest_groups() const { return ceil_div(n_, size_t{1} << kMaxGroup); }

  // Whether groups of this number, as large as those tried before or larger, may do better than what was found.
  bool worthwhile(unsigned m, size_t groups) const { return fixed(m, groups) + least_high_[m] <= best.nbytes; }

  // The largest m for which they may, or 0.
  unsigned last_worthwhile(size_t groups) const {
    unsigned m = exponent_bits_ - 1;
    while (m > 0 && !worthwhile(m, groups)) --m;
    return m;
  }

  // All b and nb for groups of one size.
  void try_all(unsigned m, unsigned log2_group, size_t groups, const EnecScratch& scratch) {
    uint32_t unflagged[512];
    sum_arcs(exponent_bits_, m, ends, scratch, unflagged);
    const size_t low_nbytes = fixed(m, groups);
    size_t least = SIZE_MAX / 2;  // of which more is no overflow
    for (unsigned b = 0; b < 1u << exponent_bits_; ++b) {
      const uint32_t count = static_cast<uint32_t>(n_) - unflagged[b];
      if (count > UINT16_MAX) continue;
      // A wider nb can be shorter where planes round up. This bounds all of them.
      unsigned nb = std::max<unsigned>(least_nb_[b], m + 1);
      const size_t bound = high_bound(count, b, m);
      least = std::min(least, bound);
      if (low_nbytes + bound > best.nbytes) continue;
      for (; nb <= exponent_bits_; ++nb) {
        const EnecParams candidate = {static_cast<uint8_t>(b), static_cast<uint8_t>(m), static_cast<uint8_t>(nb),
                                      static_cast<uint8_t>(log2_group)};
        best.offer(low_nbytes + field_nbytes(count, nb - m), candidate, count);
      }
    }
    least_high_[m] = least;
  }

  Best best;
  ArcEnds ends;

 private:
  // A bound of the high bits: the words outside of the window are in groups that are flagged. With another b none is
  // inside.
  size_t least_outside(const uint32_t histogram[256], unsigned m, unsigned low, unsigned high) const {
    const unsigned circle = 1u << exponent_bits_, window = 1u << m;
    size_t least = SIZE_MAX / 2, inside = 0;
    // From the window before the one of the first b, which is empty unless it wraps around to `high`.
    for (unsigned x = low + circle - window; x < low + circle; ++x) inside += histogram[x % circle];
    for (unsigned b = low; b < high + window; ++b) {
      inside += histogram[b % circle];
      inside -= histogram[(b + circle - window) % circle];
      least = std::min(least, high_bound(n_ - inside, b % circle, m));
    }
    return least;
  }
  // No wider nb takes less.
  size_t high_bound(size_t count, unsigned b, unsigned m) const {
    return (count * (std::max<unsigned>(least_nb_[b], m + 1) - m) + 7) / 8;
  }
  size_t fixed(unsigned m, size_t groups) const { return field_nbytes(n_, m) + field_nbytes(groups, 1); }

  size_t n_;
  unsigned exponent_bits_;
  uint8_t least_nb_[256];
  // A bound of the high bits of each m: a group with a flagged one in it is flagged, so larger groups have no fewer.
  size_t least_high_[8] = {};
};

}  // namespace

bool enec_choose(const uint8_t* x, size_t n, const uint32_t histogram[256], unsigned exponent_bits,
                 unsigned forced_log2_group, size_t limit, EnecParams* params, size_t* stream_nbytes,
                 uint32_t* num_high, EnecScratch* scratch) {
  Search search(n, histogram, exponent_bits, limit);
  if (search.last_worthwhile(search.fewest_groups()) == 0) return false;
  size_t groups = bound_quads(x, n, scratch->lows, scratch->highs);
  for (unsigned log2_group = kMinGroup; log2_group <= kMaxGroup; ++log2_group) {
    if (search.last_worthwhile(search.fewest_groups()) == 0) break;  // not even for the fewest groups
    if (log2_group != kMinGroup) groups = bound_pairs(groups, scratch->lows, scratch->highs);
    if (forced_log2_group != 0 && log2_group != forced_log2_group) continue;
    const unsigned last = search.last_worthwhile(groups);
    if (last == 0) continue;
    count_arcs(x, n, exponent_bits, log2_group, search.ends, scratch);
    for (unsigned m = 1; m <= last; ++m) {
      if (m > 1) add_shorter(m, search.ends, scratch);
      if (search.worthwhile(m, groups)) search.try_all(m, log2_group, groups, *scratch);
    }
  }
  *params = search.best.params;
  *stream_nbytes = search.best.nbytes;
  *num_high = search.best.num_high;
  return search.best.params.m != 0;
}

}  // namespace tw
