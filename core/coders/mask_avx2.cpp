#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

namespace tw {
namespace {

inline uint64_t deposit(uint64_t bits, uint64_t places) { return _pdep_u64(bits, places); }
inline uint64_t extract(uint64_t number, uint64_t places) { return _pext_u64(number, places); }

}  // namespace
}  // namespace tw

#include "coders/mask_impl.h"

namespace tw {

extern const MaskKernels kMaskAvx2;
const MaskKernels kMaskAvx2 = {deposit_bits, extract_bits};

}  // namespace tw
#endif
