// Kind scaled: words that are products of scales and codes of 8 bits, which are found from the words alone.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/split.h"
#include "frame/encode_kinds.h"
#include "frame/open_block.h"
#include "transforms/scaled.h"

namespace tw {
namespace {

constexpr size_t kTile = 128;     // columns of a tile in which weights share a scale, by custom
constexpr size_t kSeen = 256;     // words that are looked at before all of them are; fewer have no such kind
constexpr unsigned kCodes = 127;  // magnitudes of codes but 0; 127 is no number of F8_E4M3
// Narrowings of a range of scales in a block, and more for each scale: so that no words make the search last.
constexpr size_t kSteps = 2048, kStepsPerScale = 32;
constexpr uint16_t kMagnitude = 0x7fff, kMantissa = 0x7f, kLeastNormal = 0x80, kInfinite = 0x7f80;

// The number that each magnitude of a code stands for.
struct Numbers {
  double of[2][kCodes + 1];
  constexpr Numbers() : of{} {
    for (unsigned c = 0; c <= kCodes; ++c) {
      const unsigned exponent = c >> 3, mantissa = exponent == 0 ? c : 8 + (c & 7);
      of[0][c] = mantissa * static_cast<double>(1u << (exponent == 0 ? 0 : exponent - 1)) / 512;
      of[1][c] = c;
    }
  }
};
constexpr Numbers kNumbers;

unsigned most_code(Codes codes) { return codes == Codes::kF8E4M3 ? kCodes - 1 : kCodes; }

// A magnitude of BF16 in halves of a step: exact.
double value_of(unsigned halves) {
  const uint32_t bits = static_cast<uint32_t>(halves) << 15;
  return load<float>(reinterpret_cast<const uint8_t*>(&bits));
}

// The last code whose number is at most x, which is positive; 0 if there is none.
unsigned last_code(Codes codes, double x) {
  if (codes == Codes::kI8) return x < kCodes ? static_cast<unsigned>(x) : kCodes;
  if (x < 1.0 / 64) return static_cast<unsigned>(x * 512);
  const uint64_t bits = load<uint64_t>(reinterpret_cast<const uint8_t*>(&x));
  return static_cast<unsigned>(std::min<uint64_t>((bits >> 49) - ((1023 - 7) << 3), most_code(codes)));
}
// The first code whose number is at least x. It may be one more than there are.
unsigned first_code(Codes codes, double x) {
  const unsigned last = last_code(codes, x);
  return last + (kNumbers.of[static_cast<unsigned>(codes)][last] < x);
}

// The magnitudes of words that share a scale, ascending, and the code of each.
struct Magnitudes {
  size_t count;
  uint16_t of[kCodes];
  uint8_t codes[kCodes];
};

// Whether the magnitudes are those of the products of their codes.
bool products_are(Codes codes, float scale, const Magnitudes& magnitudes) {
  uint16_t words[kCodes];
  scaled_kernels.multiply(codes, magnitudes.codes, magnitudes.count, scale, reinterpret_cast<uint8_t*>(words));
  return std::memcmp(words, magnitudes.of, magnitudes.count * sizeof *words) == 0;
}

// A scale from `least` to `most` that makes codes of all magnitudes, if there is one. Each magnitude that only one code
// has within the range narrows it. Where some have two codes left, each half is tried: rounding moves a large code by
// nearly half of one, so that the nearest one may be wrong.
bool fit(Codes codes, double least, double most, Magnitudes* magnitudes, float* scale, size_t* steps) {
  const double* const numbers = kNumbers.of[static_cast<unsigned>(codes)];
  for (bool settled = false; !settled;) {
    if (*steps == 0) return false;
    --*steps;
    double low = least, high = most;
    bool only = true;
    for (size_t i = 0; i < magnitudes->count; ++i) {
      const double below = value_of(2u * magnitudes->of[i] - 1), above = value_of(2u * magnitudes->of[i] + 1);
      const unsigned first = first_code(codes, below / most);
      const unsigned last = last_code(codes, above / least);
      if (first > last) return false;
      only &= first == last;
      if (first != last) continue;
      magnitudes->codes[i] = static_cast<uint8_t>(first);
      low = std::max(low, below / numbers[first]);
      high = std::min(high, above / numbers[first]);
    }
    if (low > high) return false;
    settled = low == least && high == most;
    least = low, most = high;
    if (!settled || only) continue;
    const double middle = (least + most) / 2;
    if (most - least <= least / (1 << 24)) return false;  // no float lies between them
    return fit(codes, least, middle, magnitudes, scale, steps) || fit(codes, middle, most, magnitudes, scale, steps);
  }
  *scale = static_cast<float>((least + most) / 2);
  const uint32_t exponent = load<uint32_t>(reinterpret_cast<const uint8_t*>(scale)) >> 23;
  if (exponent < kLeastScale || exponent > kMostScale) return false;
  return products_are(codes, *scale, *magnitudes);
}

// Codes of F8_E4M3 that are an exponent smaller, with twice the scale; false if there are none.
bool halve(Magnitudes* magnitudes) {
  uint8_t halves[kCodes];
  for (size_t i = 0; i < magnitudes->count; ++i) {
    const uint8_t code = magnitudes->codes[i];
    if (code < 16 && code % 2 != 0) return false;
    halves[i] = static_cast<uint8_t>(code < 16 ? code / 2 : code - 8);
  }
  std::memcpy(magnitudes->codes, halves, magnitudes->count);
  return true;
}

// Whether the magnitudes are products of this scale. Codes of F8_E4M3 lie so far apart that the nearest one is the one.
bool scale_is(float scale, Magnitudes* magnitudes) {
  constexpr Codes kThese = Codes::kF8E4M3;
  const double* const numbers = kNumbers.of[static_cast<unsigned>(kThese)];
  for (size_t i = 0; i < magnitudes->count; ++i) {
    const double x = value_of(2u * magnitudes->of[i]) / static_cast<double>(scale);
    unsigned code = last_code(kThese, x);
    code += code < most_code(kThese) && numbers[code + 1] - x < x - numbers[code];
    magnitudes->codes[i] = static_cast<uint8_t>(code);
  }
  return products_are(kThese, scale, *magnitudes);
}

bool find_scale(Codes codes, Magnitudes* magnitudes, float* scale, size_t* steps) {
  *scale = 1;
  if (magnitudes->count == 0) return true;
  // No product is subnormal or infinite.
  if (magnitudes->of[0] < kLeastNormal || magnitudes->of[magnitudes->count - 1] >= kInfinite) return false;
  const double* const numbers = kNumbers.of[static_cast<unsigned>(codes)];
  const unsigned top = 2u * magnitudes->of[magnitudes->count - 1];
  // Of F8_E4M3 a code an exponent lower is the same with twice the scale.
  const unsigned most = most_code(codes), few = codes == Codes::kF8E4M3 ? 8 : most;
  for (unsigned largest = most; largest > most - few; --largest) {
    if (fit(codes, value_of(top - 1) / numbers[largest], value_of(top + 1) / numbers[largest], magnitudes, scale,
            steps))
      return true;
  }
  return false;
}

// Which words share a scale: runs of `width` words, those with the same number modulo `num_scales`. A scale is likely
// to be that of number less `recurs`, if that is not 0.
struct Sharing {
  size_t width, num_scales, recurs = 0;
};

struct Search {
  const Block& block;
  Codes codes;
  Sharing sharing;

