#include "transforms/words.h"

#include "common/cpu.h"

namespace tw {

extern const WordKernels kWordScalar, kWordAvx2, kWordAvx512, kWordNeon;

unsigned rest_nbytes(const Dtype& dtype, bool split) {
  if (!split) return dtype.word_nbytes;
  return dtype.mantissa_bits < 8 ? 1 : dtype.mantissa_bits < 16 ? 2 : 4;
}

const WordKernels& word_kernels = pick<kWordScalar, kWordAvx2, kWordAvx512, kWordNeon>();

}  // namespace tw
