#include "common/hash.h"

#include <cstring>

#include "common/bits.h"
#include "common/cpu.h"

namespace tw {

extern const HashKernels kHashScalar, kHashAvx2, kHashAvx512;

namespace {

constexpr size_t kStripe = 64, kStripesPerBlock = 16, kBlock = kStripe * kStripesPerBlock;
constexpr size_t kPad = 256;

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9,
                   kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;

// The algorithm's default secret, as little-endian words.
alignas(64) constexpr uint64_t kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

// The secret's words from byte `at` on; most uses are not aligned to words.
uint64_t secret_at(size_t at) { return load<uint64_t>(reinterpret_cast<const uint8_t*>(kSecret) + at); }

uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t merge(const uint64_t accumulators[8], size_t secret, uint64_t start) {
  uint64_t hash = start;
  for (size_t i = 0; i < 4; ++i) {
    hash += fold(accumulators[2 * i] ^ secret_at(secret + 16 * i),
                 accumulators[2 * i + 1] ^ secret_at(secret + 16 * i + 8));
  }
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

}  // namespace

Hasher::Hasher()
    : accumulators_{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1} {}

void Hasher::consume(const uint8_t* data, size_t num_blocks) {
  for (size_t block = 0; block < num_blocks; ++block) {
    hash_kernels().accumulate(accumulators_, data + block * kBlock, kStripesPerBlock, kSecret);
    for (size_t i = 0; i < 8; ++i) {
      accumulators_[i] = (accumulators_[i] ^ accumulators_[i] >> 47 ^ kSecret[16 + i]) * kPrime32_1;
    }
  }
}

void Hasher::update(const uint8_t* data, size_t nbytes) {
  nbytes_ += nbytes;
  if (buffered_ + nbytes > kBlock) {
    if (buffered_ != 0) {
      const size_t more = kBlock - buffered_;
      std::memcpy(buffer_ + buffered_, data, more);
      consume(buffer_, 1);
      data += more;
      nbytes -= more;
      buffered_ = 0;
    }
    const size_t num_blocks = nbytes == 0 ? 0 : (nbytes - 1) / kBlock;
    consume(data, num_blocks);
    data += num_blocks * kBlock;
    nbytes -= num_blocks * kBlock;
  }
  if (nbytes != 0) std::memcpy(buffer_ + buffered_, data, nbytes);
  buffered_ += nbytes;
}

Hash128 Hasher::finish() {
  const size_t padded = buffered_ == 0 ? kPad : ceil_to(buffered_, kPad);
  const uint64_t nbytes = nbytes_ - buffered_ + padded;
  std::memset(buffer_ + buffered_, 0, padded - buffered_);
  hash_kernels().accumulate(accumulators_, buffer_, padded / kStripe - 1, kSecret);
  uint64_t last_secret[8];
  for (size_t i = 0; i < 8; ++i) last_secret[i] = secret_at(sizeof kSecret - kStripe - 7 + 8 * i);
  hash_kernels().accumulate(accumulators_, buffer_ + padded - kStripe, 1, last_secret);
  return {merge(accumulators_, 11, nbytes * kPrime64_1),
          merge(accumulators_, sizeof kSecret - kStripe - 11, ~(nbytes * kPrime64_2))};
}

Hash128 hash128(const uint8_t* data, size_t nbytes) {
  Hasher hasher;
  hasher.update(data, nbytes);
  return hasher.finish();
}

const HashKernels& hash_kernels() {
  switch (cpu_target()) {
#if defined(__x86_64__)
    case Target::kAvx2:
      return kHashAvx2;
    case Target::kAvx512:
      return kHashAvx512;
#endif
    default:
      return kHashScalar;
  }
}

}  // namespace tw
