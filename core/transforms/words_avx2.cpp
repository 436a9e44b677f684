#if defined(__x86_64__)
#include "transforms/words_impl.h"

namespace tw {
extern const WordKernels kWordAvx2;
const WordKernels kWordAvx2 = kWordKernels;
}  // namespace tw
#endif
