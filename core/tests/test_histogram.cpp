// Histograms of bytes against counting one by one: every size around whole vectors and groups of them, bytes that lie
// close together, far apart, at both ends.
#include <cstdio>
#include <random>
#include <vector>

#include "tests/check.h"
#include "tests/target.h"
#include "transforms/histogram.h"

namespace {

using Bytes = std::vector<uint8_t>;

void check(const Bytes& bytes, size_t n) {
  uint32_t expected[256] = {}, counts[256], plain[256];
  for (size_t i = 0; i < n; ++i) ++expected[bytes[i]];
  tw::histogram_kernels.bytes(bytes.data(), n, counts);
  tw::byte_histogram(bytes.data(), n, plain);
  CHECK(std::memcmp(counts, expected, sizeof counts) == 0);
  CHECK(std::memcmp(plain, expected, sizeof plain) == 0);
}

// `others` of 256 bytes are anything, the rest one of `values` from `first` on.
Bytes make(size_t n, unsigned first, unsigned values, unsigned others) {
  std::mt19937 random(first * 65536 + values * 256 + others);
  Bytes bytes(n);
  for (uint8_t& byte : bytes) {
    const unsigned any = static_cast<unsigned>(random());
    byte = static_cast<uint8_t>(any % 256 < others ? any >> 8 : first + (any >> 8) % values);
  }
  return bytes;
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  constexpr size_t kLarge = 300000;  // more than bytes can count, whatever the vectors
  for (const unsigned first : {0u, 1u, 100u, 239u, 240u, 250u, 255u}) {
    for (const unsigned values : {1u, 3u, 16u, 17u, 256u}) {
      for (const unsigned others : {0u, 1u, 20u}) {
        const Bytes bytes = make(kLarge, first, values, others);
        for (size_t n = 0; n < 2100; n += n < 300 ? 1 : 61) check(bytes, n);
        check(bytes, kLarge - 1);
      }
    }
  }
  std::printf("ok\n");
  return 0;
}
