// The rests of a block: verbatim fields, fields trimmed of zero bits, or slices of bytes (docs/format.md, "The rest").
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/entropy.h"
#include "common/format.h"
#include "transforms/planes.h"
#include "transforms/words.h"

namespace tw {

constexpr size_t kMaxRuns = kMaxBlockWords / kRun;

// The rests of a block in memory: n numbers of `width` bits in `nbytes` bytes each.
struct Rests {
  const uint8_t* numbers;
  size_t n;
  unsigned nbytes, width;
};

// How they are to be written.
struct RestPlan {
  uint8_t mode;                    // Rest
  uint8_t lead, trail;             // kTrimmed
  uint8_t slices[kMaxWordNbytes];  // kBytes
  size_t params_nbytes;
  size_t streams_nbytes;  // an estimate where a slice is entropy coded, else exact
};

struct RestScratch {
  alignas(64) uint8_t bytes[kMaxBlockWords + kSlack];
  uint32_t histograms[kMaxWordNbytes][256];
  EntropyScratch entropy;
};

// Choose the smallest plan; `runs` are the ORs of the runs. It has slices only if `allow_bytes`, and is verbatim only
// if `allow_verbatim` (kind plain does not have that).
RestPlan plan_rests(const Rests& rests, const uint64_t* runs, bool allow_bytes, bool allow_verbatim,
                    RestScratch* scratch);

// Fields as they are.
RestPlan plan_verbatim(const Rests& rests);

// Write streams of at most `capacity` bytes, their size to `*written`, and params (plan.params_nbytes). False if the
// streams do not fit; dst may have been written to then.
bool encode_rests(const RestPlan& plan, const Rests& rests, const uint64_t* runs, uint8_t* dst, size_t capacity,
                  size_t* written, uint8_t* params, RestScratch* scratch);

// What the rests of a block are: sign and mantissa of floats, or whole words.
struct RestLayout {
  bool sign_mantissa;
  unsigned nbytes, width;  // of a number: in memory, in bits
};

// How rests that are no slices stand in a field, by their parameters alone.
struct RestField {
  unsigned width;  // bits of a number in the field
  unsigned trail;  // zeros below them, which are not stored
  bool per_run;    // each run has zeros of its own instead, which are among the bits

  // Returns nullptr or what is wrong; any mode but kBytes.
  const char* read(uint8_t mode, const RestLayout& layout, const uint8_t* params);
};

struct RestDecodeScratch {
  alignas(64) uint8_t bytes[kSegment + kSlack];
  alignas(64) uint8_t segment[kSegment * kMaxWordNbytes + kSlack];
  EntropyDecoder entropy[kMaxWordNbytes];  // of each slice
};

class RestDecoder {
 public:
  // `src` are the streams of the block, kSlack readable beyond `available`, and must outlive the decoding; `params` has
  // rest_params_nbytes(). Returns nullptr or what is wrong.
  const char* open(uint8_t mode, const RestLayout& layout, size_t n, const uint8_t* src, size_t available,
                   const uint8_t* params, RestDecodeScratch* scratch);
  size_t streams_nbytes() const { return streams_nbytes_; }
  // Numbers [first, first + count); valid until the next call. first is a multiple of kRun, count at most kSegment. The
  // caller takes one segment after the other.
  const uint8_t* segment(size_t first, size_t count);
  // After the last one: nullptr, or what was wrong.
  const char* finish() const;
  // Where nothing is trimmed, the field of all numbers, which segment() need not be asked for then; else nullptr.
  const uint8_t* untrimmed() const {
    return num_slices_ == 0 && field_width_ == width_ && !per_run_ ? field_ : nullptr;
  }

 private:
  // A slice of kBytes.
  struct Slice {
    uint8_t coding, bits, value;  // the value of a constant one
    const uint8_t* field;         // of a verbatim one
  };

  const char* open_bytes(const uint8_t* src, size_t available, const uint8_t* params);
  const uint8_t* slice_bytes(unsigned s, size_t first, size_t count);

  const struct RestMessages* messages_;
  const uint8_t* field_;
  RestDecodeScratch* scratch_;
  size_t n_, streams_nbytes_;
  unsigned nbytes_, width_, field_width_, shift_;
  bool per_run_;
  unsigned num_slices_;  // 0 unless kBytes
  Slice slices_[kMaxWordNbytes];
  bool misfit_;  // whether a slice had a value that does not fit its bits
  // For each run its bits trimmed below, and where its field begins. These are copies, since the bytes of a mapped file
  // may change after the check, and must not lead out of the block.
  uint8_t trails_[kMaxRuns];
  uint32_t offsets_[kMaxRuns];
};

}  // namespace tw
