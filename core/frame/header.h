// The header of a frame: offsets, sizes that follow from it, checks that encoder and decoder share.
#pragma once
#include "common/dtype.h"
#include "common/format.h"
#include "common/hash.h"
#include "common/status.h"

namespace tw {

constexpr uint8_t kMagic[8] = {0x93, 'T', 'W', 'F', '\r', '\n', 0x1a, '\n'};
constexpr uint8_t kVersion = 1;
constexpr uint64_t kMaxUncompressed = uint64_t{1} << 53;
constexpr uint64_t kMaxHeader = uint64_t{1} << 37;
constexpr uint32_t kMaxPadding = uint32_t{1} << 22;
constexpr unsigned kMaxBits = 1024;  // per element
constexpr size_t kMaxDtypeName = 16;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 32;
// log2 of bytes.
constexpr unsigned kLeastAlignment = 5, kMaxBlockAlignment = 12, kMaxFrameAlignment = 21;
static_assert(kBlockAlign == 1u << kLeastAlignment);

enum Offset : size_t {
  kAtVersion = 8,
  kAtProfile = 9,
  kAtOrder = 10,
  kAtNdim = 11,
  kAtFeatures = 12,
  kAtHashAlgorithm = 20,
  kAtBlockAlignment = 21,
  kAtFrameAlignment = 22,
  kAtReserved1 = 23,
  kAtLayout = 24,
  kAtReserved2 = 29,
  kAtBits = 30,
  kAtDtype = 32,
  kAtUncompressed = 48,
  kAtHeader = 56,
  kAtData = 64,
  kAtBlockWords = 72,
  kAtPadding = 76,
  kAtContentHash = 80,
  kAtBaseHash = 96,
  kAtIndexChecksum = 112,
  kAtChecksum = 120,
  kAtShape = 128,
};

struct IndexEntry {
  uint32_t place;  // in units of the block alignment, and kStoredBit
  uint32_t checksum;
};
constexpr uint32_t kStoredBit = uint32_t{1} << 31;

inline uint64_t block_align(const tw_frame& frame) { return uint64_t{1} << frame.block_alignment; }
inline uint64_t frame_align(const tw_frame& frame) { return uint64_t{1} << frame.frame_alignment; }
// The most bytes of blocks that the index can tell.
inline uint64_t max_data(const tw_frame& frame) { return uint64_t{kStoredBit - 1} << frame.block_alignment; }
inline uint64_t index_offset(const tw_frame& frame) { return kAtShape + 8 * uint64_t{frame.ndim}; }
inline bool is_relative(const tw_frame& frame) { return (frame.features & kBaseRelative) != 0; }
inline uint64_t block_nbytes(const tw_frame& frame) { return uint64_t{frame.block_words} * frame.layout.word_nbytes; }
// A relative frame without data has no index: all of its blocks are same.
inline uint64_t index_nbytes(const tw_frame& frame, uint64_t data_nbytes) {
  return is_relative(frame) && data_nbytes == 0 ? 0 : sizeof(IndexEntry) * frame.num_blocks;
}
// What the header of a frame that is to be encoded will take, and what all of it will, with its least padding.
inline uint64_t header_nbytes(const tw_frame& frame, uint64_t data_nbytes) {
  return ceil_to(index_offset(frame) + index_nbytes(frame, data_nbytes) + frame.extensions_nbytes, frame_align(frame));
}
inline uint64_t frame_nbytes(const tw_frame& frame, uint64_t data_nbytes) {
  return ceil_to(header_nbytes(frame, data_nbytes) + data_nbytes + frame.padding_nbytes, frame_align(frame));
}

// The index of a header that was checked.
class Index {
 public:
  Index(const tw_frame& frame, const void* header)
      : entries_(static_cast<const uint8_t*>(header) + index_offset(frame)),
        frame_(frame),
        present_(index_nbytes(frame, frame.data_nbytes) != 0) {}
  uint64_t start(uint64_t block) const {
    if (block == frame_.num_blocks) return frame_.data_nbytes;
    return uint64_t{entry(block).place & ~kStoredBit} << frame_.block_alignment;
  }
  bool stored(uint64_t block) const { return (entry(block).place & kStoredBit) != 0; }
  IndexEntry entry(uint64_t block) const {
    return present_ ? load<IndexEntry>(entries_ + block * sizeof(IndexEntry)) : IndexEntry{0, 0};
  }

 private:
  const uint8_t* entries_;
  const tw_frame& frame_;
  bool present_;
};

bool all_zero(const uint8_t* src, size_t nbytes);

// Whether a dtype's name may stand in a header: 1 to 16 characters of A-Z 0-9 _.
bool valid_dtype_name(const char* name);

// Whether blocks may have so many words: a multiple of 256 up to 2^18.
bool valid_block_words(uint32_t block_words);

// The layout of a frame's words. The frame's numbers contradict each other if broken_rule() has one.
Layout layout_of(const tw_frame& frame);
tw_layout numbers_of(const Layout& layout);

// Whether the layout is sound and the bits per element go with it: TW_CORRUPT if not. The error's byte points into the
// header, here and below.
int check_layout(const tw_frame& frame, tw_error* error);

// From layout, bits, shape, block_words and features: the sizes of the content.
// TW_LIMIT_EXCEEDED if they are too large.
int complete_frame(tw_frame* frame, tw_error* error);

// Low 64 bits of H over the fixed part, the checksum field taken as zero, and the shape.
uint64_t header_checksum(const uint8_t* header, const tw_frame& frame);
// The same over what follows up to the blocks.
uint64_t index_checksum(const uint8_t* header, const tw_frame& frame);
// Whether the records of the extensions are sound.
int check_extensions(const uint8_t* records, uint64_t nbytes, uint64_t position, tw_error* error);

// For a block whose words in the base are `base`.
BlockSpec spec_of(const tw_frame& frame, const uint8_t* base);
inline uint64_t num_block_words(const tw_frame& frame, uint64_t block) {
  const uint64_t first = block * frame.block_words;
  return frame.num_words - first < frame.block_words ? frame.num_words - first : frame.block_words;
}

void store_hash(const Hash128& hash, uint8_t* dst);

}  // namespace tw
