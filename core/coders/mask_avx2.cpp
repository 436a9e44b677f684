#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

namespace tw {
namespace {

inline uint64_t deposit(uint64_t bits, uint64_t places) { return _pdep_u64(bits, places); }
inline uint64_t extract(uint64_t number, uint64_t places) { return _pext_u64(number, places); }

// Each of the lowest 16 bits to 4 bits beside each other, and a bit for each 4 of which one is set.
inline uint64_t spread(uint64_t bits) { return _pdep_u64(bits, 0x1111111111111111) * 15; }
inline uint64_t collapse(uint64_t bits) {
  bits |= bits >> 1;
  bits |= bits >> 2;
  return _pext_u64(bits, 0x1111111111111111);
}

}  // namespace
}  // namespace tw

#include "coders/mask_impl.h"

namespace tw {

extern const MaskKernels kMaskAvx2;
const MaskKernels kMaskAvx2 = {deposit_bits, spread_level, collapse_level, count_bits, extract_bits};

}  // namespace tw
#endif
