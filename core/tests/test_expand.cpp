// Masks of words, compaction and expansion on the target that TENSORWIRE_CPU names, against loops over words; bits to
// places and back against loops over bits.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "common/bits.h"
#include "tests/bits.h"
#include "tests/check.h"
#include "tests/target.h"
#include "transforms/deposit.h"
#include "transforms/expand.h"
#include "transforms/planes.h"

namespace {

using tests::bit;
std::mt19937_64 random_bits(2);

uint64_t word_at(const std::vector<uint8_t>& words, size_t i, unsigned width) {
  uint64_t word = 0;
  std::memcpy(&word, words.data() + i * width, width);
  return word;
}

// In 1000 words `zeros` are zeros; half of these are minus zeros. Others may have any bits, as few as one.
std::vector<uint8_t> make_words(size_t n, unsigned width, unsigned zeros) {
  const uint64_t sign = uint64_t{1} << (8 * width - 1);
  std::vector<uint8_t> words(n * width);
  for (size_t i = 0; i < n; ++i) {
    uint64_t word = random_bits() % 1000 < zeros ? random_bits() % 2 * sign
                    : random_bits() % 8 == 0     ? uint64_t{1} << random_bits() % (8 * width)
                                                 : random_bits();
    std::memcpy(words.data() + i * width, &word, width);
  }
  return words;
}

void test_words(unsigned width, bool signs, const std::vector<uint8_t>& words) {
  const tw::ExpandKernels& kernels = tw::expand_kernels;
  const size_t n = words.size() / width, numbers = tw::ceil_div(n, 64);
  const uint64_t sign = uint64_t{1} << (8 * width - 1);
  std::vector<uint64_t> kept(numbers + 1, 0xabcdef), minus(numbers + 1, 0xabcdef);
  kernels.find(width, signs, words.data(), n, kept.data(), minus.data());
  CHECK(kept[numbers] == 0xabcdef && minus[numbers] == 0xabcdef);
  size_t num_kept = 0;
  for (size_t i = 0; i < 64 * numbers; ++i) {
    const uint64_t word = i < n ? word_at(words, i, width) : 0;
    CHECK(bit(kept, i) == (word != 0 && !(signs && word == sign)));
    CHECK(bit(minus, i) == (signs && word == sign));
    num_kept += bit(kept, i);
  }
  std::vector<uint8_t> compact((num_kept * width) + tw::kSlack);
  CHECK(kernels.compact(width, kept.data(), words.data(), n, compact.data()) == num_kept);
  for (size_t i = 0, j = 0; i < n; ++i) {
    if (bit(kept, i)) CHECK(word_at(compact, j++, width) == word_at(words, i, width));
  }
  std::vector<uint8_t> out(n * width + 8, 0xee);
  CHECK(kernels.expand(width, 0, kept.data(), minus.data(), compact.data(), n, out.data()) == num_kept);
  CHECK(std::memcmp(out.data(), words.data(), n * width) == 0);
  for (size_t i = n * width; i < out.size(); ++i) CHECK(out[i] == 0xee);
  const uint64_t fill = 0x8123456789abcdef;
  CHECK(kernels.expand(width, fill, kept.data(), nullptr, compact.data(), n, out.data()) == num_kept);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t expected = bit(kept, i) ? word_at(words, i, width) : fill & (sign | (sign - 1));
    CHECK(word_at(out, i, width) == expected);
  }
}

// Without the instructions for it.
void test_deposit(uint64_t number, uint64_t places) {
  uint64_t deposited = 0, extracted = 0;
  unsigned rank = 0;
  for (unsigned i = 0; i < 64; ++i) {
    if ((places >> i & 1) == 0) continue;
    deposited |= (number >> rank & 1) << i;
    extracted |= (number >> i & 1) << rank;
    ++rank;
  }
  CHECK(tw::portable_deposit(number, places) == deposited);
  CHECK(tw::portable_extract(number, places) == extracted);
}

void test_deposits() {
  const uint64_t all = ~uint64_t{0};
  for (uint64_t places : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, all, all >> 1, all << 1}) {
    for (uint64_t number : {uint64_t{0}, uint64_t{1}, all, uint64_t{1} << 63}) test_deposit(number, places);
  }
  for (int i = 0; i < 100000; ++i) {
    const uint64_t places = random_bits(), number = random_bits();
    test_deposit(number, places);
    test_deposit(number, places & random_bits() & random_bits());
    test_deposit(number & random_bits() & random_bits(), places | random_bits());
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  test_deposits();
  for (unsigned width : {1, 2, 4, 8}) {
    for (size_t n : {1, 2, 31, 63, 64, 65, 127, 128, 256, 320, 1000, 5000}) {
      for (unsigned zeros : {0, 1, 10, 100, 500, 900, 999, 1000}) {
        const std::vector<uint8_t> words = make_words(n, width, zeros);
        test_words(width, true, words);
        test_words(width, false, words);
      }
    }
  }
  std::printf("ok\n");
  return 0;
}
