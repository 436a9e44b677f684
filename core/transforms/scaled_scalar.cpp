#include "transforms/scaled_impl.h"

namespace tw {

extern const ScaledKernels kScaledScalar;
const ScaledKernels kScaledScalar = {multiply_portable};

}  // namespace tw
