#include "transforms/planes_impl.h"

namespace tw {
extern const PlaneKernels kPlaneScalar;
const PlaneKernels kPlaneScalar = {unpack, pack, unpack_field, pack_field};
}  // namespace tw
