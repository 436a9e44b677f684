// Bits to places and back without the instructions for it, against loops over bits.
#include <cstdio>
#include <random>

#include "tests/check.h"
#include "transforms/deposit.h"

namespace {

void test_number(uint64_t number, uint64_t places) {
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

}  // namespace

int main() {
  std::mt19937_64 random_bits(4);
  const uint64_t all = ~uint64_t{0};
  for (uint64_t places : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, all, all >> 1, all << 1}) {
    for (uint64_t number : {uint64_t{0}, uint64_t{1}, all, uint64_t{1} << 63}) test_number(number, places);
  }
  for (int i = 0; i < 100000; ++i) {
    const uint64_t places = random_bits(), number = random_bits();
    test_number(number, places);
    test_number(number, places & random_bits() & random_bits());
    test_number(number & random_bits() & random_bits(), places | random_bits());
  }
  std::printf("ok\n");
  return 0;
}
