// A header to a tw_frame, each field checked in the order of docs/format.md.
#include <algorithm>
#include <cstring>

#include "frame/header.h"

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

// What is wrong with a field, and where.
struct Faults {
  tw_error* error;

  int corrupt(size_t at, const char* expected, uint64_t got) const {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, at, "expected %s, got %llu", expected, as_ull(got));
  }
  int beyond(size_t at, const char* limit, uint64_t got) const {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, at, "expected at most %s, got %llu", limit, as_ull(got));
  }
  int unsupported(size_t at, const char* expected, uint64_t got) const {
    return fail(error, TW_UNSUPPORTED_VERSION, TW_NO_BLOCK, at,
                "expected %s, got %llu: a newer version wrote this frame", expected, as_ull(got));
  }
  int not_zero(size_t at, const char* what) const {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, at, "expected zeros in the %s", what);
  }
};

// Bytes 8 to 47: how the frame is to be read.
int parse_form(const uint8_t* src, tw_frame* frame, const Faults& wrong) {
  frame->features = load<uint32_t>(src + kAtFeatures);
  frame->profile = src[kAtProfile];
  if (frame->profile > kProfileResident) return wrong.corrupt(kAtProfile, "a profile of 0 to 3", frame->profile);
  if (is_relative(*frame) && frame->profile == kProfileResident) {
    return wrong.corrupt(kAtProfile, "another profile than resident in a frame with a base", frame->profile);
  }
  if (src[kAtOrder] != 0) return wrong.unsupported(kAtOrder, "element order 0", src[kAtOrder]);
  frame->ndim = src[kAtNdim];
  if (frame->ndim > TW_MAX_NDIM) return wrong.beyond(kAtNdim, "64 dimensions", frame->ndim);
  if (src[kAtHashAlgorithm] != 0) {
    return wrong.unsupported(kAtHashAlgorithm, "hash algorithm 0", src[kAtHashAlgorithm]);
  }
  frame->block_alignment = src[kAtBlockAlignment];
  if (frame->block_alignment < kLeastAlignment || frame->block_alignment > kMaxBlockAlignment) {
    return wrong.corrupt(kAtBlockAlignment, "a block alignment of 2^5 to 2^12 bytes, as log2", frame->block_alignment);
  }
  frame->frame_alignment = src[kAtFrameAlignment];
  if (frame->frame_alignment < frame->block_alignment || frame->frame_alignment > kMaxFrameAlignment) {
    return wrong.corrupt(kAtFrameAlignment, "a frame alignment from that of blocks to 2^21 bytes, as log2",
                         frame->frame_alignment);
  }
  if (src[kAtReserved1] != 0) return wrong.not_zero(kAtReserved1, "reserved byte");
  const uint8_t* const layout = src + kAtLayout;
  frame->layout = {layout[0], layout[1], layout[2], layout[3], layout[4]};
  frame->bits = load<uint16_t>(src + kAtBits);
  const int status = check_layout(*frame, wrong.error);
  if (status != TW_OK) return status;
  if (src[kAtReserved2] != 0) return wrong.not_zero(kAtReserved2, "reserved byte");
  std::memcpy(frame->dtype, src + kAtDtype, kMaxDtypeName);
  const size_t length = std::strlen(frame->dtype);
  if (valid_dtype_name(frame->dtype) && all_zero(src + kAtDtype + length, kMaxDtypeName - length)) return TW_OK;
  return fail(wrong.error, TW_CORRUPT, TW_NO_BLOCK, kAtDtype,
              "expected a dtype of 1 to 16 characters A-Z 0-9 _, then zeros");
}

