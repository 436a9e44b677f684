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

bool filler_is_zero(const uint8_t* field, size_t n, unsigned width) {
  field += n * (width & ~7u) / 8;
  for (unsigned p = 4; p != 0; p /= 2) {
    if ((width & p) == 0) continue;
    field += n / kRun * (kRun * p / 8);
    const size_t count = n % kRun, lanes = (count * p + 7) / 8;
    for (size_t i = count; i < lanes * (8 / p); ++i) {
      if ((field[i % lanes] >> (p * (i / lanes)) & ((1u << p) - 1)) != 0) return false;
    }
    field += lanes;
  }
  return true;
}

const PlaneKernels& plane_kernels = pick<kPlaneScalar, kPlaneAvx2, kPlaneAvx512, kPlaneNeon>();

}  // namespace tw
