#include "transforms/planes_impl.h"

namespace tw {
extern const PlaneKernels kPlaneScalar;
const PlaneKernels kPlaneScalar = {unpack_field, unpack_field_tile, pack_field, pack_field_tile};
}  // namespace tw
