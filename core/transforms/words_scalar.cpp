#include "transforms/words_impl.h"

namespace tw {
extern const WordKernels kWordScalar;
const WordKernels kWordScalar = kWordKernels;
}  // namespace tw
