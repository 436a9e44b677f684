// Header and index to a tw_frame, each field checked in the order of docs/format.md.
#include <algorithm>
#include <cstring>

#include "frame/layout.h"

namespace tw {
namespace {

int check_features(const uint8_t* src, tw_error* error) {
  if (std::memcmp(src, kMagic, sizeof kMagic) != 0) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, 0, "expected the magic bytes of a tensorwire frame");
  }
  if (src[kAtVersion] != kVersion) {
    return fail(error, TW_UNSUPPORTED_VERSION, TW_NO_BLOCK, kAtVersion, "expected format version %u, got %u", kVersion,
                src[kAtVersion]);
  }
  const uint32_t features = load<uint32_t>(src + kAtFeatures);
  if ((features & ~uint32_t{kBaseRelative}) != 0) {
    return fail(error, TW_UNSUPPORTED_VERSION, TW_NO_BLOCK, kAtFeatures,
                "expected no required features but bit 0, got 0x%x: a newer version wrote this frame", features);
  }
  return TW_OK;
}

bool all_zero(const uint8_t* src, size_t nbytes) {
  uint8_t any = 0;
  for (size_t i = 0; i < nbytes; ++i) any |= src[i];
  return any == 0;
}

// Fields that need no other bytes than the first 128, in the order of docs/format.md.
int parse_fixed(const uint8_t* src, tw_frame* frame, tw_error* error) {
  int status = check_features(src, error);
  if (status != TW_OK) return status;
  const auto corrupt = [&](size_t at, const char* expected, uint64_t got) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, at, "expected %s, got %llu", expected, as_ull(got));
  };
  const auto beyond = [&](size_t at, const char* limit, uint64_t got) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, at, "expected at most %s, got %llu", limit, as_ull(got));
  };
  const auto not_zero = [&](size_t at, const char* what) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, at, "expected zeros in the %s", what);
  };
  frame->features = load<uint32_t>(src + kAtFeatures);
  frame->profile = src[kAtProfile];
  if (frame->profile > kProfileResident) return corrupt(kAtProfile, "a profile of 0 to 3", frame->profile);
  if (is_relative(*frame) && frame->profile == kProfileResident) {
    return corrupt(kAtProfile, "another profile than resident in a frame with a base", frame->profile);
  }
  if (src[kAtOrder] != 0) {
    return fail(error, TW_UNSUPPORTED_VERSION, TW_NO_BLOCK, kAtOrder,
                "expected element order 0, got %u: a newer version wrote this frame", src[kAtOrder]);
  }
  frame->ndim = src[kAtNdim];
  if (frame->ndim > TW_MAX_NDIM) return beyond(kAtNdim, "64 dimensions", frame->ndim);
  std::memcpy(frame->dtype, src + kAtDtype, kMaxDtypeName);
  const size_t length = std::strlen(frame->dtype);
  if (!valid_dtype_name(frame->dtype) || !all_zero(src + kAtDtype + length, kMaxDtypeName - length)) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtDtype,
                "expected a dtype of 1 to 16 characters A-Z 0-9 _, then zeros");
  }
  frame->bits = load<uint16_t>(src + kAtBits);
  status = check_bits(*frame, error);
  if (status != TW_OK) return status;
  if (!all_zero(src + kAtReserved1, kAtBlockWords - kAtReserved1)) return not_zero(kAtReserved1, "reserved bytes");
  frame->block_words = load<uint32_t>(src + kAtBlockWords);
  if (!valid_block_words(frame->block_words)) {
    return corrupt(kAtBlockWords, "block_words of a multiple of 256 from 256 to 262144", frame->block_words);
  }
  frame->uncompressed_nbytes = load<uint64_t>(src + kAtUncompressed);
  frame->data_nbytes = load<uint64_t>(src + kAtData);
  frame->num_blocks = load<uint64_t>(src + kAtNumBlocks);
  if (frame->uncompressed_nbytes > kMaxUncompressed) {
    return beyond(kAtUncompressed, "2^62 bytes of content", frame->uncompressed_nbytes);
  }
  if (frame->data_nbytes > kMaxData) return beyond(kAtData, "2^37 bytes of blocks", frame->data_nbytes);
  if (frame->data_nbytes % kBlockAlign != 0) {
    return corrupt(kAtData, "a multiple of 32 bytes of blocks", frame->data_nbytes);
  }
  if (frame->num_blocks > kMaxBlocks) return beyond(kAtNumBlocks, "2^32 blocks", frame->num_blocks);
  if (!is_relative(*frame) && frame->num_blocks > frame->data_nbytes / kBlockAlign) {
    return corrupt(kAtNumBlocks, "at most one block for 32 bytes of data", frame->num_blocks);
  }
  if (!is_relative(*frame) && !all_zero(src + kAtBaseHash, kAtReserved2 - kAtBaseHash)) {
    return not_zero(kAtBaseHash, "hash of a base");
  }
  if (!all_zero(src + kAtReserved2, kAtChecksum - kAtReserved2)) return not_zero(kAtReserved2, "reserved bytes");
  std::memcpy(frame->content_hash, src + kAtContentHash, sizeof frame->content_hash);
  std::memcpy(frame->base_hash, src + kAtBaseHash, sizeof frame->base_hash);
  return TW_OK;
}

