#if defined(__aarch64__)
#include "transforms/planes_impl.h"

namespace tw {
extern const PlaneKernels kPlaneNeon;
const PlaneKernels kPlaneNeon = {unpack_field, unpack_field_tile, pack_field, pack_field_tile};
}  // namespace tw
#endif