  template <class Body>
  void each_run(size_t scale, Body&& body) const {
    for (size_t first = scale * sharing.width; first < block.n; first += sharing.width * sharing.num_scales) {
      body(first, std::min(sharing.width, block.n - first));
    }
  }
  uint16_t word(size_t i) const { return load<uint16_t>(block.words + 2 * i); }

  // False if they are too many.
  bool collect(size_t scale, Magnitudes* magnitudes) const {
    uint64_t seen[(kMagnitude + 1) / 64] = {};
    unsigned distinct = 0;
    each_run(scale, [&](size_t first, size_t count) {
      for (size_t i = first; i < first + count && distinct <= kCodes; ++i) {
        const unsigned magnitude = word(i) & kMagnitude;
        uint64_t& bits = seen[magnitude / 64];
        const uint64_t bit = uint64_t{1} << magnitude % 64;
        distinct += magnitude != 0 && (bits & bit) == 0;
        bits |= bit;
      }
    });
    if (distinct > most_code(codes)) return false;
    seen[0] &= ~uint64_t{1};
    magnitudes->count = 0;
    for (size_t k = 0; k < std::size(seen); ++k) {
      for (uint64_t bits = seen[k]; bits != 0; bits &= bits - 1) {
        magnitudes->of[magnitudes->count++] = static_cast<uint16_t>(64 * k + trailing_zeros(bits, 0));
      }
    }
    return true;
  }

  void write_codes(size_t scale, const Magnitudes& magnitudes) const {
    EncodeScratch& scratch = *block.scratch;
    uint8_t* const table = scratch.codes_of;
    table[0] = 0;
    for (size_t i = 0; i < magnitudes.count; ++i) table[magnitudes.of[i]] = magnitudes.codes[i];
    const bool integers = codes == Codes::kI8;
    each_run(scale, [&](size_t first, size_t count) {
      for (size_t i = first; i < first + count; ++i) {
        const uint8_t code = table[word(i) & kMagnitude], minus = static_cast<uint8_t>(word(i) >> 15);
        scratch.words[i] = static_cast<uint8_t>(integers ? (minus != 0 ? -code : code) : code | minus << 7);
      }
    });
  }

