// Kernels of one-bit digits against planes and tiers in turn, with few escapes, some, and nothing else; the output is
// not exceeded.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "coders/cascade.h"
#include "coders/one_bit.h"
#include "tests/check.h"
#include "tests/target.h"

namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint8_t kMark = 0xa5;

void check(size_t runs, uint8_t name, unsigned escaped) {
  const size_t n = runs * tw::kRun;
  std::mt19937 random(static_cast<unsigned>(n) * 257 + escaped);
  Bytes digits(n + tw::kSlack), next(n + tw::kSlack), field(n / 8);
  for (size_t i = 0; i < n; ++i) digits[i] = random() % 256 < escaped;
  for (uint8_t& x : next) x = static_cast<uint8_t>(random());
  tw::plane_kernels.pack_field(1, digits.data(), n, field.data());

  uint8_t names[tw::kMaxNames] = {};
  for (unsigned i = 0; i < tw::kMaxNames; i += 2) names[i] = name;
  Bytes expected = digits, out(n + 1, kMark);
  const size_t used = tw::cascade_kernels.expand(1, names, next.data(), n, expected.data());
  CHECK(tw::one_bit_kernels.expand(field.data(), name, next.data(), runs, out.data()) == used);
  CHECK(std::memcmp(out.data(), expected.data(), n) == 0);
  CHECK(out[n] == kMark);
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  if (tw::one_bit_kernels.expand != nullptr) {
    for (const size_t runs : {0u, 1u, 2u, 7u, 33u}) {
      for (const unsigned escaped : {0u, 1u, 60u, 128u, 255u, 256u}) check(runs, 117, escaped);
    }
  }
  std::printf("ok\n");
  return 0;
}
