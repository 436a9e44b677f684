// The header of a frame: offsets, sizes that follow from it, checks that encoder and decoder share.
#pragma once
#include "common/dtype.h"
#include "common/format.h"
#include "common/hash.h"
#include "common/status.h"

namespace tw {

constexpr uint8_t kMagic[8] = {0x93, 'T', 'W', 'F', '\r', '\n', 0x1a, '\n'};
constexpr uint8_t kVersion = 1;
constexpr uint64_t kMaxUncompressed = uint64_t{1} << 62;
constexpr uint64_t kMaxData = uint64_t{1} << 37;
constexpr unsigned kMaxBits = 1024;  // per element
constexpr size_t kMaxDtypeName = 16;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 32;

enum Offset : size_t {
  kAtVersion = 8,
  kAtProfile = 9,
  kAtOrder = 10,
  kAtNdim = 11,
  kAtFeatures = 12,
  kAtDtype = 16,
  kAtBits = 32,
  kAtReserved1 = 34,
  kAtBlockWords = 36,
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
inline bool is_relative(const tw_frame& frame) { return (frame.features & kBaseRelative) != 0; }
inline uint64_t block_nbytes(const tw_frame& frame) { return uint64_t{frame.block_words} * frame.word_nbytes; }
// A relative frame without data has no index: all of its blocks are same.
inline uint64_t index_nbytes(const tw_frame& frame, uint64_t data_nbytes) {
  return is_relative(frame) && data_nbytes == 0 ? 0 : sizeof(IndexEntry) * frame.num_blocks;
}
inline uint64_t header_nbytes(const tw_frame& frame, uint64_t data_nbytes) {
  return ceil_to(index_offset(frame) + index_nbytes(frame, data_nbytes), kBlockAlign);
}

// The index of a header that was checked.
class Index {
 public:
  Index(const tw_frame& frame, const void* header)
      : entries_(static_cast<const uint8_t*>(header) + index_offset(frame)),
        frame_(frame),
        present_(index_nbytes(frame, frame.data_nbytes) != 0) {}
  uint64_t start(uint64_t block) const {
    return block == frame_.num_blocks ? frame_.data_nbytes : uint64_t{entry(block).offset} * kBlockAlign;
  }
  IndexEntry entry(uint64_t block) const {
    return present_ ? load<IndexEntry>(entries_ + block * sizeof(IndexEntry)) : IndexEntry{0, 0};
  }

 private:
  const uint8_t* entries_;
  const tw_frame& frame_;
  bool present_;
};

// Whether a dtype's name may stand in a header: 1 to 16 characters of A-Z 0-9 _.
bool valid_dtype_name(const char* name);

// Whether blocks may have so many words: a multiple of 256 up to 2^18.
bool valid_block_words(uint32_t block_words);

// Whether the bits per element are those of the dtype: TW_CORRUPT if not. The error's byte points into the header, here
// and below.
int check_bits(const tw_frame& frame, tw_error* error);

// From dtype, bits, shape, block_words and features: the sizes of the content.
// TW_LIMIT_EXCEEDED if they are too large.
int complete_frame(tw_frame* frame, tw_error* error);

// Low 64 bits of H over header and index, the checksum field taken as zero.
uint64_t header_checksum(const uint8_t* header, uint64_t header_nbytes);

// How the words of the content are split.
Dtype layout_of(const tw_frame& frame);
// For a block whose words in the base are `base`.
BlockSpec spec_of(const tw_frame& frame, const uint8_t* base);
inline uint64_t num_block_words(const tw_frame& frame, uint64_t block) {
  const uint64_t first = block * frame.block_words;
  return frame.num_words - first < frame.block_words ? frame.num_words - first : frame.block_words;
}

void store_hash(const Hash128& hash, uint8_t* dst);

}  // namespace tw
