#include "coders/enec.h"

#include <cstring>

#include "common/cpu.h"
#include "transforms/words.h"

namespace tw {

extern const EnecKernels kEnecScalar, kEnecAvx2, kEnecAvx512, kEnecNeon;

namespace {

constexpr uint64_t kOnes = 0x0101010101010101u;  // 1 in each byte

// Flag the groups in which any y has more than m bits and append those to `high`. y holds zeros up to whole groups.
// Returns the number of words appended.
template <size_t L>
size_t pick_groups(const uint8_t* y, size_t n, unsigned m, uint8_t* flags, uint8_t* high) {
  const uint64_t high_bits = kOnes * (0xffu << m & 0xff);
  size_t count = 0;
  for (size_t i = 0; i < n; i += L) {
    uint64_t any = 0;
    if constexpr (L == kQuad) {
      any = load<uint32_t>(y + i);
    } else {
      for (size_t j = 0; j < L; j += 8) any |= load<uint64_t>(y + i + j);
    }
    const bool flagged = (any & high_bits) != 0;
    *flags++ = flagged;
    std::memcpy(high + count, y + i, L);  // kept only if flagged: cheaper than a branch
    count += flagged ? L : 0;
  }
  return count;
}

size_t pick(unsigned log2_group, const uint8_t* y, size_t n, unsigned m, uint8_t* flags, uint8_t* high) {
  switch (log2_group) {
    case 2:
      return pick_groups<4>(y, n, m, flags, high);
    case 3:
      return pick_groups<8>(y, n, m, flags, high);
    case 4:
      return pick_groups<16>(y, n, m, flags, high);
    default:
      return pick_groups<32>(y, n, m, flags, high);
  }
}

size_t num_groups(size_t n, unsigned log2_group) { return ceil_div(n, size_t{1} << log2_group); }

// Words that the last group lacks.
size_t missing_words(size_t n, unsigned log2_group) { return (num_groups(n, log2_group) << log2_group) - n; }

// Each bit twice.
uint64_t double_bits(uint32_t bits) {
  uint64_t spread = bits;
  spread = (spread | spread << 16) & 0x0000ffff0000ffffu;
  spread = (spread | spread << 8) & 0x00ff00ff00ff00ffu;
  spread = (spread | spread << 4) & 0x0f0f0f0f0f0f0f0fu;
  spread = (spread | spread << 2) & 0x3333333333333333u;
  spread = (spread | spread << 1) & 0x5555555555555555u;
  return spread * 3;
}

// One byte per group, 0 or 1, to one bit per quad of the groups' words, zeros behind. Returns the number of groups that
// are 1.
size_t quads_of_groups(uint8_t* flags, size_t groups, unsigned log2_group, uint8_t* quads) {
  constexpr uint64_t kGather = 0x0102040810204080u;  // moves bit 0 of byte j to bit 56 + j
  std::memset(flags + groups, 0, kSlack);
  size_t count = 0;
  for (size_t i = 0; i < groups; i += 8) {
    const uint64_t eight = load<uint64_t>(flags + i);
    count += eight * kOnes >> 56;
    quads[i / 8] = static_cast<uint8_t>(eight * kGather >> 56);
  }
  size_t nbytes = (groups + 7) / 8;
  std::memset(quads + nbytes, 0, kSlack);
  for (unsigned log2_size = 2; log2_size < log2_group; ++log2_size) {
    // From the end, since it grows in place. Bytes written beyond 2 * nbytes are doubled zeros.
    for (size_t i = ceil_div(nbytes, 4); i-- > 0;) store(quads + 8 * i, double_bits(load<uint32_t>(quads + 4 * i)));
    nbytes *= 2;
    std::memset(quads + nbytes, 0, kSlack);
  }
  return count;
}

}  // namespace

size_t enec_stream_nbytes(size_t n, const EnecParams& params, uint32_t num_high) {
  return field_nbytes(n, params.m) + field_nbytes(num_groups(n, params.log2_group), 1) +
         field_nbytes(num_high, params.nb - params.m);
}

void enec_encode(const uint8_t* x, size_t n, const EnecParams& params, uint8_t* dst, EnecScratch* scratch) {
  const PlaneKernels& planes = plane_kernels;
  const unsigned mask = (1u << params.nb) - 1;
  uint8_t* y = scratch->numbers;
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<uint8_t>((params.b - x[i]) & mask);
  std::memset(y + n, 0, kSlack);
  planes.pack_field(params.m, y, n, dst);
  dst += field_nbytes(n, params.m);

  const size_t groups = num_groups(n, params.log2_group);
  size_t num_high = pick(params.log2_group, y, n, params.m, scratch->flags, scratch->high);
  if (groups != 0 && scratch->flags[groups - 1] != 0) num_high -= missing_words(n, params.log2_group);
  planes.pack_field(1, scratch->flags, groups, dst);
  dst += field_nbytes(groups, 1);

  for (size_t i = 0; i < num_high; ++i) scratch->high[i] = static_cast<uint8_t>(scratch->high[i] >> params.m);
  planes.pack_field(params.nb - params.m, scratch->high, num_high, dst);
}

bool enec_decode(const uint8_t* streams, size_t n, unsigned exponent_bits, const EnecParams& params, uint32_t num_high,
                 uint8_t* out, EnecScratch* scratch) {
  const PlaneKernels& planes = plane_kernels;
  const size_t groups = num_groups(n, params.log2_group);
  const uint8_t* mask = streams + field_nbytes(n, params.m);
  planes.unpack_field(1, mask, groups, scratch->flags);
  const size_t flagged = quads_of_groups(scratch->flags, groups, params.log2_group, scratch->quads);
  const bool last = groups != 0 && scratch->flags[groups - 1] != 0;
  if ((flagged << params.log2_group) - (last ? missing_words(n, params.log2_group) : 0) != num_high) return false;
  planes.unpack_field(params.nb - params.m, mask + field_nbytes(groups, 1), num_high, scratch->high);

  const unsigned sign = 1u << (params.nb - 1);
  const EnecMap map = {static_cast<uint8_t>(params.b + sign), static_cast<uint8_t>(sign),
                       static_cast<uint8_t>((1u << exponent_bits) - 1), params.m};
  const uint8_t* high = scratch->high;
  for (size_t first = 0; first < n; first += kSegment) {
    const size_t count = n - first < kSegment ? n - first : kSegment;
    planes.unpack_field_tile(params.m, streams, n, first, count, out + first);
    high += enec_kernels.merge(map, scratch->quads + first / (8 * kQuad), high, count, out + first);
  }
  return true;
}

const EnecKernels& enec_kernels = pick<kEnecScalar, kEnecAvx2, kEnecAvx512, kEnecNeon>();

}  // namespace tw
