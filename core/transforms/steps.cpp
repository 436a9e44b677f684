#include "transforms/steps.h"

#include "common/cpu.h"

namespace tw {

extern const StepKernels kStepScalar, kStepAvx2, kStepAvx512, kStepNeon;

const StepKernels& step_kernels = pick<kStepScalar, kStepAvx2, kStepAvx512, kStepNeon>();

}  // namespace tw
