#include "linear/digit_dot.h"

#include "common/cpu.h"

namespace tw {

extern const DigitDotKernels kDigitDotScalar, kDigitDotAvx2, kDigitDotAvx512;

namespace {

constexpr DigitDotKernels kNone = {nullptr, nullptr};

}  // namespace

const DigitDotKernels& digit_dot_kernels = pick<kDigitDotScalar, kDigitDotAvx2, kDigitDotAvx512, kNone>();

}  // namespace tw
