#include "transforms/planes.h"

#include "common/cpu.h"

namespace tw {

extern const PlaneKernels kPlaneScalar, kPlaneAvx2, kPlaneAvx512;

namespace {

bool filler_of_plane_is_zero(const uint8_t* plane, size_t n, unsigned p) {
  const size_t nbytes = plane_nbytes(p, n);
  if (p >= 8) {
    for (size_t i = n * p / 8; i < nbytes; ++i) {
      if (plane[i] != 0) return false;
    }
    return true;
  }
  const size_t count = n % kRun, lanes = plane_nbytes(p, count);
  if (count == 0) return true;
  plane += nbytes - lanes;
  // The first lanes have a number more than the others.
  const size_t numbers = count / lanes, longer = count % lanes;
  uint8_t of_longer = 0, of_others = 0;
  for (size_t j = 0; j < longer; ++j) of_longer |= plane[j];
  for (size_t j = longer; j < lanes; ++j) of_others |= plane[j];
  return of_longer >> (p * (numbers + 1)) == 0 && of_others >> (p * numbers) == 0;
}

}  // namespace

bool filler_is_zero(const uint8_t* field, size_t n, unsigned width) {
  for (unsigned p = kMaxPlaneBits; p != 0; p /= 2) {
    if ((width & p) == 0) continue;
    if (!filler_of_plane_is_zero(field, n, p)) return false;
    field += plane_nbytes(p, n);
  }
  return true;
}

const PlaneKernels& plane_kernels = pick<kPlaneScalar, kPlaneAvx2, kPlaneAvx512>();

}  // namespace tw
