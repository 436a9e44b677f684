// Bit strings: known strings by hand, what is written is read again, and no bytes mislead the reader.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "coders/bit_string.h"
#include "tests/bits.h"
#include "tests/check.h"

namespace {

using tw::BitReader;
using tw::BitWriter;

std::mt19937_64 random_bits(1);

// A copy in memory of just that size, so that a sanitizer sees a read behind it.
std::unique_ptr<uint8_t[]> tight(const std::vector<uint8_t>& bytes) {
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  return copy;
}

tests::Mask mask_of(size_t n, const std::vector<size_t>& members) {
  tests::Mask mask(n / 64 + 1);
  for (size_t i : members) tests::set_bit(&mask, i);
  return mask;
}

void test_by_hand() {
  // bits(3) = 5: 101; unary() = 4: 00001; golomb(1) = 5: q = 1, 5 - 2 = 3 in 2 bits: 01 11; rice(2) = 6: 01 01.
  uint8_t bytes[4] = {0b10000101, 0b10101110, 0, 0};
  BitReader reader(bytes, sizeof bytes);
  CHECK(reader.bits(3) == 5 && reader.unary() == 4 && reader.golomb(1) == 5 && reader.rice(2) == 6);
  size_t nbytes = 0;
  CHECK(reader.finish(&nbytes) && nbytes == 4);
  uint8_t written[4];
  BitWriter writer(written, sizeof written);
  writer.bits(5, 3), writer.unary(4), writer.golomb(5, 1), writer.rice(6, 2);
  CHECK(writer.finish(&nbytes) && nbytes == 4 && std::memcmp(written, bytes, 4) == 0);
  // The set {1, 2, 7} of 8 numbers: 0; m = 3: 00100; k = 1: 10000; gaps 1, 0, 4: 11, 10, 0010.
  const uint8_t set[4] = {0b01001000, 0b00111000, 0b00000010, 0};
  BitReader members(set, sizeof set);
  uint64_t mask = 0;
  CHECK(tw::read_set(&members, 8, &mask) && mask == 0b10000110);
}

void test_codes_round_trip() {
  struct Code {
    unsigned kind, parameter;
    uint64_t value;
  };
  for (unsigned round = 0; round < 200; ++round) {
    std::vector<Code> codes;
    for (unsigned i = 0; i < 1 + round; ++i) {
      const unsigned kind = random_bits() % 4;
      const unsigned width = random_bits() % 65;
      uint64_t value = width == 0 ? 0 : random_bits() >> (64 - width);
      if (kind == 0) codes.push_back({0, width, value});
      if (kind == 1) codes.push_back({1, 0, value % 300});
      if (kind == 2) codes.push_back({2, width % 32, (value % 100) << (width % 32)});
      if (kind == 3 && tw::golomb_bits(value, width % 8) != 0) codes.push_back({3, width % 8, value});
    }
    std::vector<uint8_t> bytes(100000);
    BitWriter writer(bytes.data(), bytes.size());
    for (const Code& code : codes) {
      if (code.kind == 0) writer.bits(code.value, code.parameter);
      if (code.kind == 1) writer.unary(code.value);
      if (code.kind == 2) writer.rice(code.value, code.parameter);
      if (code.kind == 3) writer.golomb(code.value, code.parameter);
    }
    size_t nbytes = 0, consumed = 0;
    CHECK(writer.finish(&nbytes));
    bytes.resize(nbytes);
    const auto copy = tight(bytes);
    BitReader reader(copy.get(), nbytes);
    for (const Code& code : codes) {
      if (code.kind == 0) CHECK(reader.bits(code.parameter) == code.value);
      if (code.kind == 1) CHECK(reader.unary() == code.value);
      if (code.kind == 2) CHECK(reader.rice(code.parameter) == code.value);
      if (code.kind == 3) CHECK(reader.golomb(code.parameter) == code.value);
    }
    CHECK(reader.finish(&consumed) && consumed == nbytes && nbytes % 4 == 0);
  }
}

void test_sets_round_trip() {
  for (size_t n : {0, 1, 2, 63, 64, 65, 1000, 40000}) {
    for (unsigned share : {0, 1, 10, 100, 500, 900, 999, 1000}) {  // per mille
      std::vector<size_t> members;
      for (size_t i = 0; i < n; ++i) {
        if (random_bits() % 1000 < share) members.push_back(i);
      }
      const std::vector<uint64_t> mask = mask_of(n, members);
      const tw::SetPlan plan = tw::plan_set(mask.data(), n);
      std::vector<uint8_t> bytes(tw::bit_string_nbytes(plan.nbits));
      BitWriter writer(bytes.data(), bytes.size());
      tw::write_set(&writer, mask.data(), n, plan);
      size_t nbytes = 0, consumed = 0;
      CHECK(writer.finish(&nbytes) && nbytes == bytes.size());
      const auto copy = tight(bytes);
      BitReader reader(copy.get(), nbytes);
      std::vector<uint64_t> read(n / 64 + 1);
      CHECK(tw::read_set(&reader, n, read.data()) && read == mask);
      CHECK(reader.finish(&consumed) && consumed == nbytes);
    }
  }
}

// Where each of n numbers is in the set with probability p, Rice's code takes at most 4 % more than their entropy.
void test_sets_are_small() {
  constexpr size_t kNumbers = 1 << 18;
  const double entropies[] = {0.0114, 0.0808, 0.469, 0.8813, 1.0, 0.469};
  const unsigned shares[] = {1, 10, 100, 300, 500, 900};
  for (unsigned s = 0; s < 6; ++s) {
    std::vector<size_t> members;
    for (size_t i = 0; i < kNumbers; ++i) {
      if (random_bits() % 1000 < shares[s]) members.push_back(i);
    }
    const tw::SetPlan plan = tw::plan_set(mask_of(kNumbers, members).data(), kNumbers);
    CHECK(static_cast<double>(plan.nbits) < 1.04 * entropies[s] * kNumbers + 400);
  }
}

void test_a_writer_stops_at_its_capacity() {
  for (size_t capacity = 0; capacity < 40; ++capacity) {
    std::vector<uint8_t> bytes(capacity + 8, 0xee);
    BitWriter writer(bytes.data(), capacity);
    for (unsigned i = 0; i < 10; ++i) writer.bits(0, 32);
    size_t nbytes = 0;
    CHECK(writer.finish(&nbytes) == (capacity >= 40) && nbytes == 40);
    for (size_t i = capacity; i < bytes.size(); ++i) CHECK(bytes[i] == 0xee);
  }
}

void test_hostile_strings() {
  std::vector<uint64_t> mask(2);
  size_t nbytes = 0;
  const auto refused = [&](std::vector<uint8_t> bytes, size_t n) {
    const auto copy = tight(bytes);
    BitReader reader(copy.get(), bytes.size());
    return !(tw::read_set(&reader, n, mask.data()) && reader.finish(&nbytes));
  };
  CHECK(!refused({0b01001000, 0b00111000, 0b00000010, 0}, 8));
  CHECK(refused({0b01001000, 0b00111000, 0b00000010}, 8));  // padded to less than 4 bytes
  for (unsigned round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bytes(random_bits() % 20);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_bits() & random_bits());
    const size_t n = random_bits() % 128;
    refused(bytes, n);
    for (size_t i = n; i < 64 * tw::ceil_div(n, 64); ++i) CHECK(!tests::bit(mask, i));
  }
}

}  // namespace

int main() {
  test_by_hand();
  test_codes_round_trip();
  test_sets_round_trip();
  test_sets_are_small();
  test_a_writer_stops_at_its_capacity();
  test_hostile_strings();
  std::printf("ok\n");
  return 0;
}
