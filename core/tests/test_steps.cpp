// Steps against a base: the kernels of every target against the sentences of docs/format.md, and blocks of the kinds of
// relative frames, sound and damaged.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "frame/decode_block.h"
#include "frame/encode_block.h"
#include "tests/bits.h"
#include "tests/check.h"
#include "tests/quick.h"
#include "tests/random.h"
#include "tests/target.h"

namespace tw {
extern const StepKernels kStepScalar, kStepAvx2, kStepAvx512;

namespace {

using Bytes = std::vector<uint8_t>;
using tests::bit, tests::Bits, tests::Mask;

tests::Random random_bits(1);
uint64_t random64() { return random_bits.next(); }

std::vector<const StepKernels*> targets() {
  std::vector<const StepKernels*> all = {&kStepScalar};
#if defined(__x86_64__)
  if (cpu_target() >= Target::kAvx2) all.push_back(&kStepAvx2);
  if (cpu_target() >= Target::kAvx512) all.push_back(&kStepAvx512);
#endif
  return all;
}

// First the layouts of the dtypes; then each width without an order, and exponents that no dtype has.
constexpr Layout kLayouts[] = {
    {2, 8, 8, Split::kFloat, true},    {2, 5, 11, Split::kFloat, true},  {4, 8, 24, Split::kFloat, true},
    {1, 4, 4, Split::kFloat, true},    {1, 5, 3, Split::kFloat, true},   {8, 0, 0, Split::kNone, true},
    {8, 0, 0, Split::kNone, false},    {4, 0, 0, Split::kNone, false},   {2, 0, 0, Split::kNone, false},
    {1, 4, 4, Split::kUnsigned, true}, {1, 0, 0, Split::kNone, false},   {1, 7, 1, Split::kFloat, false},
    {2, 8, 8, Split::kFloat, false},   {4, 6, 26, Split::kFloat, false}, {8, 8, 56, Split::kFloat, false},
    {8, 5, 59, Split::kFloat, true},   {4, 1, 31, Split::kFloat, true},  {2, 3, 13, Split::kSigned, true},
    {8, 2, 62, Split::kSigned, false},
};

uint64_t word_at(const Layout& dtype, const Bytes& bytes, size_t i) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + i * dtype.word_nbytes, dtype.word_nbytes);
  return word;
}

// The page: "word XOR 2^(8W - 1) for a word whose highest bit is 0 and the complement of the word for others".
uint64_t ordinal(const Layout& dtype, uint64_t word) {
  const unsigned bits = 8 * dtype.word_nbytes;
  const uint64_t all = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1, top = uint64_t{1} << (bits - 1);
  if (!dtype.ordered) return word;
  return (word & top) == 0 ? word ^ top : ~word & all;
}

struct Step {
  uint64_t size;
  bool negative;
};

Step step_of(const Layout& dtype, uint64_t word, uint64_t base) {
  const unsigned bits = 8 * dtype.word_nbytes;
  const uint64_t all = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1, top = uint64_t{1} << (bits - 1);
  const uint64_t difference = (ordinal(dtype, word) - ordinal(dtype, base)) & all;
  return (difference & top) != 0 ? Step{(0 - difference) & all, true} : Step{difference, false};
}

// Symbols by the table of the page: the one row whose range has the size.
unsigned symbol_of_size(uint64_t size) {
  if (size < 4) return static_cast<unsigned>(size);
  for (unsigned j = 0;; ++j) {
    for (unsigned h = 0; h < 2; ++h) {
      const uint64_t first = uint64_t{2 + h} << (j + 1), last = first + ((uint64_t{1} << (j + 1)) - 1);
      if (first <= size && size <= last) return 4 + 2 * j + h;
    }
  }
}

// Words of all kinds: mostly near one, some of any bits.
Bytes make_base(const Layout& dtype, size_t n) {
  Bytes bytes(n * dtype.word_nbytes);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random64());
  for (size_t i = 0; i < n && dtype.exponent_bits != 0; ++i) {
    if (random64() % 16 == 0) continue;
    const unsigned bias = (1u << (dtype.exponent_bits - 1)) - 1;
    const uint64_t depth = trailing_zeros(random64() | 64, 0), exponent = bias < depth ? 0 : bias - depth;
    const uint64_t low = random64() & ((uint64_t{1} << dtype.exponent_shift()) - 1), sign = random64() & 1;
    const uint64_t word = sign << (8 * dtype.word_nbytes - 1) | exponent << dtype.exponent_shift() | low;
    std::memcpy(bytes.data() + i * dtype.word_nbytes, &word, dtype.word_nbytes);
  }
  return bytes;
}

