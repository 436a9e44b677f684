#if defined(__x86_64__)
#include "transforms/planes_impl.h"

namespace tw {
extern const PlaneKernels kPlaneAvx512;
const PlaneKernels kPlaneAvx512 = {unpack, pack, unpack_field, pack_field};
}  // namespace tw
#endif
