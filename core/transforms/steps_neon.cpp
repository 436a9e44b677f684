#if defined(__aarch64__)
#include "transforms/steps_masks.h"

namespace tw {
namespace {
using Masks = PortableMasks;
}
}  // namespace tw

#include "transforms/steps_impl.h"  // behind Masks, which it uses

namespace tw {

extern const StepKernels kStepNeon;
const StepKernels kStepNeon = kStepKernels;

}  // namespace tw
#endif
