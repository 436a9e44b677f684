#include "coders/class_costs_impl.h"

namespace tw {

extern const ClassCostKernels kClassCostScalar;
const ClassCostKernels kClassCostScalar = {costs};

}  // namespace tw
