// H of docs/format.md: XXH3-128 (seed 0, default secret) over the input followed by zeros up to a multiple of 256
// bytes, at least 256. Only the algorithm's path for long inputs is ever taken.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

struct Hash128 {
  uint64_t low, high;
};

// Reads data[0, nbytes) and no further.
Hash128 hash128(const uint8_t* data, size_t nbytes);

// The same over pieces.
class Hasher {
 public:
  Hasher();
  void update(const uint8_t* data, size_t nbytes);
  Hash128 finish();

 private:
  void consume(const uint8_t* data, size_t num_blocks);

  uint64_t accumulators_[8];
  uint64_t nbytes_ = 0;
  size_t buffered_ = 0;
  uint8_t buffer_[1024];  // the last block waits here: its last stripe is treated in a way of its own
};

struct HashKernels {
  // Stripes of 64 bytes into the accumulators; stripe i takes the secret's words from i on.
  void (*accumulate)(uint64_t accumulators[8], const uint8_t* data, size_t num_stripes, const uint64_t* secret);
};

const HashKernels& hash_kernels();

}  // namespace tw
