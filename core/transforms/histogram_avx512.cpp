#if defined(__x86_64__)
#include "transforms/histogram_x86.h"

namespace tw {
extern const HistogramKernels kHistogramAvx512;
const HistogramKernels kHistogramAvx512 = {byte_histogram_vector};
}  // namespace tw
#endif
