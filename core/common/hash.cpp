#include "common/hash.h"

#include <algorithm>

#include "common/cpu.h"
#include "common/hash_secret.h"

namespace tw {
namespace {

// One stripe; `secret` is the place in the secret that belongs to it.
void accumulate_stripe(uint64_t acc[8], const uint8_t* stripe, const uint8_t* secret) {
  uint64_t values[8];
  std::memcpy(values, stripe, sizeof values);
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t key = values[i] ^ load<uint64_t>(secret + 8 * i);
    acc[i] += values[i ^ 1] + (key & 0xffffffff) * (key >> 32);
  }
}

void accumulate_scalar(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase) {
  for (size_t n = 0; n < num_stripes; ++n) {
    accumulate_stripe(acc, data + n * kHashStripe, kHashSecret + 8 * phase);
    if (++phase < kHashBlockStripes) continue;
    phase = 0;
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t key = load<uint64_t>(kHashSecret + kHashScrambleAt + 8 * i);
      acc[i] = (acc[i] ^ acc[i] >> 47 ^ key) * kHashPrime32[0];
    }
  }
}

void copy_scalar(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy) {
  std::memcpy(copy, data, num_stripes * kHashStripe);
  accumulate_scalar(acc, copy, num_stripes, phase);
}

// The two halves of the 128-bit product, folded into one.
uint64_t multiply_fold(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t merge(const uint64_t acc[8], const uint8_t* secret, uint64_t start) {
  uint64_t hash = start;
  for (size_t i = 0; i < 8; i += 2) {
    hash += multiply_fold(acc[i] ^ load<uint64_t>(secret + 8 * i), acc[i + 1] ^ load<uint64_t>(secret + 8 * i + 8));
  }
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

}  // namespace

extern const HashKernels kHashScalar, kHashAvx2, kHashAvx512, kHashNeon;
const HashKernels kHashScalar = {accumulate_scalar, copy_scalar};

const HashKernels& hash_kernels = pick<kHashScalar, kHashAvx2, kHashAvx512, kHashNeon>();

Hasher::Hasher(const HashKernels& kernels)
    : kernels_(&kernels), acc_{kHashPrime32[2], kHashPrime64[0], kHashPrime64[1], kHashPrime64[2],
                               kHashPrime64[3], kHashPrime32[1], kHashPrime64[4], kHashPrime32[0]} {}

void Hasher::accumulate(const uint8_t* data, size_t num_stripes) {
  kernels_->accumulate(acc_, data, num_stripes, num_stripes_ % kHashBlockStripes);
  num_stripes_ += num_stripes;
}

void Hasher::update(const uint8_t* data, size_t nbytes) {
  if (nbytes == 0) return;
  if (buffered_ != 0) {
    const size_t more = std::min(kHashPad - buffered_, nbytes);
    std::memcpy(buffer_ + buffered_, data, more);
    buffered_ += more;
    data += more;
    nbytes -= more;
    if (nbytes == 0) return;
    accumulate(buffer_, kHashPad / kHashStripe);
  }
  const size_t direct = (nbytes - 1) / kHashPad * kHashPad;
  accumulate(data, direct / kHashStripe);
  buffered_ = nbytes - direct;
  std::memcpy(buffer_, data + direct, buffered_);
}

void Hasher::copy(const uint8_t* data, size_t nbytes, uint8_t* copy) {
  const auto update_copy = [&](size_t count) {
    std::memcpy(copy, data, count);
    update(copy, count);
    copy += count;
    data += count;
    nbytes -= count;
  };
  if (buffered_ != 0) update_copy(std::min(kHashPad - buffered_, nbytes));
  if (nbytes > kHashPad) {
    if (buffered_ != 0) accumulate(buffer_, kHashPad / kHashStripe);
    buffered_ = 0;
    const size_t direct = (nbytes - 1) / kHashPad * kHashPad, num_stripes = direct / kHashStripe;
    kernels_->copy(acc_, data, num_stripes, num_stripes_ % kHashBlockStripes, copy);
    num_stripes_ += num_stripes;
    copy += direct;
    data += direct;
    nbytes -= direct;
  }
  update_copy(nbytes);
}

Hash128 Hasher::finish() {
  std::memset(buffer_ + buffered_, 0, kHashPad - buffered_);
  const size_t before_last = kHashPad / kHashStripe - 1;
  accumulate(buffer_, before_last);
  accumulate_stripe(acc_, buffer_ + before_last * kHashStripe, kHashSecret + kHashScrambleAt - 7);
  const uint64_t nbytes = (num_stripes_ + 1) * kHashStripe;
  return {merge(acc_, kHashSecret + 11, nbytes * kHashPrime64[0]),
          merge(acc_, kHashSecret + kHashScrambleAt - 11, ~(nbytes * kHashPrime64[1]))};
}

Hash128 hash128(const uint8_t* data, size_t nbytes) {
  Hasher hasher;
  hasher.update(data, nbytes);
  return hasher.finish();
}

}  // namespace tw