  // The scales and codes to scratch. False if there are none.
  bool find() const {
    float* const scales = block.scratch->scales;
    float largest = 0;
    const size_t recurs = sharing.recurs;
    size_t steps = kSteps + kStepsPerScale * sharing.num_scales;
    for (size_t s = 0; s < sharing.num_scales; ++s) {
      Magnitudes magnitudes;
      if (!collect(s, &magnitudes)) return false;
      const bool again = recurs != 0 && s >= recurs && scale_is(scales[s - recurs], &magnitudes);
      if (again) scales[s] = scales[s - recurs];
      if (!again && !find_scale(codes, &magnitudes, scales + s, &steps)) return false;
      // Alike, so that codes have the same distribution throughout.
      while (codes == Codes::kF8E4M3 && magnitudes.count != 0 && 2 * scales[s] <= largest && halve(&magnitudes)) {
        scales[s] *= 2;
      }
      if (magnitudes.count != 0) largest = std::max(largest, scales[s]);
      write_codes(s, magnitudes);
    }
    return !(codes == Codes::kI8 && has_minus_zero());
  }

  bool has_minus_zero() const {
    for (size_t i = 0; i < block.n; ++i) {
      if (word(i) == kMagnitude + 1) return true;
    }
    return false;
  }
};

// The ways in which weights share scales, those of fewer scales first.
size_t sharings(Codes codes, size_t n, size_t row, Sharing* found) {
  size_t count = 0;
  found[count++] = {n, 1};
  const bool rows = row >= kTile && row < n && n % row == 0;
  if (rows) found[count++] = {row, n / row};
  if (codes == Codes::kI8) return count;
  if (rows && row % kTile == 0 && row > kTile) found[count++] = {kTile, row / kTile};
  if (n > kTile) found[count++] = {kTile, ceil_div(n, kTile), row % kTile == 0 ? row / kTile : 0};
  return count;
}

size_t write_scaled(const Search& search) {
  const Block& block = search.block;
  EncodeScratch& scratch = *block.scratch;
  const uint8_t variant = static_cast<uint8_t>(search.codes);
  const BlockSpec spec = block.spec.inner(kLayoutsOfCodes[variant]);
  const size_t stored = stored_nbytes(spec, block.n), scales_nbytes = sizeof(float) * search.sharing.num_scales;
  const size_t inner = encode_kept({spec, scratch.words, block.n, block.dst, stored, &scratch});
  if (inner + scales_nbytes + block.descriptor_nbytes(kExtended, kScaled) >= block.stored) return 0;
  std::memcpy(block.dst + inner, scratch.scales, scales_nbytes);
  Written written{};
  written.push(search.sharing.width, 4);
  written.push(search.sharing.num_scales, 4);
  written.push(inner / kBlockAlign | (inner == stored ? kPartStored : 0), 2);
  written.push(kScaled, kExtendedNbytes);
  written.push(Tag{kExtended, kVerbatim, variant}.byte(), 1);
  return finish(block.dst, block.stored, block.spec.align, inner + scales_nbytes, written.descriptor,
                written.descriptor_nbytes);
}

// Whether the first words may be such products: those of a tile have eight mantissas, if the codes are F8_E4M3, and
// those of a row few magnitudes.
bool likely(Codes codes, const uint8_t* words) {
  const bool fp8 = codes == Codes::kF8E4M3;
  uint64_t seen[(kMagnitude + 1) / 64] = {};
  unsigned distinct = 0;
  for (size_t i = 0; i < (fp8 ? kTile : kSeen); ++i) {
    const unsigned magnitude = load<uint16_t>(words + 2 * i) & (fp8 ? kMantissa : kMagnitude);
    distinct += (seen[magnitude / 64] >> magnitude % 64 & 1) == 0;
    seen[magnitude / 64] |= uint64_t{1} << magnitude % 64;
  }
  return distinct <= (fp8 ? 9 : kCodes + 1);  // and zero
}

}  // namespace

bool may_be_scaled(const Block& block) {
  if (block.spec.profile != kProfileCompact || !(block.dtype() == kScaledLayout) || block.n < kSeen) return false;
  const Arrival& arrival = block.scratch->arrival;
  const uint8_t* const words = arrival.arrived == arrival.nbytes ? block.words : arrival.src;
  return likely(Codes::kF8E4M3, words) || likely(Codes::kI8, words);
}

size_t encode_scaled(const Block& block) {
  const RoundingToNearest rounding;
  for (const Codes codes : {Codes::kF8E4M3, Codes::kI8}) {
    if (!likely(codes, block.words)) continue;
    Sharing found[4];
    const size_t count = sharings(codes, block.n, block.spec.row_words, found);
    for (size_t i = 0; i < count; ++i) {
      const Search search = {block, codes, found[i]};
      if (search.find()) return write_scaled(search);
    }
  }
  return 0;
}

}  // namespace tw
