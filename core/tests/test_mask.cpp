// Masks on the target that TENSORWIRE_CPU names: every variant there and back, its exact size, and strings that are no
// masks. Prints a hash of all that was written: it must be the same on all targets.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "coders/mask.h"
#include "common/hash.h"
#include "tests/bits.h"
#include "tests/check.h"
#include "tests/target.h"
#include "transforms/planes.h"

namespace {

std::mt19937_64 random_bits(3);
const auto encode_scratch = std::make_unique<tw::MaskEncodeScratch>();
const auto decode_scratch = std::make_unique<tw::MaskDecodeScratch>();
std::vector<uint8_t> all_written;

using tests::bit, tests::Bits, tests::Mask, tests::set_bit;

// Each of n bits set with `share` per mille; in runs of `run` bits.
Mask make_mask(size_t n, unsigned share, size_t run) {
  Mask mask(tw::mask_numbers(n));
  bool set = false;
  for (size_t i = 0; i < n; ++i) {
    if (i % run == 0) set = random_bits() % 1000 < share;
    if (set) set_bit(&mask, i);
  }
  return mask;
}

// The page's words, followed one by one.
std::vector<uint8_t> levels_by_hand(const Mask& mask, size_t n, unsigned top) {
  std::vector<uint8_t> all;
  std::vector<bool> above;
  for (unsigned level = top + 1; level-- > 0;) {
    const size_t size = size_t{1} << (2 * level), groups = tw::ceil_div(n, size);
    std::vector<bool> any(groups);
    for (size_t i = 0; i < n; ++i) any[i / size] = any[i / size] || bit(mask, i);
    Bits string;
    if (level == top) {
      for (size_t g = 0; g < groups; ++g) string.push(any[g]);
    } else {
      for (size_t g = 0; g < above.size(); ++g) {
        if (!above[g]) continue;
        for (size_t j = 4 * g; j < 4 * g + 4; ++j) string.push(j < groups && any[j]);
      }
    }
    all.insert(all.end(), string.bytes.begin(), string.bytes.end());
    above = any;
  }
  return all;
}

bool reads(unsigned variant, const std::vector<uint8_t>& bytes, size_t n, Mask* mask) {
  std::vector<uint8_t> slack(bytes);
  slack.resize(bytes.size() + tw::kSlack, 0xff);
  size_t nbytes = 0;
  mask->assign(tw::mask_numbers(n), 0x5555555555555555);
  return tw::read_mask(variant, slack.data(), bytes.size(), n, mask->data(), &nbytes, decode_scratch.get()) &&
         nbytes == bytes.size();
}

void test_there_and_back(size_t n, unsigned share, size_t run) {
  const Mask mask = make_mask(n, share, run);
  size_t smallest = SIZE_MAX;
  for (unsigned level = 0; level <= tw::kMaxMaskLevel; ++level) {
    const std::vector<uint8_t> bytes = levels_by_hand(mask, n, level);
    Mask read;
    CHECK(reads(level, bytes, n, &read) && read == mask);
    if (bytes.size() < smallest) smallest = bytes.size();
  }
  for (const bool gaps : {false, true}) {
    const tw::MaskPlan plan = tw::plan_mask(mask.data(), n, gaps, encode_scratch.get());
    std::vector<uint8_t> bytes(plan.nbytes);
    tw::write_mask(plan, mask.data(), n, bytes.data(), encode_scratch.get());
    Mask read;
    CHECK(reads(plan.variant, bytes, n, &read) && read == mask);
    if (plan.variant != tw::kMaskGaps) CHECK(bytes == levels_by_hand(mask, n, plan.variant));
    CHECK(gaps ? bytes.size() <= smallest : bytes.size() == smallest);
    all_written.insert(all_written.end(), bytes.begin(), bytes.end());
  }
}

void test_outside(size_t n, unsigned share) {
  const Mask mask = make_mask(n, share, 1);
  Mask bits = make_mask(n, 500, 1);
  Bits outside;
  for (size_t i = 0; i < n; ++i) {
    if (bit(mask, i)) {
      bits[i / 64] &= ~(uint64_t{1} << i % 64);
    } else {
      outside.push(bit(bits, i));
    }
  }
  const std::vector<uint8_t>& expected = outside.bytes;
  std::vector<uint8_t> written(expected.size() + tw::kSlack);
  CHECK(tw::write_outside(mask.data(), n, bits.data(), written.data(), encode_scratch.get()) == expected.size());
  CHECK(std::equal(expected.begin(), expected.end(), written.begin()));
  Mask read(bits.size());
  size_t nbytes = 0;
  const auto readable = [&] {
    return tw::read_outside(mask.data(), n, written.data(), expected.size(), read.data(), &nbytes,
                            decode_scratch.get());
  };
  CHECK(readable() && nbytes == expected.size() && read == bits);
  if (outside.count % 32 == 0) return;
  written[expected.size() - 1] ^= 0x80;  // in the padding
  CHECK(!readable());
}

// What the check of a level must find; 70 words: 5 groups of 16, 18 groups of 4.
void test_hostile_levels() {
  Mask mask;
  CHECK(reads(0, {0, 0, 0, 0, 0, 0, 0, 0, 63, 0, 0, 0}, 70, &mask));
  CHECK(!reads(0, {0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0}, 70, &mask));             // a word that is not there
  CHECK(!reads(0, {0, 0, 0, 0, 0, 0, 0, 0}, 70, &mask));                          // bytes missing
  CHECK(reads(2, {16, 0, 0, 0, 3, 0, 0, 0, 0xff, 0, 0, 0}, 70, &mask) == false);  // words 70 and 71
  CHECK(reads(2, {16, 0, 0, 0, 3, 0, 0, 0, 0x3f, 0, 0, 0}, 70, &mask));
  CHECK(mask[0] == 0 && mask[1] == 63);
  CHECK(reads(2, {16, 0, 0, 0, 0, 0, 0, 0}, 70, &mask));                // a group may be empty
  CHECK(!reads(2, {32, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, 70, &mask));   // a sixth group of 16
  CHECK(!reads(2, {16, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0}, 70, &mask));   // a group of 4 from word 72 on
  CHECK(!reads(2, {16, 0, 0, 0, 17, 0, 0, 0, 1, 0, 0, 0}, 70, &mask));  // a bit in the padding of level 1
  CHECK(!reads(2, {16, 0, 0, 0, 1, 0, 0, 0, 17, 0, 0, 0}, 70, &mask));  // and of level 0
  CHECK(!reads(2, {31, 0, 0, 0, 255, 255, 3, 0}, 70, &mask));           // level 0 is missing
  for (unsigned round = 0; round < 50000; ++round) {
    std::vector<uint8_t> bytes(random_bits() % 16 * 4);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_bits() & random_bits());
    const size_t n = 1 + random_bits() % 300;
    reads(random_bits() % 7, bytes, n, &mask);
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  for (size_t n : {1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1025, 5000, 262144}) {
    for (unsigned share : {0, 1, 10, 100, 300, 500, 900, 990, 1000}) {
      test_outside(n, share);
      for (size_t run : {1, 200}) test_there_and_back(n, share, run);
    }
  }
  test_hostile_levels();
  std::printf("ok %016llx\n", static_cast<unsigned long long>(tw::hash128(all_written.data(), all_written.size()).low));
  return 0;
}
