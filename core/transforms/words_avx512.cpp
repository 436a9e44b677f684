#if defined(__x86_64__)
#include "transforms/words_impl.h"

namespace tw {
extern const WordKernels kWordAvx512;
const WordKernels kWordAvx512 = kWordKernels;
}  // namespace tw
#endif
