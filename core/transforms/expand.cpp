#include "transforms/expand.h"

#include "common/cpu.h"

namespace tw {

extern const ExpandKernels kExpandScalar, kExpandAvx2, kExpandAvx512, kExpandNeon;

const ExpandKernels& expand_kernels = pick<kExpandScalar, kExpandAvx2, kExpandAvx512, kExpandNeon>();

}  // namespace tw
