#include "linear/dot.h"

#include <algorithm>

#include "common/cpu.h"

namespace tw {

extern const DotKernels kDotScalar, kDotAvx2, kDotAvx512, kDotNeon;

const DotKernels& dot_kernels = pick<kDotScalar, kDotAvx2, kDotAvx512, kDotNeon>();

void arrange_input(WeightFormat format, const float* input, size_t columns, float* arranged) {
  for (size_t first = 0; first < columns; first += kDotLanes) {
    for (size_t lane = 0; lane < kDotLanes; ++lane) {
      const size_t half = kDotLanes / 2;
      const size_t column = format == WeightFormat::kBf16 ? 2 * (lane % half) + lane / half : lane;
      arranged[first + lane] = first + column < columns ? input[first + column] : 0.0f;
    }
  }
}

}  // namespace tw
