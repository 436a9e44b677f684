#include "linear/dot.h"

#include "common/cpu.h"

namespace tw {

extern const FindDot kFindDotScalar, kFindDotAvx2, kFindDotAvx512, kFindDotNeon;

const DotKernels* find_dot(tw_order order, WeightFormat format) {
  static const FindDot find = pick<kFindDotScalar, kFindDotAvx2, kFindDotAvx512, kFindDotNeon>();
  return find(order, format);
}

}  // namespace tw