// Bytes 48 to 127: sizes and hashes.
int parse_sizes(const uint8_t* src, tw_frame* frame, const Faults& wrong) {
  frame->uncompressed_nbytes = load<uint64_t>(src + kAtUncompressed);
  if (frame->uncompressed_nbytes > kMaxUncompressed) {
    return wrong.beyond(kAtUncompressed, "2^53 bytes of content", frame->uncompressed_nbytes);
  }
  frame->header_nbytes = load<uint64_t>(src + kAtHeader);
  if (frame->header_nbytes > kMaxHeader) return wrong.beyond(kAtHeader, "2^37 bytes of header", frame->header_nbytes);
  if (frame->header_nbytes % frame_align(*frame) != 0) {
    return wrong.corrupt(kAtHeader, "a header of a multiple of the frame alignment", frame->header_nbytes);
  }
  frame->data_nbytes = load<uint64_t>(src + kAtData);
  if (frame->data_nbytes > max_data(*frame)) {
    return wrong.beyond(kAtData, "2^31 - 1 times the block alignment of blocks", frame->data_nbytes);
  }
  if (frame->data_nbytes % block_align(*frame) != 0) {
    return wrong.corrupt(kAtData, "blocks of a multiple of the block alignment", frame->data_nbytes);
  }
  frame->block_words = load<uint32_t>(src + kAtBlockWords);
  if (!valid_block_words(frame->block_words)) {
    return wrong.corrupt(kAtBlockWords, "block_words of a multiple of 256 from 256 to 262144", frame->block_words);
  }
  frame->padding_nbytes = load<uint32_t>(src + kAtPadding);
  frame->frame_nbytes = frame->header_nbytes + frame->data_nbytes + frame->padding_nbytes;
  if (frame->padding_nbytes > kMaxPadding || frame->frame_nbytes % frame_align(*frame) != 0) {
    return wrong.corrupt(kAtPadding, "padding of at most 2^22 bytes, up to a multiple of the frame alignment",
                         frame->padding_nbytes);
  }
  if (!is_relative(*frame) && !all_zero(src + kAtBaseHash, sizeof frame->base_hash)) {
    return wrong.not_zero(kAtBaseHash, "hash of a base");
  }
  std::memcpy(frame->content_hash, src + kAtContentHash, sizeof frame->content_hash);
  std::memcpy(frame->base_hash, src + kAtBaseHash, sizeof frame->base_hash);
  return TW_OK;
}

// The shape, and whether the sizes of the fixed part agree with it.
int parse_shape(const uint8_t* src, tw_frame* frame, const Faults& wrong) {
  for (uint32_t d = 0; d < frame->ndim; ++d) frame->shape[d] = load<uint64_t>(src + kAtShape + 8 * d);
  const uint64_t uncompressed = frame->uncompressed_nbytes;
  const int status = complete_frame(frame, wrong.error);
  if (status != TW_OK) return status;
  if (frame->uncompressed_nbytes != uncompressed) {
    return fail(wrong.error, TW_CORRUPT, TW_NO_BLOCK, kAtUncompressed,
                "expected %llu bytes of content, the size of the shape, got %llu", as_ull(frame->uncompressed_nbytes),
                as_ull(uncompressed));
  }
  if (frame->num_blocks > kMaxBlocks) return wrong.beyond(kAtBlockWords, "2^32 blocks", frame->num_blocks);
  if (!is_relative(*frame) && frame->num_blocks > frame->data_nbytes >> frame->block_alignment) {
    return wrong.corrupt(kAtBlockWords, "at most one block for each unit of the block alignment", frame->num_blocks);
  }
  const uint64_t index_end = index_offset(*frame) + index_nbytes(*frame, frame->data_nbytes);
  if (frame->header_nbytes < index_end) {
    return fail(wrong.error, TW_CORRUPT, TW_NO_BLOCK, kAtHeader, "expected at least %llu bytes of header, got %llu",
                as_ull(index_end), as_ull(frame->header_nbytes));
  }
  frame->extensions_nbytes = frame->header_nbytes - index_end;
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
  const uint64_t stored = ceil_to(num_block_words(frame, block) * frame.layout.word_nbytes, block_align(frame));
  if (end - start > stored) return corrupt("a block no longer than its content");
  if (index.stored(block) && end - start != stored) return corrupt("a stored block as long as its content");
  if (start == end && index.entry(block).checksum != 0) return corrupt("checksum 0 of a block without bytes");
  return TW_OK;
}

