#if defined(__x86_64__)
#include "transforms/planes_impl.h"

namespace tw {
extern const PlaneKernels kPlaneAvx512;
const PlaneKernels kPlaneAvx512 = {unpack_field, unpack_field_tile, pack_field, pack_field_tile};
}  // namespace tw
#endif