// One word in `rarity` changed: by few steps mostly, by any number sometimes.
Bytes change(const Layout& dtype, const Bytes& base, uint64_t rarity) {
  Bytes words = base;
  for (size_t i = 0; i < base.size() / dtype.word_nbytes; ++i) {
    if (random64() % rarity != 0) continue;
    uint64_t word = word_at(dtype, base, i);
    switch (random64() % 8) {
      case 0:
        word = random64();
        break;
      case 1:
        word ^= uint64_t{1} << (8 * dtype.word_nbytes - 1);
        break;
      case 2:
        word += random64() % 64;
        break;
      default:
        word += random64() % 3 - 1;
    }
    std::memcpy(words.data() + i * dtype.word_nbytes, &word, dtype.word_nbytes);
  }
  return words;
}

StepClasses some_classes(const Layout& dtype) {
  Thresholds thresholds;
  if (has_classes(dtype)) {
    const unsigned exponents = 1u << dtype.exponent_bits, middle = exponents / 2;
    unsigned next = random64() % 2 == 0 || middle < 5 ? 0 : middle - 5, c = 0;
    for (const uint64_t most = random64() % kMaxClasses; c < most && next < exponents; next += 1 + random64() % 2) {
      thresholds.thresholds[c++] = static_cast<uint8_t>(next);
    }
    thresholds.num_classes = c + 1;
  }
  return classes_of(dtype, thresholds);
}

unsigned class_of(const Layout& dtype, const StepClasses& classes, uint64_t word) {
  unsigned c = 0;
  const uint64_t exponent = word >> dtype.exponent_shift() & ((1u << dtype.exponent_bits) - 1);
  while (c + 1 < classes.count && exponent >= classes.limits[c] >> dtype.exponent_shift()) ++c;
  return c;
}

void test_dense_kernels(const StepKernels& kernels, const Layout& dtype, const Bytes& words, const Bytes& base,
                        size_t n) {
  const unsigned width = dtype.word_nbytes;
  Mask differ(ceil_div(n, 64));
  Bytes symbols(n), signs(n / 8 + kStepSlack, 0xa5), low(n * width + kStepSlack, 0xa5);
  Bits expected_signs, expected_low;
  LineFetcher none;
  const size_t counted = kernels.compare(dtype, words.data(), base.data(), n, &none, differ.data());
  const DenseBits bits =
      kernels.measure(dtype, words.data(), base.data(), n, {}, symbols.data(), signs.data(), low.data());
  for (size_t i = 0; i < n; ++i) {
    const Step step = step_of(dtype, word_at(dtype, words, i), word_at(dtype, base, i));
    CHECK(bit(differ, i) == (step.size != 0));
    CHECK(symbols[i] == symbol_of_size(step.size));
    if (step.size > 0) expected_signs.push(step.negative, 1);
    if (step.size > 3) expected_low.push(step.size, symbols[i] / 2 - 1);
  }
  if (n % 64 != 0) CHECK(differ.back() >> n % 64 == 0);
  CHECK(counted == expected_signs.count && bits.signs == counted && bits.low == expected_low.count);
  CHECK(std::equal(expected_signs.bytes.begin(), expected_signs.bytes.end(), signs.begin()));
  CHECK(std::equal(expected_low.bytes.begin(), expected_low.bytes.end(), low.begin()));
  for (const bool in_place : {false, true}) {
    // The strings stand at the end of their memory, where sanitizers see what is read behind them.
    BitSource from_signs = {expected_signs.bytes.data(), expected_signs.bytes.size(), 0};
    BitSource from_low = {expected_low.bytes.data(), expected_low.bytes.size(), 0};
    Bytes out = in_place ? base : Bytes(n * width);
    const size_t tile = 64 * (1 + random64() % 20);
    for (size_t first = 0; first < n; first += tile) {
      const uint8_t* from = (in_place ? out : base).data() + first * width;
      CHECK(kernels.apply_dense(dtype, from, std::min(tile, n - first), symbols.data() + first, &from_signs, &from_low,
                                out.data() + first * width));
    }
    CHECK(out == words && from_signs.at == counted && from_low.at == expected_low.count);
  }
}