// The shape, and whether the sizes and counts of the fixed fields agree with it.
int parse_shape(const uint8_t* src, tw_frame* frame, tw_error* error) {
  for (uint32_t d = 0; d < frame->ndim; ++d) frame->shape[d] = load<uint64_t>(src + kAtShape + 8 * d);
  const uint64_t uncompressed = frame->uncompressed_nbytes, num_blocks = frame->num_blocks;
  const int status = complete_frame(frame, error);
  if (status != TW_OK) return status;
  if (frame->uncompressed_nbytes != uncompressed) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtUncompressed,
                "expected %llu bytes of content, the size of the shape, got %llu", as_ull(frame->uncompressed_nbytes),
                as_ull(uncompressed));
  }
  if (frame->num_blocks != num_blocks) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtNumBlocks, "expected %llu blocks, got %llu",
                as_ull(frame->num_blocks), as_ull(num_blocks));
  }
  frame->frame_nbytes = frame->header_nbytes + frame->data_nbytes;
  return TW_OK;
}

// One block's entry: its place, its length, and of a block without bytes its checksum.
int check_entry(const tw_frame& frame, const Index& index, uint64_t block, tw_error* error) {
  const auto corrupt = [&](const char* expected) {
    return fail(error, TW_CORRUPT, block, index_offset(frame) + block * sizeof(IndexEntry), "expected %s", expected);
  };
  const uint64_t start = index.start(block), end = index.start(block + 1);
  const bool ascends = is_relative(frame) ? start <= end : start < end;
  if ((block == 0 && start != 0) || !ascends || end > frame.data_nbytes) {
    return corrupt("offsets in the index to ascend from 0 and to stay within the data");
  }
  if (end - start > ceil_to(num_block_words(frame, block) * frame.word_nbytes, kBlockAlign)) {
    return corrupt("a block no longer than its content");
  }
  if (start == end && index.entry(block).checksum != 0) return corrupt("checksum 0 of a block without bytes");
  return TW_OK;
}

int check_index(const uint8_t* src, const tw_frame& frame, tw_error* error) {
  const uint64_t used = index_offset(frame) + index_nbytes(frame, frame.data_nbytes);
  if (!all_zero(src + used, frame.header_nbytes - used)) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, used, "expected zeros after the index");
  }
  if (frame.num_blocks == 0 && frame.data_nbytes != 0) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtData, "expected no data where there are no blocks, got %llu bytes",
                as_ull(frame.data_nbytes));
  }
  if (is_relative(frame) && frame.data_nbytes == 0) {
    if (std::memcmp(frame.content_hash, frame.base_hash, sizeof frame.base_hash) == 0) return TW_OK;
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtBaseHash,
                "expected the hash of the content where no block differs from the base");
  }
  const Index index(frame, src);
  for (uint64_t block = 0; block < frame.num_blocks; ++block) {
    const int status = check_entry(frame, index, block, error);
    if (status != TW_OK) return status;
  }
  return TW_OK;
}

}  // namespace
}  // namespace tw

using namespace tw;

int tw_decode_header(const void* src, uint64_t src_nbytes, tw_frame* frame, tw_error* error) {
  std::memset(frame, 0, sizeof *frame);
  const uint8_t* header = static_cast<const uint8_t*>(src);
  if (src_nbytes < kAtShape) {
    const size_t magic = std::min<uint64_t>(src_nbytes, sizeof kMagic);
    if (magic != 0 && std::memcmp(header, kMagic, magic) != 0) {
      return fail(error, TW_CORRUPT, TW_NO_BLOCK, 0, "expected the magic bytes of a tensorwire frame");
    }
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, src_nbytes, "expected a header of %d bytes, got %llu",
                TW_FIXED_HEADER_NBYTES, as_ull(src_nbytes));
  }
  int status = parse_fixed(header, frame, error);
  if (status != TW_OK) return status;
  // Says how much is needed even where the shape is not there yet.
  frame->header_nbytes = header_nbytes(*frame, frame->data_nbytes);
  if (src_nbytes >= index_offset(*frame)) {
    status = parse_shape(header, frame, error);
    if (status != TW_OK) return status;
  }
  if (src_nbytes < frame->header_nbytes) {
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, src_nbytes, "expected header and index of %llu bytes, got %llu",
                as_ull(frame->header_nbytes), as_ull(src_nbytes));
  }
  const uint64_t expected = load<uint64_t>(header + kAtChecksum);
  const uint64_t actual = header_checksum(header, frame->header_nbytes);
  if (actual != expected) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtChecksum,
                "expected checksum %016llx of header and index, got %016llx", as_ull(expected), as_ull(actual));
  }
  return check_index(header, *frame, error);
}
