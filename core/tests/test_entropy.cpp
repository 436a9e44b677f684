// The entropy coder: streams against a decoder written from the format page, every target against that, damage.
#undef NDEBUG
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "coders/entropy.h"
#include "coders/entropy_table.h"
#include "common/bits.h"
#include "common/cpu.h"
#include "tests/random.h"

namespace tw {
extern const RansKernels kRansScalar, kRansAvx2, kRansAvx2Loads, kRansAvx512;

namespace {

using Bytes = std::vector<uint8_t>;

const std::unique_ptr<EntropyScratch> scratch(new EntropyScratch);

tests::Random random_bits(1);
uint32_t random32() { return static_cast<uint32_t>(random_bits.next()); }

// Inputs.

Bytes uniform(size_t n, unsigned num_symbols) {
  Bytes symbols(n);
  for (uint8_t& s : symbols) s = static_cast<uint8_t>(uint64_t{random32()} * num_symbols >> 32);
  return symbols;
}

// Like the exponents of weights: a steep fall on one side, a slow one on the other.
Bytes exponents(size_t n) {
  Bytes symbols(n);
  for (uint8_t& s : symbols) {
    s = 121;
    while (random32() % 2 == 0 && s > 90) --s;
    if (random32() % 16 == 0) ++s;
  }
  return symbols;
}

// Counts that fall by powers of `base` / 256.
Bytes geometric(size_t n, unsigned base) {
  Bytes symbols(n);
  for (uint8_t& s : symbols) {
    s = 0;
    while (random32() % 256 < base && s < 255) ++s;
  }
  return symbols;
}

Bytes constant(size_t n, uint8_t symbol) { return Bytes(n, symbol); }

// Almost all one symbol; every other one once.
Bytes rare(size_t n, uint8_t symbol) {
  Bytes symbols(n, symbol);
  for (size_t s = 0; s < 256 && s < n; ++s) symbols[(s * 7919 + 13) % n] = static_cast<uint8_t>(s);
  return symbols;
}

// A stream, in memory that ends where the decoder's right to read does.
struct Stream {
  Bytes bytes;
  size_t nbytes;