// Symbols and bits that no encoder writes: every target says and does the same.
void test_hostile_steps(const Layout& dtype, const Bytes& base, size_t n) {
  const unsigned width = dtype.word_nbytes, highest = 2 * (8 * width - 1);
  Bytes symbols(n), signs(random64() % (n / 8 + 2)), low(random64() % (n * width + 1));
  const bool zeros = random64() % 2 == 0;
  for (uint8_t& byte : signs) byte = static_cast<uint8_t>(random64());
  for (uint8_t& byte : low) byte = zeros ? 0 : static_cast<uint8_t>(random64());
  const unsigned limit = highest + static_cast<unsigned>(random64() % 3);
  for (uint8_t& symbol : symbols) symbol = static_cast<uint8_t>(random64() % limit);
  if (random64() % 4 == 0) symbols[random64() % n] = static_cast<uint8_t>(random64());
  Bytes first_words;
  bool first_valid = false;
  uint64_t first_at = 0;
  for (const StepKernels* kernels : targets()) {
    BitSource from_signs = {signs.data(), signs.size(), 0}, from_low = {low.data(), low.size(), 0};
    Bytes out(n * width);
    const bool valid = kernels->apply_dense(dtype, base.data(), n, symbols.data(), &from_signs, &from_low, out.data());
    if (!first_words.empty()) {
      CHECK(valid == first_valid);
      if (valid) CHECK(out == first_words && from_low.at == first_at);
    }
    first_words = out;
    first_valid = valid;
    first_at = from_low.at;
  }
  const unsigned most = *std::max_element(symbols.begin(), symbols.end());
  if (most < highest) CHECK(first_valid);
  if (most > highest) CHECK(!first_valid);
}

void test_sort(const StepKernels& kernels, const StepClasses& classes, const Layout& dtype,
               const std::vector<ClassWords>& divided, const std::vector<uint32_t>& places, const Bytes& exponents,
               const std::vector<uint64_t>& steps, const std::vector<uint32_t> ranks_of_class[kMaxClasses],
               const std::vector<uint64_t> steps_of_class[kMaxClasses]) {
  uint8_t class_of[256] = {};
  for (unsigned e = 0; e < 256; ++e) {
    while (class_of[e] + 1u < classes.count && e >= classes.limits[class_of[e]] >> dtype.exponent_shift())
      ++class_of[e];
  }
  uint32_t ends[kMaxClasses] = {};
  for (unsigned c = 1; c < kMaxClasses; ++c)
    ends[c] = ends[c - 1] + static_cast<uint32_t>(ranks_of_class[c - 1].size());
  std::vector<uint32_t> ranks(places.size()), expected_ranks;
  std::vector<uint64_t> sorted(places.size()), expected_steps;
  LineFetcher none;
  kernels.sort(classes.count, divided.data(), class_of, places.data(), exponents.data(), steps.data(), places.size(),
               &none, ends, ranks.data(), sorted.data());
  for (unsigned c = 0; c < kMaxClasses; ++c) {
    expected_ranks.insert(expected_ranks.end(), ranks_of_class[c].begin(), ranks_of_class[c].end());
    expected_steps.insert(expected_steps.end(), steps_of_class[c].begin(), steps_of_class[c].end());
    CHECK(ends[c] == expected_ranks.size());
  }
  CHECK(ranks == expected_ranks && sorted == expected_steps);
}

