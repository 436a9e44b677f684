// The entropy stream of docs/format.md: static rANS over bytes, 12-bit frequencies, 32 interleaved states.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/entropy_table.h"
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
struct EntropyTables {
  unsigned num_classes, shift;
  EntropyTable of_classes[kMaxEntropyTables];
};
// Choose the tables for a histogram of joint symbols. Returns what entropy_estimate() does.
size_t entropy_choose_classes(const uint32_t histogram[256], unsigned num_classes, unsigned shift,
                              EntropyTables* tables);
size_t entropy_encode_classes(const uint8_t* joint, size_t n, const EntropyTables& tables, uint8_t* dst,
                              size_t capacity, EntropyScratch* scratch, const RansKernels& kernels = rans_kernels);

// What the decoders below share: a stream in the middle of being decoded.
class EntropyStream {
 public:
  // After the last tile: whether the stream ended as it must.
  bool finish() const;

 protected:
  // What stands behind the tables of a stream at src.
  bool open(const uint8_t* src, size_t available, size_t n, size_t tables_nbytes, size_t* consumed,
            const RansKernels& kernels);
  void decode(const uint32_t* tables, const uint8_t* classes, uint8_t* out, size_t count);
  // Symbols of two streams, as many of each as go well together. Returns how many.
  static size_t decode_two(EntropyStream* a, RansStream a_stream, EntropyStream* b, RansStream b_stream, size_t count);
  RansStream stream(const uint32_t* tables, const uint8_t* classes, uint8_t* out) {
    return {tables, classes, states_, next_, end_, out};
  }

 private:
  alignas(64) uint32_t states_[kRansStates];
  const RansKernels* kernels_;
  const uint8_t* next_;
  const uint8_t* end_;
};

// Decodes a stream tile by tile. No input makes it read or write out of bounds.
class EntropyDecoder : public EntropyStream {
 public:
  // Check table, states and sizes of the stream of n symbols at src; kRansSlack bytes are readable behind the
  // `available` ones. *consumed receives the bytes of the stream. src must outlive the decoding.
  bool open(const uint8_t* src, size_t available, size_t n, size_t* consumed,
            const RansKernels& kernels = rans_kernels);
  // The next `count` symbols: a multiple of kRansStates but in the last tile; n in all. Writes exactly those.
  void decode(uint8_t* out, size_t count);
  // The first `count` symbols of two streams, faster than one after the other; then decode() goes on with each.
  static void decode_two(EntropyDecoder* a, uint8_t* a_out, EntropyDecoder* b, uint8_t* b_out, size_t count);

 private:
  alignas(64) uint32_t table_[kRansTotal];
};

// Likewise a stream with a table for each class.
class EntropyClassDecoder : public EntropyStream {
 public:
  bool open(const uint8_t* src, size_t available, size_t n, unsigned num_classes, size_t* consumed,
            const RansKernels& kernels = rans_kernels);
  // classes[i], below num_classes, is that of symbol i.
  void decode(const uint8_t* classes, uint8_t* out, size_t count);
  // The next `count` symbols of two streams.
  static void decode_two(EntropyClassDecoder* a, const uint8_t* a_classes, uint8_t* a_out, EntropyClassDecoder* b,
                         const uint8_t* b_classes, uint8_t* b_out, size_t count);

 private:
  alignas(64) uint32_t tables_[kMaxEntropyTables * kRansTotal];
};

}  // namespace tw
