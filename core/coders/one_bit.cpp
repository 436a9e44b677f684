#include "coders/one_bit.h"

#include "common/cpu.h"

namespace tw {

extern const OneBitKernels kOneBitAvx2, kOneBitAvx512;

namespace {

constexpr OneBitKernels kNone = {nullptr};

}  // namespace

const OneBitKernels& one_bit_kernels = pick<kNone, kOneBitAvx2, kOneBitAvx512>();

}  // namespace tw
