// The header of a frame: offsets, sizes that follow from it, checks that encoder and decoder share.
#pragma once
#include "common/dtype.h"
#include "common/format.h"
#include "common/hash.h"
#include "common/status.h"

namespace tw {

constexpr uint8_t kMagic[8] = {0x93, 'T', 'W', 'F', '\r', '\n', 0x1a, '\n'};
constexpr uint8_t kVersion = 0;
constexpr uint64_t kMaxUncompressed = uint64_t{1} << 62;
constexpr uint64_t kMaxData = uint64_t{1} << 37;
constexpr unsigned kMaxBits = 1024;  // per element
constexpr size_t kMaxDtypeName = 16;
constexpr unsigned kMinBlockLog2 = 8, kMaxBlockLog2 = 18;

enum Offset : size_t {
  kAtVersion = 8,
  kAtProfile = 9,
  kAtOrder = 10,
  kAtNdim = 11,
  kAtFeatures = 12,
  kAtDtype = 16,
  kAtBits = 32,
  kAtBlockLog2 = 34,
  kAtReserved1 = 35,
  kAtUncompressed = 40,
  kAtData = 48,
  kAtNumBlocks = 56,
  kAtContentHash = 64,
  kAtBaseHash = 80,
  kAtReserved2 = 96,
  kAtChecksum = 120,
  kAtShape = 128,
};

struct IndexEntry {
  uint32_t offset;  // in units of kBlockAlign
  uint32_t checksum;
};

inline uint64_t index_offset(const tw_frame& frame) { return kAtShape + 8 * uint64_t{frame.ndim}; }
inline uint64_t header_nbytes(const tw_frame& frame) {
  return ceil_to(index_offset(frame) + sizeof(IndexEntry) * frame.num_blocks, kFrameAlign);
}
inline uint64_t data_nbytes_with_padding(uint64_t data) { return ceil_to(data, kFrameAlign); }

// Whether a dtype's name may stand in a header: 1 to 16 characters of A-Z 0-9 _.
bool valid_dtype_name(const char* name);

// Whether the bits per element are those of the dtype: TW_CORRUPT if not. The error's byte points into the header, here
// and below.
int check_bits(const tw_frame& frame, tw_error* error);

// From dtype, bits, shape and block_words: the sizes. TW_LIMIT_EXCEEDED if they are too large.
int complete_frame(tw_frame* frame, tw_error* error);

// Low 64 bits of H over header and index, the checksum field taken as zero.
uint64_t header_checksum(const uint8_t* header, uint64_t header_nbytes);

BlockSpec spec_of(const tw_frame& frame);
inline uint64_t num_block_words(const tw_frame& frame, uint64_t block) {
  const uint64_t first = block * frame.block_words;
  return frame.num_words - first < frame.block_words ? frame.num_words - first : frame.block_words;
}

void store_hash(const Hash128& hash, uint8_t* dst);

}  // namespace tw
