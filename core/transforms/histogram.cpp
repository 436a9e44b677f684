#include "transforms/histogram.h"

#include <cstring>

#include "common/bits.h"
#include "common/cpu.h"
#include "common/split.h"
#include "transforms/words.h"

namespace tw {

extern const HistogramKernels kHistogramScalar, kHistogramAvx2, kHistogramAvx512, kHistogramNeon;

// Neighbours may be equal, so each of eight consecutive bytes counts in a table of its own: no increment waits for
// the one before. The tables lie further apart than their 1024 bytes: processors take addresses that are alike in the
// lowest 12 bits for the same one, and an increment waits for another that is still under way.
void byte_histogram(const uint8_t* bytes, size_t n, uint32_t histogram[256]) {
  uint32_t tables[8][256 + 16];
  std::memset(tables, 0, sizeof tables);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint64_t eight = load<uint64_t>(bytes + i);
    for (unsigned j = 0; j < 8; ++j) ++tables[j][eight >> (8 * j) & 255];
  }
  for (; i < n; ++i) ++tables[0][bytes[i]];
  for (unsigned s = 0; s < 256; ++s) {
    uint32_t sum = 0;
    for (unsigned j = 0; j < 8; ++j) sum += tables[j][s];
    histogram[s] = sum;
  }
}

namespace {

// Tile by tile: first all x, which takes the vectors, then the counts, in two tables for the reason above.
template <class F>
void count_wide(F format, const uint8_t* exponents, const uint8_t* sign_mantissas, size_t n, uint32_t* histogram,
                uint32_t* other) {
  using Rest = typename F::Rest;
  constexpr size_t kTile = 512;
  const unsigned k = max_extra_bits(format.layout());
  uint16_t x[kTile];
  for (size_t start = 0; start < n; start += kTile) {
    const size_t count = n - start < kTile ? n - start : kTile;
    for (size_t i = 0; i < count; ++i) {
      const Rest number = load<Rest>(sign_mantissas + (start + i) * sizeof(Rest));
      x[i] = static_cast<uint16_t>(static_cast<unsigned>(exponents[start + i]) << k | format.top(number, k));
    }
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
      const uint64_t four = load<uint64_t>(x + i);
      ++histogram[four & 0xffff];
      ++other[four >> 16 & 0xffff];
      ++histogram[four >> 32 & 0xffff];
      ++other[four >> 48];
    }
    for (; i < count; ++i) ++histogram[x[i]];
  }
}

}  // namespace

const HistogramKernels kHistogramScalar = {byte_histogram};

const HistogramKernels& histogram_kernels = pick<kHistogramScalar, kHistogramAvx2, kHistogramAvx512, kHistogramNeon>();

void wide_histogram(const Layout& dtype, const uint8_t* exponents, const uint8_t* sign_mantissas, size_t n,
                    uint32_t histogram[kMaxWideValues]) {
  uint32_t other[kMaxWideValues] = {};
  std::memset(histogram, 0, sizeof other);
  with_split(dtype, [&](auto format) { count_wide(format, exponents, sign_mantissas, n, histogram, other); });
  for (size_t i = 0; i < kMaxWideValues; ++i) histogram[i] += other[i];
}

}  // namespace tw
