#include "transforms/scaled.h"

#include "common/cpu.h"

namespace tw {

extern const ScaledKernels kScaledScalar, kScaledAvx2;

const ScaledKernels& scaled_kernels = pick<kScaledScalar, kScaledAvx2, kScaledAvx2>();

}  // namespace tw
