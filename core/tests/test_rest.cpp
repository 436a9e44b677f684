// Trimmed rests of blocks whose bytes change between check and use, as those of a mapped file may.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "coders/rest.h"
#include "tests/check.h"

namespace {

constexpr size_t kNumbers = 3 * tw::kRun;

// 8-byte numbers; 32 bits above and, by run, 8, 16 or 24 bits below are zero.
uint64_t number(size_t i) { return uint64_t{i % 256 | 128} << (8 + 8 * (i / tw::kRun)); }

}  // namespace

int main() {
  constexpr unsigned kLead = 32, kWidth = 64;
  std::vector<uint8_t> block = {8, 16, 24, 0};
  for (size_t r = 0; r < 3; ++r) {
    const unsigned width = 3 - static_cast<unsigned>(r);  // in bytes, like the planes: the largest first
    for (unsigned plane : {2u, 1u}) {
      if ((width & plane) == 0) continue;
      const unsigned below = width == 3 && plane == 1 ? 16 : 0;
      for (size_t i = r * tw::kRun; i < (r + 1) * tw::kRun; ++i) {
        const uint64_t bits = number(i) >> (8 + 8 * r) >> below;
        block.insert(block.end(), reinterpret_cast<const uint8_t*>(&bits),
                     reinterpret_cast<const uint8_t*>(&bits) + plane);
      }
    }
  }
  const size_t nbytes = block.size();
  block.resize(nbytes + tw::kSlack);
  const uint8_t params[] = {kLead, tw::kTrailPerRun};
  const auto scratch = std::make_unique<tw::RestDecodeScratch>();
  tw::RestDecoder rests;
  CHECK(rests.open(tw::kTrimmed, {false, 8, kWidth}, kNumbers, block.data(), nbytes, params, scratch.get()) == nullptr);
  for (const uint8_t trail : {block[0], uint8_t{0}, uint8_t{33}, uint8_t{255}}) {
    std::memset(block.data(), trail, 3);
    const uint8_t* numbers = rests.segment(0, kNumbers);
    for (size_t i = 0; i < kNumbers; ++i) CHECK(tw::load<uint64_t>(numbers + 8 * i) == number(i));
  }
  std::printf("ok\n");
  return 0;
}
