#if defined(__x86_64__)
#include "transforms/histogram_x86.h"

namespace tw {
extern const HistogramKernels kHistogramAvx2;
const HistogramKernels kHistogramAvx2 = {byte_histogram_vector};
}  // namespace tw
#endif
