// H(m) of docs/format.md: XXH3-128 (seed 0, default secret) of m followed by zeros up to the next multiple of 256
// bytes, at least 256. The padding leaves XXH3's long-input path as the only one.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

constexpr size_t kHashStripe = 64;        // what the accumulators take at once
constexpr size_t kHashBlockStripes = 16;  // after so many they are scrambled
constexpr size_t kHashPad = 256;

struct Hash128 {
  uint64_t low, high;
};

struct HashKernels {
  // Feed num_stripes of 64 bytes to the 8 accumulators; `phase` of the current block's 16 stripes came before. Reads
  // exactly 64 * num_stripes bytes.
  void (*accumulate)(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase);
  // The same, and a copy of the data, of which each byte is read once: others may write there.
  void (*copy)(uint64_t acc[8], const uint8_t* data, size_t num_stripes, size_t phase, uint8_t* copy);
};

extern const HashKernels& hash_kernels;

// H of what is fed to it, however much at a time.
class Hasher {
 public:
  explicit Hasher(const HashKernels& kernels = hash_kernels);
  void update(const uint8_t* data, size_t nbytes);
  // update() of a copy, which is made on the way: each byte of data is read once.
  void copy(const uint8_t* data, size_t nbytes, uint8_t* copy);
  // The hash; the hasher is spent.
  Hash128 finish();

 private:
  void accumulate(const uint8_t* data, size_t num_stripes);

  const HashKernels* kernels_;
  uint64_t acc_[8];
  uint64_t num_stripes_ = 0;
  // The latest 1 to 256 bytes: finish() treats the last stripe differently. Empty before the first update.
  size_t buffered_ = 0;
  uint8_t buffer_[kHashPad];
};

Hash128 hash128(const uint8_t* data, size_t nbytes);

}  // namespace tw
