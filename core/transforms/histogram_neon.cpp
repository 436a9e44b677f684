#if defined(__aarch64__)
#include "transforms/histogram_impl.h"

namespace tw {
extern const HistogramKernels kHistogramNeon;
const HistogramKernels kHistogramNeon = {byte_histogram_vector};
}  // namespace tw
#endif