  Stream(const uint8_t* src, size_t n) : bytes(n + kRansSlack, 0xa5), nbytes(n) { std::copy_n(src, n, bytes.data()); }
};

struct Encoded {
  size_t estimate;
  Bytes stream;
};

std::vector<const RansKernels*> targets() {
  std::vector<const RansKernels*> all = {&kRansScalar};
#if defined(__x86_64__)
  if (cpu_target() >= Target::kAvx2) all.insert(all.end(), {&kRansAvx2, &kRansAvx2Loads});
  if (cpu_target() >= Target::kAvx512) all.push_back(&kRansAvx512);
#endif
  return all;
}

// The stream, which every target writes alike.
Encoded encode(const Bytes& symbols) {
  uint32_t histogram[256] = {};
  for (uint8_t s : symbols) ++histogram[s];
  Encoded coded{entropy_estimate(histogram, symbols.size()), Bytes(2 * symbols.size() + 2000)};
  const size_t nbytes = entropy_encode(symbols.data(), symbols.size(), histogram, coded.stream.data(),
                                       coded.stream.size(), scratch.get());
  assert(nbytes != 0);
  // Exactly enough room is enough, less is not, and then nothing is written.
  Bytes exact(nbytes);
  assert(entropy_encode(symbols.data(), symbols.size(), histogram, exact.data(), nbytes, scratch.get()) == nbytes);
  coded.stream.resize(nbytes);
  assert(exact == coded.stream);
  std::fill(exact.begin(), exact.end(), uint8_t{0});
  assert(entropy_encode(symbols.data(), symbols.size(), histogram, exact.data(), nbytes - 1, scratch.get()) == 0);
  assert(exact == Bytes(nbytes));
  for (const RansKernels* kernels : targets()) {
    Bytes other(nbytes);
    assert(entropy_encode(symbols.data(), symbols.size(), histogram, other.data(), nbytes, scratch.get(), *kernels) ==
           nbytes);
    assert(other == coded.stream);
  }
  return coded;
}

// The section "Entropy stream", sentence by sentence. Asserts that the stream is valid.
Bytes decode_by_the_page(const Bytes& stream, size_t n) {
  size_t bit = 8 * 7;
  const auto next_bit = [&] {
    const int value = stream[bit / 8] >> bit % 8 & 1;
    ++bit;
    return value;
  };
  const unsigned first = stream[4], last = stream[5], implied = stream[6];
  assert(first <= implied && implied <= last);
  int frequency[256] = {}, length = 0;
  frequency[implied] = 4096;
  for (unsigned s = first; s <= last; ++s) {
    if (s == implied) continue;
    int zigzag = 0;
    while (next_bit() == 0) ++zigzag;
    length += zigzag % 2 == 0 ? zigzag / 2 : -(zigzag + 1) / 2;
    assert(0 <= length && length <= 12);
    if (length == 0) continue;
    const int num_bits = std::min(length - 1, 3);
    frequency[s] = 1 << num_bits;
    for (int i = 0; i < num_bits; ++i) frequency[s] |= next_bit() << i;
    frequency[s] <<= length - 1 - num_bits;
    frequency[implied] -= frequency[s];
  }
  while (bit % 8 != 0) assert(next_bit() == 0);
  assert(1 <= frequency[implied] && frequency[implied] <= 4095);

  while (bit % 32 != 0) assert(next_bit() == 0);
  const uint8_t* at = stream.data() + bit / 8;
  const auto read = [&](unsigned nbytes) {
    uint32_t value = 0;
    for (unsigned i = 0; i < nbytes; ++i) value |= uint32_t{*at++} << 8 * i;
    return value;
  };
  uint32_t states[32];
  for (uint32_t& x : states) {
    x = read(4);
    assert(x >= 65536);
  }
  Bytes symbols(n);
  for (size_t i = 0; i < n; ++i) {
    uint32_t& x = states[i % 32];
    uint32_t rest = x % 4096;
    unsigned s = 0;
    while (rest >= static_cast<uint32_t>(frequency[s])) rest -= static_cast<uint32_t>(frequency[s++]);
    symbols[i] = static_cast<uint8_t>(s);
    x = static_cast<uint32_t>(frequency[s]) * (x / 4096) + rest;
    if (x < 65536) x = x * 65536 + read(2);
  }
  for (uint32_t x : states) assert(x == 65536);
  uint32_t num_words;
  std::memcpy(&num_words, stream.data(), 4);
  assert(at == stream.data() + bit / 8 + 128 + 2 * size_t{num_words});
  if (num_words % 2 != 0) assert(read(2) == 0);
  assert(at == stream.data() + stream.size());
  return symbols;
}

struct Decoded {
  bool opened, finished;
  size_t consumed;
  Bytes symbols;
};

Decoded decode(const Stream& stream, size_t n, size_t tile, const RansKernels& kernels) {
  static const std::unique_ptr<EntropyDecoder> decoder(new EntropyDecoder);
  Decoded result{false, false, 0, Bytes(n)};  // of exactly n bytes, so that one more is noticed
  result.opened = decoder->open(stream.bytes.data(), stream.nbytes, n, &result.consumed, kernels);
  if (!result.opened) return result;
  for (size_t i = 0; i < n; i += tile) decoder->decode(result.symbols.data() + i, std::min(tile, n - i));
  result.finished = decoder->finish();
  return result;
}

// Valid or not, all targets agree with scalar.
void check_agreement(const Stream& stream, size_t n) {
  const Decoded scalar = decode(stream, n, 4096, kRansScalar);
  for (const RansKernels* kernels : targets()) {
    const Decoded other = decode(stream, n, 4096, *kernels);
    assert(other.opened == scalar.opened && other.finished == scalar.finished && other.symbols == scalar.symbols);
  }
}

void test_round_trip(const Bytes& symbols) {
  const Encoded coded = encode(symbols);
  // The final states hold 0 to 16 bits each where the estimate says 8: up to 32 bytes, all of them in tiny streams
  // only.
  const double error = static_cast<double>(coded.estimate) - static_cast<double>(coded.stream.size());
  assert(std::abs(error) <= 36 + 0.001 * static_cast<double>(coded.stream.size()));
  assert(decode_by_the_page(coded.stream, symbols.size()) == symbols);
  // What follows the stream is somebody else's.
  Bytes more = coded.stream;
  more.insert(more.end(), 100, 0xff);
  for (const RansKernels* kernels : targets()) {
    for (size_t tile : {size_t{32}, size_t{4096}, symbols.size()}) {
      for (const Bytes& bytes : {coded.stream, more}) {
        const Decoded decoded = decode(Stream(bytes.data(), bytes.size()), symbols.size(), tile, *kernels);
        assert(decoded.opened && decoded.finished && decoded.consumed == coded.stream.size());
        assert(decoded.symbols == symbols);
      }
    }
  }
}

// Two streams at once, one of which may end, or run out of words, before the other.
void test_two(const Bytes& a, const Bytes& b) {
  static const std::unique_ptr<EntropyDecoder[]> decoders(new EntropyDecoder[2]);
  const Bytes a_stream = encode(a).stream, b_stream = encode(b).stream;
  const size_t together = std::min(a.size(), b.size()) / kRansStates * kRansStates;
  for (const size_t missing : {size_t{0}, size_t{100}}) {  // words of the second stream
    Bytes cut = b_stream;
    uint32_t num_words;
    std::memcpy(&num_words, cut.data(), 4);
    const size_t padding = num_words % 2 * 2, cut_nbytes = 2 * std::min<size_t>(missing, num_words);
    num_words -= static_cast<uint32_t>(cut_nbytes / 2);
    std::memcpy(cut.data(), &num_words, 4);
    std::memset(cut.data() + cut.size() - padding - cut_nbytes, 0, cut_nbytes);
    const Stream first(a_stream.data(), a_stream.size()), second(cut.data(), cut.size());
    const Decoded expected = decode(second, b.size(), 4096, kRansScalar);
    for (const RansKernels* kernels : targets()) {
      Bytes a_out(a.size()), b_out(b.size());
      size_t consumed;
      assert(decoders[0].open(first.bytes.data(), first.nbytes, a.size(), &consumed, *kernels));
      assert(decoders[1].open(second.bytes.data(), second.nbytes, b.size(), &consumed, *kernels));
      EntropyDecoder::decode_two(&decoders[0], a_out.data(), &decoders[1], b_out.data(), together);
      decoders[0].decode(a_out.data() + together, a.size() - together);
      decoders[1].decode(b_out.data() + together, b.size() - together);
      assert(decoders[0].finish() && a_out == a);
      assert(decoders[1].finish() == expected.finished && b_out == expected.symbols);
    }
  }
}

// Symbols of 5 bits, each coded by the table of its class; some classes may have none.
struct Classified {
  Bytes classes, symbols, stream;
};

Classified classify(size_t n, unsigned num_classes) {
  Classified made = {uniform(n, num_classes), geometric(n, 60), Bytes(2 * n + 5000)};
  Bytes joint(n);
  uint32_t histogram[256] = {};
  for (size_t i = 0; i < n; ++i) {
    made.symbols[i] = static_cast<uint8_t>(std::min(31, made.symbols[i] + 2 * made.classes[i]));
    joint[i] = static_cast<uint8_t>(made.classes[i] << 5 | made.symbols[i]);
    ++histogram[joint[i]];
  }
  EntropyTables tables;
  const size_t estimate = entropy_choose_classes(histogram, num_classes, 5, &tables);
  Bytes first;
  for (const RansKernels* kernels : targets()) {
    Bytes stream = made.stream;
    const size_t nbytes =
        entropy_encode_classes(joint.data(), n, tables, stream.data(), stream.size(), scratch.get(), *kernels);
    assert(nbytes != 0 && (nbytes > estimate ? nbytes - estimate : estimate - nbytes) <= 36 + nbytes / 1000);
    stream.resize(nbytes);
    assert(first.empty() || stream == first);
    first = stream;
  }
  made.stream = first;
  return made;
}

// Two streams with classes, one after the other and at once. The second one may run out of words.
void test_two_with_classes(const Classified& a, const Classified& b, unsigned num_classes, size_t missing) {
  static const std::unique_ptr<EntropyClassDecoder[]> decoders(new EntropyClassDecoder[2]);
  const Stream first(a.stream.data(), a.stream.size());
  Bytes cut = b.stream;
  if (missing != 0) {
    const uint32_t num_words = load<uint32_t>(cut.data());
    const size_t words_end =
        cut.size() - num_words % 2 * 2;  // behind the tables and states, which are whole units of 4
    std::fill(cut.begin() + static_cast<ptrdiff_t>(words_end - 2 * missing), cut.end(), uint8_t{0});
    store(cut.data(), num_words - static_cast<uint32_t>(missing));
  }
  const Stream second(cut.data(), cut.size());
  Bytes expected;
  bool expected_finish = false;
  const size_t together = std::min(a.symbols.size(), b.symbols.size()) / kRansStates * kRansStates;
  for (const RansKernels* kernels : targets()) {
    for (const size_t at_once : {size_t{0}, together}) {
      Bytes a_out(a.symbols.size()), b_out(b.symbols.size());
      size_t consumed;
      assert(decoders[0].open(first.bytes.data(), first.nbytes, a_out.size(), num_classes, &consumed, *kernels));
      assert(consumed == a.stream.size());
      assert(decoders[1].open(second.bytes.data(), second.nbytes, b_out.size(), num_classes, &consumed, *kernels));
      EntropyClassDecoder::decode_two(&decoders[0], a.classes.data(), a_out.data(), &decoders[1], b.classes.data(),
                                      b_out.data(), at_once);
      decoders[0].decode(a.classes.data() + at_once, a_out.data() + at_once, a_out.size() - at_once);
      decoders[1].decode(b.classes.data() + at_once, b_out.data() + at_once, b_out.size() - at_once);
      assert(decoders[0].finish() && a_out == a.symbols);
      if (missing == 0) assert(decoders[1].finish() && b_out == b.symbols);
      assert(expected.empty() || (b_out == expected && decoders[1].finish() == expected_finish));
      expected = b_out;
      expected_finish = decoders[1].finish();
    }
  }
}

void test_classes() {
  for (const unsigned num_classes : {1u, 2u, 5u, 8u}) {
    for (const size_t n : {size_t{1}, size_t{33}, size_t{2048}, size_t{5003}}) {
      const Classified a = classify(5003, num_classes), b = classify(n, num_classes);
      test_two_with_classes(a, b, num_classes, 0);
      test_two_with_classes(b, a, num_classes, 0);
      test_two_with_classes(b, a, num_classes, 100);
    }
  }
}

void test_round_trips() {
  test_classes();
  test_two(exponents(20000), exponents(20000));
  test_two(exponents(4095), geometric(5000, 250));
  test_two(uniform(5000, 256), exponents(1000));
  for (size_t n : {1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 256, 1000, 4095, 4096, 4097, 8191, 20000, 65535, 65536}) {
    test_round_trip(uniform(n, 256));
    test_round_trip(uniform(n, 100));
    test_round_trip(uniform(n, 2));
    test_round_trip(exponents(n));
    test_round_trip(geometric(n, 250));
    test_round_trip(geometric(n, 4));
    test_round_trip(constant(n, 0));
    test_round_trip(constant(n, 100));
    test_round_trip(constant(n, 255));
    test_round_trip(rare(n, 0));
    test_round_trip(rare(n, 77));
    test_round_trip(rare(n, 255));
  }
  test_round_trip(exponents(kMaxEntropySymbols));
  test_round_trip(uniform(kMaxEntropySymbols, 256));
  for (unsigned i = 0; i < 500; ++i) {
    const size_t n = 1 + random32() % 3000;
    Bytes symbols = geometric(n, 128 + random32() % 127);
    const uint8_t stretch = static_cast<uint8_t>(random32());
    for (uint8_t& s : symbols) s = static_cast<uint8_t>(s * stretch);
    test_round_trip(symbols);
  }
}

// Frequencies of 12 bits, most with 4 significant ones, cost at most 0.4 % over the entropy; the table at most 8 bits a
// symbol.
void test_size() {
  for (const Bytes& symbols : {uniform(65536, 256), uniform(65536, 60), exponents(65536), geometric(65536, 250)}) {
    double counts[256] = {}, bits = 0;
    for (uint8_t s : symbols) ++counts[s];
    unsigned num_symbols = 0;
    for (double count : counts) {
      if (count == 0) continue;
      bits -= count * std::log2(count / static_cast<double>(symbols.size()));
      ++num_symbols;
    }
    assert(static_cast<double>(encode(symbols).stream.size()) < bits / 8 * 1.004 + 135 + num_symbols);
  }
}

void test_damage(const Bytes& symbols, bool every_bit) {
  const Bytes stream = encode(symbols).stream;
  for (size_t nbytes = 0; nbytes < stream.size(); nbytes += every_bit ? 1 : 1 + random32() % 200) {
    for (const RansKernels* kernels : targets()) {
      assert(!decode(Stream(stream.data(), nbytes), symbols.size(), 4096, *kernels).opened);
    }
  }
  const size_t num_bits = 8 * stream.size();
  Bytes damaged = stream;
  for (size_t i = 0; i < (every_bit ? num_bits : 300); ++i) {
    const size_t bit = every_bit ? i : random32() % num_bits;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    check_agreement(Stream(damaged.data(), damaged.size()), symbols.size());
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  for (unsigned i = 0; i < 200; ++i) {  // another n than the stream was made for
    check_agreement(Stream(stream.data(), stream.size()), 1 + random32() % (2 * symbols.size()));
  }
  for (unsigned i = 0; i < 200; ++i) {  // random words behind a valid table: they run out, or are left over
    for (size_t at = stream.size() / 2; at < damaged.size(); ++at) damaged[at] = static_cast<uint8_t>(random32());
    const uint32_t num_words = random32() % (static_cast<uint32_t>(stream.size()) / 2);
    std::memcpy(damaged.data(), &num_words, 4);
    check_agreement(Stream(damaged.data(), damaged.size()), symbols.size());
  }
}

void test_other_counts() {
  const Bytes symbols = exponents(700);
  const Bytes stream = encode(symbols).stream;
  const auto accepted = [&](size_t n) {
    const Decoded result = decode(Stream(stream.data(), stream.size()), n, 4096, kRansScalar);
    return result.opened && result.finished;
  };
  assert(accepted(700) && !accepted(699) && !accepted(701));
}

// Beside the tables of tests/support/malformed_coders.py.
void test_wrong_tables() {
  const auto reads = [](const Bytes& bytes) {
    EntropyTable read;
    const Stream stream(bytes.data(), bytes.size());
    return entropy_read_table(stream.bytes.data(), stream.nbytes, &read) != 0;
  };
  assert(reads({'a', 'c', 'a', 0, 0, 0x40, 0x04}));   // two frequencies of 1024
  assert(!reads({'a', 'c', 'a', 0, 0, 0, 0x11}));     // of 2048, which leaves none for the implied symbol
  assert(!reads({'a', 'b', 'a', 0b1}));               // none but the implied one
  assert(!reads({'b', 'c', 'a', 0, 0, 0x40, 0x04}));  // the first symbol beyond the implied one
}

}  // namespace
}  // namespace tw

int main() {
  tw::test_round_trips();
  tw::test_size();
  tw::test_damage(tw::exponents(700), true);
  tw::test_damage(tw::uniform(300, 256), true);
  tw::test_damage(tw::constant(65, 9), true);
  tw::test_damage(tw::exponents(9000), false);
  tw::test_damage(tw::geometric(20000, 240), false);
  tw::test_other_counts();
  tw::test_wrong_tables();
  std::puts("ok");
}
