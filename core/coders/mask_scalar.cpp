#include <cstdint>

#include "transforms/deposit.h"

namespace tw {
namespace {

inline uint64_t deposit(uint64_t bits, uint64_t places) { return portable_deposit(bits, places); }
inline uint64_t extract(uint64_t number, uint64_t places) { return portable_extract(number, places); }

// Each of the lowest 16 bits to 4 bits beside each other.
inline uint64_t spread(uint64_t bits) {
  bits &= 0xffff;
  bits = (bits | bits << 24) & 0x000000ff000000ff;
  bits = (bits | bits << 12) & 0x000f000f000f000f;
  bits = (bits | bits << 6) & 0x0303030303030303;
  bits = (bits | bits << 3) & 0x1111111111111111;
  return bits * 15;
}

// The other way: a bit for each 4 of which one is set.
inline uint64_t collapse(uint64_t bits) {
  bits |= bits >> 1;
  bits |= bits >> 2;
  bits &= 0x1111111111111111;
  bits = (bits | bits >> 3) & 0x0303030303030303;
  bits = (bits | bits >> 6) & 0x000f000f000f000f;
  bits = (bits | bits >> 12) & 0x000000ff000000ff;
  return (bits | bits >> 24) & 0xffff;
}

}  // namespace
}  // namespace tw

#include "coders/mask_impl.h"

namespace tw {

extern const MaskKernels kMaskScalar;
const MaskKernels kMaskScalar = {deposit_bits, spread_level, collapse_level, count_bits, extract_bits};

}  // namespace tw
