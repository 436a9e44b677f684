#if defined(__x86_64__)
#include "coders/class_costs_impl.h"

namespace tw {

extern const ClassCostKernels kClassCostAvx2;
const ClassCostKernels kClassCostAvx2 = {costs};

}  // namespace tw
#endif