void test_class_kernels(const StepKernels& kernels, const Layout& dtype, const Bytes& words, const Bytes& base,
                        size_t n) {
  const unsigned width = dtype.word_nbytes;
  const StepClasses classes = some_classes(dtype);
  Bytes sorted(n, 5);
  kernels.classify(dtype, base.data(), n, classes, 3, sorted.data());
  LineFetcher none;
  const size_t stride = divided_classes(classes.count);
  std::vector<ClassWords> divided(stride * ceil_div(n, 64));
  kernels.divide(dtype, base.data(), n, classes, &none, divided.data());
  SparseSteps sparse{};
  sparse.classes = classes;
  std::vector<Mask> ranks(classes.count, Mask(n / 64 + 2));
  std::vector<Bytes> steps(classes.count, Bytes(kStepSlack));
  uint64_t seen[kMaxClasses] = {};
  std::vector<uint32_t> places;
  std::vector<uint64_t> expected_steps, steps_of_class[kMaxClasses];
  std::vector<uint32_t> ranks_of_class[kMaxClasses];
  Bytes exponents;
  uint64_t all_sizes = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t old = word_at(dtype, base, i);
    const unsigned c = class_of(dtype, classes, old);
    CHECK(sorted[i] == (c << 3 | 5));
    for (unsigned k = 0; k < stride; ++k) {
      const ClassWords& group = divided[i / 64 * stride + k];
      CHECK((group.mask >> i % 64 & 1) == (c == k));
      if (i % 64 == 0) CHECK(group.before == (k < kMaxClasses ? seen[k] : 0));
    }
    const Step step = step_of(dtype, word_at(dtype, words, i), old);
    const uint64_t rank = seen[c]++;
    if (step.size == 0) continue;
    places.push_back(static_cast<uint32_t>(i));
    const unsigned exponent_bits = has_classes(dtype) ? dtype.exponent_bits : 0;
    exponents.push_back(static_cast<uint8_t>(old >> dtype.exponent_shift() & ((1u << exponent_bits) - 1)));
    expected_steps.push_back(step.size << 1 | step.negative);
    all_sizes |= step.size;
    ranks_of_class[c].push_back(static_cast<uint32_t>(rank));
    steps_of_class[c].push_back(expected_steps.back());
    tests::set_bit(&ranks[c], rank);
    const uint64_t number = step.negative ? 0 - step.size : step.size;
    Bytes& of_class = steps[c];
    of_class.insert(of_class.end() - kStepSlack, width, 0);
    std::memcpy(of_class.data() + of_class.size() - kStepSlack - width, &number, width);
  }
  Mask changed(ceil_div(n, 64));
  std::vector<uint32_t> listed(n + 64);
  kernels.compare(dtype, words.data(), base.data(), n, &none, changed.data());
  CHECK(kernels.list(changed.data(), n, &none, listed.data()) == places.size());
  CHECK(std::equal(places.begin(), places.end(), listed.begin()));
  Bytes found_exponents(places.size());
  std::vector<uint64_t> found_steps(places.size());
  CHECK(kernels.steps(dtype, words.data(), base.data(), places.data(), places.size(), &none, found_exponents.data(),
                      found_steps.data()) == all_sizes);
  CHECK(found_exponents == exponents && found_steps == expected_steps);
  test_sort(kernels, classes, dtype, divided, places, exponents, expected_steps, ranks_of_class, steps_of_class);
  for (const bool in_place : {false, true}) {
    for (unsigned c = 0; c < classes.count; ++c) {
      sparse.ranks[c] = ranks[c].data();
      sparse.steps[c] = steps[c].data();
      sparse.seen[c] = 0;
    }
    Bytes out = base;
    const size_t tile = 64 * (1 + random64() % 3);
    for (size_t first = 0; first < n; first += tile) {
      const uint8_t* from = (in_place ? out : base).data() + first * width;
      kernels.apply_sparse(dtype, from, std::min(tile, n - first), &sparse, out.data() + first * width);
    }
    CHECK(out == words);
    for (unsigned c = 0; c < classes.count; ++c) CHECK(sparse.seen[c] == seen[c]);
  }
}

// Every step that a word of 16 bits can make.
void test_all_steps(const StepKernels& kernels, const Layout& dtype) {
  Bytes words(2 << 16), base(2 << 16);
  for (unsigned i = 0; i < 1u << 16; ++i) store(words.data() + 2 * i, static_cast<uint16_t>(i));
  for (unsigned i = 0; i < 1u << 16; ++i) store(base.data() + 2 * i, uint16_t{0x1234});
  test_dense_kernels(kernels, dtype, words, base, 1 << 16);
}

struct Decoded {
  bool valid;
  Bytes words;
};

const std::unique_ptr<DecodeScratch> scratch(new DecodeScratch);

Decoded decode(const BlockSpec& spec, const Bytes& block, size_t length, size_t n, bool in_place) {
  Bytes out(n * spec.dtype.word_nbytes);
  BlockSpec own = spec;
  if (in_place) {
    std::copy_n(spec.base, out.size(), out.begin());
    own.base = out.data();
  }
  LeafHasher hasher(0, nullptr);
  const BlockOutput output = {out.data(), false, {}, &hasher};
  const Fault fault =
      decode_block(own, {block.data(), length, n, length == stored_nbytes(spec, n)}, output, scratch.get());
  return {!fault, out};
}

void damage(Bytes* block, size_t length) {
  const unsigned flips = 1 + random64() % 3;
  for (unsigned f = 0; f < flips; ++f) {
    const size_t at =
        random64() % 2 == 0 ? length - 1 - random64() % std::min<size_t>(length, 40) : random64() % length;
    (*block)[at] ^= static_cast<uint8_t>(1 << random64() % 8);
  }
}

