// The entropy stream of docs/format.md: static rANS over bytes, 12-bit frequencies, 32 interleaved states.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/rans.h"
#include "common/format.h"

namespace tw {

constexpr size_t kMaxEntropySymbols = kMaxBlockWords;

struct EntropyScratch {
  uint16_t words[kMaxEntropySymbols];
};

// About how many bytes (to 0.1 %) entropy_encode() takes for n symbols (at least 1) with this histogram. Integers only:
// the same on every machine.
size_t entropy_estimate(const uint32_t histogram[256], size_t n);

// Write the stream of n symbols, 1 to kMaxEntropySymbols, whose histogram is given. Returns its bytes, 0 if they exceed
// the capacity (dst is not written then).
size_t entropy_encode(const uint8_t* symbols, size_t n, const uint32_t histogram[256], uint8_t* dst, size_t capacity,
                      EntropyScratch* scratch, const RansKernels& kernels = rans_kernels);

// The same with a table for each class: joint symbols have the class from bit `shift` on and the symbol below. At most
// 8 classes, and 256 joint symbols; some classes may have none.
constexpr unsigned kMaxEntropyTables = 8;
size_t entropy_estimate_classes(const uint32_t histogram[256], unsigned num_classes, unsigned shift);
size_t entropy_encode_classes(const uint8_t* joint, size_t n, const uint32_t histogram[256], unsigned num_classes,
                              unsigned shift, uint8_t* dst, size_t capacity, EntropyScratch* scratch,
                              const RansKernels& kernels = rans_kernels);

// Decodes a stream tile by tile. No input makes it read or write out of bounds.
class EntropyDecoder {
 public:
  // Check table, states and sizes of the stream of n symbols at src; kRansSlack bytes are readable behind the
  // `available` ones. *consumed receives the bytes of the stream. src must outlive the decoding.
  bool open(const uint8_t* src, size_t available, size_t n, size_t* consumed,
            const RansKernels& kernels = rans_kernels);
  // The next `count` symbols: a multiple of kRansStates but in the last tile; n in all. Writes exactly those.
  void decode(uint8_t* out, size_t count);
  // The first `count` symbols of two streams, faster than one after the other; then decode() goes on with each.
  static void decode_two(EntropyDecoder* a, uint8_t* a_out, EntropyDecoder* b, uint8_t* b_out, size_t count);
  // After the last tile: whether the stream ended as it must.
  bool finish() const;

 private:
  alignas(64) uint32_t table_[kRansTotal];
  alignas(64) uint32_t states_[kRansStates];
  const RansKernels* kernels_;
  const uint8_t* next_;
  const uint8_t* end_;
};

// Likewise a stream with a table for each class.
class EntropyClassDecoder {
 public:
  bool open(const uint8_t* src, size_t available, size_t n, unsigned num_classes, size_t* consumed,
            const RansKernels& kernels = rans_kernels);
  // classes[i], below num_classes, is that of symbol i.
  void decode(const uint8_t* classes, uint8_t* out, size_t count);
  bool finish() const;

 private:
  alignas(64) uint32_t tables_[kMaxEntropyTables * kRansTotal];
  alignas(64) uint32_t states_[kRansStates];
  const RansKernels* kernels_;
  const uint8_t* next_;
  const uint8_t* end_;
};

}  // namespace tw
