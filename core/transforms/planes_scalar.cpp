#include "transforms/planes_impl.h"

namespace tw {
extern const PlaneKernels kPlaneScalar;
const PlaneKernels kPlaneScalar = {unpack_field, unpack_field_part, pack_field, pack_field_part};
}  // namespace tw