// Blocks of n words of which one in `rarity` changed: what they decode to, and that damage is found or decodes to
// something.
void test_blocks(const Layout& dtype, uint8_t profile, size_t n, uint64_t rarity, unsigned damages) {
  static const std::unique_ptr<EncodeScratch> scratch(new EncodeScratch);
  const Bytes base = make_base(dtype, n), words = change(dtype, base, rarity);
  const BlockSpec spec = {dtype, profile, true, base.data(), kBlockAlign};
  Bytes block(stored_nbytes(spec, n) + kSlack);
  const size_t length = encode_block(spec, words.data(), n, block.data(), scratch.get());
  CHECK((length == 0) == (words == base) && length <= stored_nbytes(spec, n));
  for (const bool in_place : {false, true}) {
    const Decoded decoded = decode(spec, block, length, n, in_place);
    CHECK(decoded.valid && decoded.words == words);
  }
  for (unsigned i = 0; i < damages && length != 0; ++i) {
    Bytes damaged = block;
    damage(&damaged, length);
    decode(spec, damaged, length, n, random64() % 2 == 0);
  }
}

// Two blocks decode alike whether or not their symbols were decoded ahead, sound or damaged.
void test_pairs(const Layout& dtype, uint8_t profile, size_t a_n, size_t b_n, uint64_t rarity, unsigned damages) {
  static const std::unique_ptr<EncodeScratch> encode_scratch(new EncodeScratch);
  struct Coded {
    size_t n;
    Bytes base, words, block;
    size_t length;
  };
  std::vector<Coded> coded;
  for (const size_t n : {a_n, b_n}) {
    const Bytes base = make_base(dtype, n);
    coded.push_back({n, base, change(dtype, base, rarity), Bytes(n * dtype.word_nbytes + kBlockAlign + kSlack), 0});
    const BlockSpec spec = {dtype, profile, true, coded.back().base.data(), kBlockAlign};
    coded.back().length =
        encode_block(spec, coded.back().words.data(), n, coded.back().block.data(), encode_scratch.get());
    CHECK(coded.back().length != 0);
  }
  for (unsigned i = 0; i < damages; ++i) {
    std::vector<Bytes> blocks = {coded[0].block, coded[1].block};
    if (i != 0) damage(&blocks[i % 2], coded[i % 2].length);
    const auto spec_of = [&](size_t k) { return BlockSpec{dtype, profile, true, coded[k].base.data(), kBlockAlign}; };
    const auto bytes_of = [&](size_t k) {
      const bool stored = coded[k].length == stored_nbytes(spec_of(k), coded[k].n);
      return BlockBytes{blocks[k].data(), coded[k].length, coded[k].n, stored};
    };
    std::vector<Decoded> alone;
    for (size_t k = 0; k < 2; ++k) alone.push_back(decode(spec_of(k), blocks[k], coded[k].length, coded[k].n, false));
    decode_symbols_ahead(spec_of(0), bytes_of(0), spec_of(1), bytes_of(1), scratch.get());
    for (size_t k = 0; k < 2; ++k) {
      const Decoded ahead = decode(spec_of(k), blocks[k], coded[k].length, coded[k].n, false);
      CHECK(ahead.valid == alone[k].valid);
      if (ahead.valid) CHECK(ahead.words == alone[k].words);
      if (i == 0) CHECK(ahead.valid && ahead.words == coded[k].words);
    }
  }
}

}  // namespace
}  // namespace tw

int main() {
  using namespace tw;
  if (!tests::forced_target_runs()) return tests::kSkipped;
  for (const Layout& dtype : kLayouts) {
    for (const size_t n : {1, 2, 63, 64, 65, 129, 1000, 5000}) {
      for (const uint64_t rarity : {1, 2, 10, 200}) {
        const Bytes base = make_base(dtype, n), words = change(dtype, base, rarity);
        for (const StepKernels* kernels : targets()) {
          test_dense_kernels(*kernels, dtype, words, base, n);
          test_class_kernels(*kernels, dtype, words, base, n);
        }
        for (unsigned round = 0; round < 5; ++round) test_hostile_steps(dtype, base, n);
        for (const uint8_t profile : {kProfileEnec, kProfileFast, kProfileCompact}) {
          test_blocks(dtype, profile, n, rarity, tests::times(100, 40));
        }
      }
    }
    for (const uint64_t rarity : {1, 2, 3, 200}) {
      for (const uint8_t profile : {kProfileFast, kProfileCompact}) {
        test_pairs(dtype, profile, 5000, 4100, rarity, tests::times(60, 24));
      }
    }
    for (const StepKernels* kernels : targets()) {
      if (dtype.word_nbytes == 2) test_all_steps(*kernels, dtype);
    }
    for (const uint64_t rarity : {1, 30, 300, 10000}) {
      test_blocks(dtype, kProfileCompact, 100000, rarity, tests::times(20, 6));
    }
    test_blocks(dtype, kProfileFast, kMaxBlockWords, 100, 2);
  }
  std::puts("ok");
}
