// The enec coder, end to end and against brute force, on every target (cmake/on_every_target.cmake).
#undef NDEBUG
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "coders/enec.h"
#include "tests/random.h"
#include "tests/target.h"

namespace tw {
extern const EnecKernels kEnecScalar;

namespace {

using Bytes = std::vector<uint8_t>;

std::unique_ptr<EnecScratch> scratch(new EnecScratch);

tests::Random random_bits(1);
uint32_t random32() { return static_cast<uint32_t>(random_bits.next()); }

// Around `mode` with a geometric tail below and a shorter one above, `far` of 1000 anywhere.
Bytes random_exponents(size_t n, unsigned exponent_bits, unsigned mode, unsigned far) {
  Bytes x(n);
  for (uint8_t& value : x) {
    int delta = 0;
    while (random32() % 3 != 0) --delta;
    if (random32() % 8 == 0) delta = static_cast<int>(random32() % 2) + 1;
    const unsigned anywhere = random32();
    value = static_cast<uint8_t>((random32() % 1000 < far ? anywhere : mode + static_cast<unsigned>(delta)) &
                                 ((1u << exponent_bits) - 1));
  }
  return x;
}

struct Choice {
  EnecParams params;
  size_t nbytes;
  uint32_t num_high;
};

bool choose(const Bytes& x, unsigned exponent_bits, unsigned forced, Choice* choice, size_t limit = SIZE_MAX) {
  uint32_t histogram[256] = {};
  for (uint8_t value : x) ++histogram[value];
  return enec_choose(x.data(), x.size(), histogram, exponent_bits, forced, limit, &choice->params, &choice->nbytes,
                     &choice->num_high, scratch.get());
}

// The format, word by word.
uint32_t count_high(const Bytes& x, const EnecParams& p) {
  const size_t size = size_t{1} << p.log2_group;
  uint32_t count = 0;
  for (size_t first = 0; first < x.size(); first += size) {
    const size_t last = std::min(first + size, x.size());
    bool flagged = false;
    for (size_t i = first; i < last; ++i) flagged |= ((p.b - x[i]) & ((1 << p.nb) - 1)) >> p.m != 0;
    if (flagged) count += static_cast<uint32_t>(last - first);
  }
  return count;
}

Choice brute_force(const Bytes& x, unsigned exponent_bits, unsigned forced) {
  const int high = x.empty() ? 0 : *std::max_element(x.begin(), x.end());
  const int low = x.empty() ? 0 : *std::min_element(x.begin(), x.end());
  Choice best = {{}, SIZE_MAX, 0};
  for (unsigned b = 0; b < 1u << exponent_bits; ++b) {
    for (unsigned m = 1; m < exponent_bits; ++m) {
      for (unsigned nb = m + 1; nb <= exponent_bits; ++nb) {
        const int half = 1 << (nb - 1), signed_b = static_cast<int>(b);
        if (nb != exponent_bits && !(signed_b - half < low && high <= signed_b + half)) continue;
        for (unsigned log2_group = 2; log2_group <= 5; ++log2_group) {
          if (forced != 0 && log2_group != forced) continue;
          const EnecParams p = {static_cast<uint8_t>(b), static_cast<uint8_t>(m), static_cast<uint8_t>(nb),
                                static_cast<uint8_t>(log2_group)};
          const uint32_t num_high = count_high(x, p);
          const size_t nbytes = enec_stream_nbytes(x.size(), p, num_high);
          if (num_high <= 65535 && nbytes < best.nbytes) best = {p, nbytes, num_high};
        }
      }
    }
  }
  return best;
}

void check_against_brute_force(const Bytes& x, unsigned exponent_bits) {
  for (unsigned forced : {0u, 2u, 4u}) {
    const Choice expected = brute_force(x, exponent_bits, forced);
    Choice choice;
    for (size_t limit : {SIZE_MAX, expected.nbytes + 1}) {
      assert(choose(x, exponent_bits, forced, &choice, limit));
      assert(choice.nbytes == expected.nbytes && choice.num_high == expected.num_high);
      const EnecParams &p = choice.params, &q = expected.params;
      assert(std::tie(p.b, p.m, p.nb, p.log2_group) == std::tie(q.b, q.m, q.nb, q.log2_group));
    }
    assert(!choose(x, exponent_bits, forced, &choice, expected.nbytes));
  }
}

// A buffer that ends where its content and the slack end, so that a sanitizer sees any byte more.
Bytes with_slack(const Bytes& content, uint8_t fill) {
  Bytes bytes(content);
  bytes.resize(content.size() + kSlack, fill);
  bytes.shrink_to_fit();
  return bytes;
}

Bytes encode(const Bytes& x, const EnecParams& params) {
  Bytes streams(enec_stream_nbytes(x.size(), params, count_high(x, params)));
  enec_encode(x.data(), x.size(), params, streams.data(), scratch.get());
  return streams;
}

bool decode(const Bytes& streams, size_t n, unsigned exponent_bits, const EnecParams& params, uint32_t num_high,
            Bytes* x) {
  const Bytes in = with_slack(streams, 0xa5);
  Bytes out(n + kSlack, 0x5a);
  const bool valid = enec_decode(in.data(), n, exponent_bits, params, num_high, out.data(), scratch.get());
  x->assign(out.begin(), out.begin() + static_cast<ptrdiff_t>(n));
  return valid;
}

// Reads one number of a plane straight from the format's definition.
unsigned plane_number(const uint8_t* plane, size_t n, unsigned p, size_t i) {
  const size_t run = i / 256, in_run = i % 256, count = std::min<size_t>(256, n - run * 256);
  const size_t lanes = 4 * ((count * p + 31) / 32);
  return plane[run * 32 * p + in_run % lanes] >> (p * (in_run / lanes)) & ((1u << p) - 1);
}

unsigned field_number(const uint8_t* field, size_t n, unsigned width, size_t i) {
  unsigned number = 0, shift = 0;
  for (unsigned p = 4; p != 0; p /= 2) {
    if ((width & p) == 0) continue;
    number |= plane_number(field, n, p, i) << shift;
    field += field_nbytes(n, p);
    shift += p;
  }
  return number;
}

// A decoder that follows the format one word at a time.
Bytes plain_decode(const Bytes& streams, size_t n, unsigned exponent_bits, const EnecParams& p, uint32_t num_high) {
  const size_t groups = (n + (size_t{1} << p.log2_group) - 1) >> p.log2_group;
  const uint8_t* mask = streams.data() + field_nbytes(n, p.m);
  const uint8_t* high = mask + field_nbytes(groups, 1);
  Bytes x(n);
  size_t next = 0;
  for (size_t i = 0; i < n; ++i) {
    unsigned y = field_number(streams.data(), n, p.m, i);
    if (plane_number(mask, groups, 1, i >> p.log2_group) != 0) {
      y |= field_number(high, num_high, static_cast<unsigned>(p.nb - p.m), next++) << p.m;
    }
    const int s = static_cast<int>(y) - (y >> (p.nb - 1) != 0 ? 1 << p.nb : 0);
    x[i] = static_cast<uint8_t>((p.b - s) & ((1 << exponent_bits) - 1));
  }
  assert(next == num_high);
  return x;
}

void check_round_trip(const Bytes& x, unsigned exponent_bits, const EnecParams& params) {
  const uint32_t num_high = count_high(x, params);
  const Bytes streams = encode(x, params);
  Bytes decoded;
  assert(decode(streams, x.size(), exponent_bits, params, num_high, &decoded) && decoded == x);
  assert(plain_decode(streams, x.size(), exponent_bits, params, num_high) == x);
  if (num_high < x.size()) assert(!decode(streams, x.size(), exponent_bits, params, num_high + 1, &decoded));
  if (num_high > 0) assert(!decode(streams, x.size(), exponent_bits, params, num_high - 1, &decoded));
}

// The worked example of the paper, its groups taken as consecutive words. Numbers by hand.
void test_worked_example() {
  const Bytes x = {122, 121, 120, 119, 123, 122, 118, 121, 121, 125, 122, 117, 120, 121, 123, 110};
  const EnecParams params = {123, 3, 6, 2};
  const unsigned low[] = {1, 2, 3, 4, 0, 1, 5, 2, 2, 6, 1, 6, 3, 2, 0, 5};
  const unsigned mask[] = {0, 0, 1, 1};
  const unsigned high[] = {0, 7, 0, 0, 0, 0, 0, 1};
  assert(enec_stream_nbytes(16, params, 8) == 8 + 4 + 8);
  assert(count_high(x, params) == 8);
  const Bytes streams = encode(x, params);
  for (size_t i = 0; i < 16; ++i) assert(field_number(streams.data(), 16, 3, i) == low[i]);
  for (size_t i = 0; i < 4; ++i) assert(plane_number(streams.data() + 8, 4, 1, i) == mask[i]);
  for (size_t i = 0; i < 8; ++i) assert(field_number(streams.data() + 12, 8, 3, i) == high[i]);
  check_round_trip(x, 8, params);
}

// Windows that wrap, windows at the edges, every value: with nb = E nothing aliases, whatever b.
void test_all_exponents() {
  for (unsigned exponent_bits = 2; exponent_bits <= 8; ++exponent_bits) {
    Bytes x;
    for (unsigned i = 0; i < 1u << exponent_bits; ++i) x.insert(x.end(), {static_cast<uint8_t>(i), 0, 1, 0, 0});
    for (unsigned b = 0; b < 1u << exponent_bits; b += exponent_bits == 8 ? 15 : 1) {
      for (unsigned m = 1; m < exponent_bits; ++m) {
        for (uint8_t log2_group = 2; log2_group <= 5; ++log2_group) {
          const EnecParams params = {static_cast<uint8_t>(b), static_cast<uint8_t>(m),
                                     static_cast<uint8_t>(exponent_bits), log2_group};
          check_round_trip(x, exponent_bits, params);
        }
      }
    }
  }
}

void test_sizes() {
  const size_t sizes[] = {0,   1,   2,   3,    4,    5,    31,    32,    33,    63,    64,   65,
                          255, 256, 257, 4095, 4096, 4097, 32767, 32768, 32769, 65535, 65536};
  for (unsigned exponent_bits : {4u, 5u, 8u}) {
    for (size_t n : sizes) {
      const Bytes x = random_exponents(n, exponent_bits, (1u << exponent_bits) * 15 / 32, 2);
      for (unsigned forced = 0; forced <= 5; forced += forced == 0 ? 2 : 1) {
        Choice choice;
        assert(choose(x, exponent_bits, forced, &choice));
        assert(choice.num_high == count_high(x, choice.params));
        assert(choice.nbytes == enec_stream_nbytes(n, choice.params, choice.num_high));
        check_round_trip(x, exponent_bits, choice.params);
      }
    }
  }
}

void test_choice_is_the_best() {
  for (unsigned exponent_bits = 2; exponent_bits <= 8; ++exponent_bits) {
    const unsigned circle = 1u << exponent_bits;
    for (size_t n : {0u, 1u, 2u, 7u, 33u, 257u, 300u}) {
      if (exponent_bits == 8 && n == 257) continue;             // brute force takes its time
      for (unsigned mode : {0u, 3u, circle / 2, circle - 1}) {  // modes at the edge: arcs across the wrap
        check_against_brute_force(random_exponents(n, exponent_bits, mode, 0), exponent_bits);
        check_against_brute_force(random_exponents(n, exponent_bits, mode, 20), exponent_bits);
      }
      check_against_brute_force(random_exponents(n, exponent_bits, 0, 1000), exponent_bits);
      check_against_brute_force(Bytes(n, static_cast<uint8_t>(circle - 1)), exponent_bits);
    }
  }
  // Half of the groups lie across the wrap, far exponents in the rest.
  Bytes x;
  for (unsigned i = 0; i < 24; ++i) {
    for (unsigned j = 0; j < 8; ++j) x.push_back(static_cast<uint8_t>(i % 2 == 0 ? j * 3 - 12 : 40 + j * (i % 5)));
  }
  check_against_brute_force(x, 8);
  // A single high part: 3 bits take two planes, 4 bits one, so a wider nb than needed is shorter.
  Bytes lone(257, 100);
  lone.back() = 95;
  Choice choice;
  assert(choose(lone, 8, 0, &choice) && choice.num_high == 1 && choice.params.nb - choice.params.m == 4);
  check_against_brute_force(lone, 8);
}

// One bit has no m below it: the kind has no parameters then.
void test_one_bit() {
  Choice choice;
  assert(!choose(random_exponents(300, 1, 0, 20), 1, 0, &choice));
}

// num_high has 16 bits: with 65536 words, not every group may be flagged.
void test_num_high_limit() {
  Bytes x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i % 2 == 0 ? 0 : 128);
  Choice choice;
  assert(!choose(x, 8, 0, &choice));
  for (size_t i = 0; i < 32; ++i) x[i] = 0;
  assert(choose(x, 8, 0, &choice));
  assert(choice.num_high == 65536 - 32 && choice.nbytes == enec_stream_nbytes(65536, choice.params, choice.num_high));
  check_round_trip(x, 8, choice.params);
}

// Streams of random bits: a wrong num_high is refused, a right one decodes by the format, and no read or write leaves
// its buffer (the sanitizers watch).
void test_hostile_streams() {
  for (unsigned round = 0; round < 3000; ++round) {
    const unsigned exponent_bits = 2 + round % 7;
    const size_t n = round % 50 == 0 ? 65536 - random32() % 3 : random32() % 700;
    EnecParams params;
    params.b = static_cast<uint8_t>(random32());
    params.m = static_cast<uint8_t>(1 + random32() % (exponent_bits - 1));
    params.nb = static_cast<uint8_t>(params.m + 1 + random32() % (exponent_bits - params.m));
    params.log2_group = static_cast<uint8_t>(2 + random32() % 4);
    const size_t size = size_t{1} << params.log2_group, groups = (n + size - 1) / size;
    Bytes streams(enec_stream_nbytes(n, params, static_cast<uint32_t>(n)));
    const uint8_t thin = static_cast<uint8_t>(random32());
    for (uint8_t& byte : streams) byte = static_cast<uint8_t>(random32() & (round % 4 == 0 ? 255 : thin));
    uint32_t num_high = 0;
    for (size_t g = 0; g < groups; ++g) {
      if (plane_number(streams.data() + field_nbytes(n, params.m), groups, 1, g) == 0) continue;
      num_high += static_cast<uint32_t>(std::min(size, n - g * size));
    }
    Bytes decoded;
    for (uint32_t claim : {uint32_t{0}, num_high, num_high + 1, num_high - 1, static_cast<uint32_t>(n)}) {
      if (claim > n) continue;
      streams.resize(enec_stream_nbytes(n, params, claim));
      assert(decode(streams, n, exponent_bits, params, claim, &decoded) == (claim == num_high));
      if (claim == num_high) assert(decoded == plain_decode(streams, n, exponent_bits, params, num_high));
      streams.resize(enec_stream_nbytes(n, params, static_cast<uint32_t>(n)), thin);
    }
  }
}

void test_kernels() {
  for (unsigned round = 0; round < 2000; ++round) {
    const size_t n = random32() % 4096;
    const unsigned nb = 2 + random32() % 7, m = 1 + random32() % (nb - 1);
    const EnecMap map = {static_cast<uint8_t>(random32()), static_cast<uint8_t>(1u << (nb - 1)),
                         static_cast<uint8_t>(random32() % 2 != 0 ? 255 : 31), static_cast<uint8_t>(m)};
    Bytes quads(n / 32 + 2 + kSlack), high(n + kSlack), low(n + kSlack);
    for (size_t q = 0; q < n / kQuad; ++q) quads[q / 8] |= static_cast<uint8_t>((random32() % 4 == 0) << (q % 8));
    for (uint8_t& value : high) value = static_cast<uint8_t>(random32() & ((1u << (nb - m)) - 1));
    for (uint8_t& value : low) value = static_cast<uint8_t>(random32() & ((1u << m) - 1));
    Bytes expected(low), merged(low);
    const size_t used = kEnecScalar.merge(map, quads.data(), high.data(), n, expected.data());
    assert(enec_kernels.merge(map, quads.data(), high.data(), n, merged.data()) == used);
    assert(std::equal(merged.begin(), merged.begin() + static_cast<ptrdiff_t>(n), expected.begin()));
  }
}

void test_all() {
  test_worked_example();
  test_all_exponents();
  test_sizes();
  test_choice_is_the_best();
  test_one_bit();
  test_num_high_limit();
  test_hostile_streams();
  test_kernels();
}

}  // namespace
}  // namespace tw

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  tw::test_all();
  std::puts("ok");
  return 0;
}
