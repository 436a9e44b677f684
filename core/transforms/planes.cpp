#include "transforms/planes.h"

#include "common/cpu.h"

namespace tw {

extern const PlaneKernels kPlaneScalar, kPlaneAvx2, kPlaneAvx512, kPlaneNeon;

size_t field_nbytes(size_t n, unsigned width) {
  size_t nbytes = n * (width & ~7u) / 8;  // planes of whole bytes
  for (unsigned p = 4; p != 0; p /= 2) {
    if ((width & p) != 0) nbytes += n / kRun * (kRun * p / 8) + (n % kRun * p + 7) / 8;
  }
  return nbytes;
}

const PlaneKernels& plane_kernels() {
  switch (cpu_target()) {
#if defined(__x86_64__)
    case Target::kAvx2:
      return kPlaneAvx2;
    case Target::kAvx512:
      return kPlaneAvx512;
#elif defined(__aarch64__)
    case Target::kNeon:
      return kPlaneNeon;
#endif
    default:
      return kPlaneScalar;
  }
}

}  // namespace tw
