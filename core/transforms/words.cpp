#include "transforms/words.h"

#include "common/cpu.h"

namespace tw {

extern const WordKernels kWordScalar, kWordAvx2, kWordAvx512;

const WordKernels& word_kernels = pick<kWordScalar, kWordAvx2, kWordAvx512>();

}  // namespace tw