int check_index(const uint8_t* src, const tw_frame& frame, const Faults& wrong) {
  if (frame.num_blocks == 0 && frame.data_nbytes != 0) {
    return wrong.corrupt(kAtData, "no data where there are no blocks", frame.data_nbytes);
  }
  if (is_relative(frame) && frame.data_nbytes == 0) {
    if (std::memcmp(frame.content_hash, frame.base_hash, sizeof frame.base_hash) == 0) return TW_OK;
    return fail(wrong.error, TW_CORRUPT, TW_NO_BLOCK, kAtBaseHash,
                "expected the hash of the content where no block differs from the base");
  }
  const Index index(frame, src);
  for (uint64_t block = 0; block < frame.num_blocks; ++block) {
    const int status = check_entry(frame, index, block, wrong.error);
    if (status != TW_OK) return status;
  }
  return TW_OK;
}

int check_sum(const char* what, size_t at, uint64_t expected, uint64_t actual, tw_error* error) {
  if (actual == expected) return TW_OK;
  return fail(error, TW_CORRUPT, TW_NO_BLOCK, at, "expected checksum %016llx of %s, got %016llx", as_ull(expected),
              what, as_ull(actual));
}

}  // namespace
}  // namespace tw

using namespace tw;

int tw_decode_fixed(const void* src, uint64_t src_nbytes, tw_frame* frame, tw_error* error) {
  std::memset(frame, 0, sizeof *frame);
  const uint8_t* header = static_cast<const uint8_t*>(src);
  if (src_nbytes < kAtShape) {
    const size_t magic = std::min<uint64_t>(src_nbytes, sizeof kMagic);
    if (magic != 0 && std::memcmp(header, kMagic, magic) != 0) {
      return fail(error, TW_CORRUPT, TW_NO_BLOCK, 0, "expected the magic bytes of a tensorwire frame");
    }
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, src_nbytes, "expected a header of %d bytes or more, got %llu",
                TW_FIXED_HEADER_NBYTES, as_ull(src_nbytes));
  }
  const Faults wrong = {error};
  int status = check_features(header, error);
  if (status == TW_OK) status = parse_form(header, frame, wrong);
  if (status == TW_OK) status = parse_sizes(header, frame, wrong);
  if (status != TW_OK) return status;
  if (src_nbytes < index_offset(*frame)) {
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, src_nbytes, "expected %llu bytes of header and shape, got %llu",
                as_ull(index_offset(*frame)), as_ull(src_nbytes));
  }
  status = parse_shape(header, frame, wrong);
  if (status != TW_OK) return status;
  return check_sum("the header", kAtChecksum, load<uint64_t>(header + kAtChecksum), header_checksum(header, *frame),
                   error);
}

int tw_decode_header(const void* src, uint64_t src_nbytes, tw_frame* frame, tw_error* error) {
  int status = tw_decode_fixed(src, src_nbytes, frame, error);
  if (status != TW_OK) return status;
  if (src_nbytes < frame->header_nbytes) {
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, src_nbytes, "expected %llu bytes up to the first block, got %llu",
                as_ull(frame->header_nbytes), as_ull(src_nbytes));
  }
  const uint8_t* header = static_cast<const uint8_t*>(src);
  status = check_sum("the index", kAtIndexChecksum, load<uint64_t>(header + kAtIndexChecksum),
                     index_checksum(header, *frame), error);
  if (status == TW_OK) status = check_index(header, *frame, {error});
  if (status != TW_OK) return status;
  const uint64_t extensions = frame->header_nbytes - frame->extensions_nbytes;
  return check_extensions(header + extensions, frame->extensions_nbytes, extensions, error);
}
