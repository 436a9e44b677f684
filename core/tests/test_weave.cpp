// Words apart and together on the target that TENSORWIRE_CPU names: the kernels of all layouts against the sentences of
// docs/format.md, segment by segment.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "common/format.h"
#include "tests/check.h"
#include "tests/layouts.h"
#include "tests/target.h"
#include "transforms/planes.h"
#include "transforms/words.h"

namespace {

using Bytes = std::vector<uint8_t>;
using Numbers = std::vector<uint64_t>;

constexpr uint8_t kMark = 0xee;
std::mt19937_64 random_bits(3);

// Numbers of so many bytes, one behind the other, then kSlack.
Bytes stored(const Numbers& numbers, unsigned nbytes) {
  Bytes bytes(numbers.size() * nbytes + tw::kSlack, kMark);
  for (size_t i = 0; i < numbers.size(); ++i) std::memcpy(&bytes[i * nbytes], &numbers[i], nbytes);
  return bytes;
}

// Words as the page splits them, x with k extra bits.
struct Words {
  const tw::Layout& layout;
  Bytes bytes;
  Numbers x, rests, runs;

  Words(const tw::Layout& of, size_t n, unsigned k) : layout(of), runs(tw::ceil_div(n, tw::kRun)) {
    Numbers words(n);
    for (size_t i = 0; i < n; ++i) {
      words[i] = tests::low_bits(random_bits(), 8u * layout.word_nbytes);
      const tests::Parted parted = tests::part(layout, words[i], k);
      x.push_back(parted.x);
      rests.push_back(parted.rest);
      runs[i / tw::kRun] |= parted.rest;
    }
    bytes = stored(words, layout.word_nbytes);
  }
  size_t count() const { return x.size(); }
};

bool same_start(const Bytes& bytes, const Bytes& expected, size_t nbytes) {
  return std::equal(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(nbytes), bytes.begin());
}

void test_split(const tw::Layout& layout, size_t n) {
  const Words words(layout, n, 0);
  const unsigned nbytes = layout.rest_nbytes();
  CHECK(8 * nbytes >= layout.rest_bits);
  Bytes exponents(n), rests(n * nbytes + tw::kSlack, kMark);
  Numbers runs(words.runs.size());
  tw::word_kernels.split(layout, words.bytes.data(), n, exponents.data(), rests.data(), runs.data());
  CHECK(exponents == Bytes(words.x.begin(), words.x.end()));
  CHECK(rests == stored(words.rests, nbytes));
  CHECK(runs == words.runs);
}

void test_weave(const tw::Layout& layout, size_t n) {
  const Words words(layout, n, 0);
  Bytes exponents(words.x.begin(), words.x.end()), field = tests::field_of(words.rests, layout.rest_bits);
  CHECK(field.size() == tw::field_nbytes(n, layout.rest_bits));
  exponents.resize(n + tw::kSlack);
  field.resize(field.size() + tw::kSlack);
  for (size_t segment : {size_t{256}, size_t{512}, tw::kSegment}) {
    Bytes out(words.bytes.size(), kMark);
    for (size_t first = 0; first < n; first += segment) {
      tw::word_kernels.weave(layout, exponents.data() + first, field.data(), n, first, std::min(segment, n - first),
                             out.data() + first * layout.word_nbytes);
    }
    CHECK(out == words.bytes);
  }
}

// x as kind entropy has it: as symbols above a base, which the exponents and the top bits of the rests give.
void test_symbols(const tw::Layout& layout, size_t n, unsigned k) {
  const Words words(layout, n, k);
  const unsigned nbytes = layout.rest_nbytes(), bits = layout.exponent_bits + k;
  const uint16_t base = static_cast<uint16_t>(bits < 8 ? 0 : random_bits() % ((1u << bits) - 254));
  Bytes exponents(n), rests(n * nbytes + tw::kSlack, kMark), symbols(n);
  Numbers runs(words.runs.size());
  tw::word_kernels.split(layout, words.bytes.data(), n, exponents.data(), rests.data(), runs.data());
  tw::word_kernels.join(layout, exponents.data(), rests.data(), n, k, base, symbols.data());
  tw::word_kernels.narrow(layout, rests.data(), n, k);
  CHECK(rests == stored(words.rests, nbytes));
  Bytes expected = words.bytes;
  for (size_t i = 0; i < n; ++i) {
    const bool in_window = words.x[i] >= base && words.x[i] < base + 255u;
    CHECK(symbols[i] == (in_window ? words.x[i] - base : 255));
    // The word of an escape is mended later.
    if (!in_window) std::memset(&expected[i * layout.word_nbytes], 0, layout.word_nbytes);
  }
  Bytes out(words.bytes.size(), kMark);
  tw::word_kernels.assemble(layout, symbols.data(), base, k, rests.data(), n, out.data());
  for (size_t i = 0; i < n; ++i) {
    if (symbols[i] == 255) std::memset(&out[i * layout.word_nbytes], 0, layout.word_nbytes);
  }
  CHECK(out == expected);
  const uint8_t none = 0;
  tw::word_kernels.assemble(layout, &none, static_cast<uint16_t>(words.x[0]), k, rests.data(), 1, out.data());
  CHECK(same_start(out, words.bytes, layout.word_nbytes));
}

void test_fields(unsigned nbytes, unsigned width, size_t n) {
  Numbers numbers(n);
  for (uint64_t& number : numbers) number = tests::low_bits(random_bits(), width);
  const Bytes expected = tests::field_of(numbers, width);
  Bytes field(expected.size() + tw::kSlack), out(n * nbytes + tw::kSlack, kMark);
  tw::word_kernels.pack_numbers(nbytes, width, 0, stored(numbers, nbytes).data(), n, field.data());
  CHECK(same_start(field, expected, expected.size()));
  for (size_t first = 0; first < n; first += tw::kSegment) {
    tw::word_kernels.unpack_numbers(nbytes, width, 0, field.data(), n, first, std::min(tw::kSegment, n - first),
                                    out.data() + first * nbytes);
  }
  CHECK(same_start(out, stored(numbers, nbytes), n * nbytes));
}

// The layouts in which broken_rule() finds nothing are those of the page's table.
void test_valid() {
  const std::vector<tw::Layout> all = tests::all_layouts();
  for (unsigned width = 0; width < 10; ++width) {
    for (unsigned exponent = 0; exponent < 40; ++exponent) {
      for (unsigned rest = 0; rest < 70; ++rest) {
        for (unsigned split = 0; split < 6; ++split) {
          const tw::Layout layout = {static_cast<uint8_t>(width), static_cast<uint8_t>(exponent),
                                     static_cast<uint8_t>(rest), static_cast<tw::Split>(split), split % 2 == 0};
          CHECK((tw::broken_rule(layout) == nullptr) == (std::find(all.begin(), all.end(), layout) != all.end()));
        }
      }
    }
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  test_valid();
  for (const size_t n : {1, 3, 31, 128, 255, 256, 257, 511, 512, 700, 2048, 2049, 5000}) {
    for (const tw::Layout& layout : tests::split_layouts()) {
      if (layout.ordered && n != 700) continue;  // for the steps alone
      test_split(layout, n);
      test_weave(layout, n);
      for (unsigned k = 0; k == 0 || (k <= 3 && k < layout.rest_bits); ++k) test_symbols(layout, n, k);
    }
    for (const unsigned nbytes : {1, 2, 4, 8}) {
      for (unsigned width = 0; width <= 8 * nbytes; ++width) test_fields(nbytes, width, n);
    }
  }
  std::printf("ok\n");
  return 0;
}
