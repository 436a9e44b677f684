#include "transforms/steps.h"

#include "common/cpu.h"

namespace tw {

extern const StepKernels kStepScalar, kStepAvx2, kStepAvx512;

const StepKernels& step_kernels = pick<kStepScalar, kStepAvx2, kStepAvx512>();

}  // namespace tw
