#include <algorithm>
#include <cstring>
#include <mutex>

#include "frame/content_hash.h"
#include "frame/decode_block.h"
#include "frame/layout.h"
#include "frame/workers.h"

namespace tw {
namespace {

// Output larger than this goes around the caches, which it would not fit.
constexpr uint64_t kStreamNbytes = 4u << 20;
// Content that one thread takes at a time.
constexpr uint64_t kTileNbytes = 262144;

struct TileScratch {
  DecodeScratch block;
  // A copy of the block at the end of the input, with slack behind it; a block of which the caller wants some words.
  alignas(64) uint8_t last[kMaxBlockWords * kMaxWordNbytes + kSlack];
  alignas(64) uint8_t partial[kMaxBlockWords * kMaxWordNbytes];
};

struct BlockRange {
  uint64_t first, last;
};

BlockRange blocks_of(const tw_frame& frame, uint64_t start, uint64_t stop) {
  if (start == stop) return {0, 0};
  const uint64_t nbytes = uint64_t{frame.block_words} * frame.word_nbytes;
  return {start / nbytes, ceil_div(stop, nbytes)};
}

// The index of a header that was checked.
class Index {
 public:
  Index(const tw_frame& frame, const void* header)
      : entries_(static_cast<const uint8_t*>(header) + index_offset(frame)), frame_(frame) {}
  uint64_t start(uint64_t block) const {
    return block == frame_.num_blocks ? frame_.data_nbytes : uint64_t{entry(block).offset} * kBlockAlign;
  }
  IndexEntry entry(uint64_t block) const { return load<IndexEntry>(entries_ + block * sizeof(IndexEntry)); }

 private:
  const uint8_t* entries_;
  const tw_frame& frame_;
};

// The blocks' bytes that a caller has.
struct Data {
  const uint8_t* bytes;
  uint64_t offset, nbytes;

  const uint8_t* at(uint64_t position) const { return bytes + (position - offset); }
  bool covers(uint64_t start, uint64_t stop) const { return start >= offset && stop <= offset + nbytes; }
};

// The first failure, by block.
class FirstFailure {
 public:
  void note(int status, const tw_error& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_ == TW_OK || error.block < error_.block) status_ = status, error_ = error;
  }
  int report(tw_error* error) const {
    if (status_ != TW_OK && error != nullptr) *error = error_;
    return status_;
  }

 private:
  std::mutex mutex_;
  int status_ = TW_OK;
  tw_error error_{};
};

int check_features(const uint8_t* src, tw_error* error) {
  if (std::memcmp(src, kMagic, sizeof kMagic) != 0) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, 0, "expected the magic bytes of a tensorwire frame");
  }
  if (src[kAtVersion] != kVersion) {
    return fail(error, TW_UNSUPPORTED_VERSION, TW_NO_BLOCK, kAtVersion, "expected format version %u, got %u", kVersion,
                src[kAtVersion]);
  }
  const uint32_t features = load<uint32_t>(src + kAtFeatures);
  if (features != 0) {
    return fail(error, TW_UNSUPPORTED_VERSION, TW_NO_BLOCK, kAtFeatures,
                "expected no required features, got 0x%x: a newer version wrote this frame", features);
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
  frame->profile = src[kAtProfile];
  if (frame->profile > kProfileCompact) return corrupt(kAtProfile, "a profile of 0 to 2", frame->profile);
  if (src[kAtOrder] != 0) return corrupt(kAtOrder, "element order 0", src[kAtOrder]);
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
  const unsigned block_log2 = src[kAtBlockLog2];
  if (block_log2 < kMinBlockLog2 || block_log2 > kMaxBlockLog2) {
    return corrupt(kAtBlockLog2, "a block_log2 of 8 to 18", block_log2);
  }
  frame->block_words = 1u << block_log2;
  if (!all_zero(src + kAtReserved1, kAtUncompressed - kAtReserved1)) return not_zero(kAtReserved1, "reserved bytes");
  if (!all_zero(src + kAtBaseHash, kAtReserved2 - kAtBaseHash)) return not_zero(kAtBaseHash, "hash of a base");
  if (!all_zero(src + kAtReserved2, kAtChecksum - kAtReserved2)) return not_zero(kAtReserved2, "reserved bytes");
  frame->uncompressed_nbytes = load<uint64_t>(src + kAtUncompressed);
  frame->data_nbytes = load<uint64_t>(src + kAtData);
  frame->num_blocks = load<uint64_t>(src + kAtNumBlocks);
  if (frame->uncompressed_nbytes > kMaxUncompressed) {
    return beyond(kAtUncompressed, "2^62 bytes of content", frame->uncompressed_nbytes);
  }
  if (frame->data_nbytes > kMaxData) return beyond(kAtData, "2^37 bytes of blocks", frame->data_nbytes);
  if (frame->num_blocks > kMaxData / kBlockAlign) return beyond(kAtNumBlocks, "2^32 blocks", frame->num_blocks);
  if (frame->data_nbytes % kBlockAlign != 0) {
    return corrupt(kAtData, "a multiple of 32 bytes of blocks", frame->data_nbytes);
  }
  if (frame->num_blocks > frame->data_nbytes / kBlockAlign) {
    return corrupt(kAtNumBlocks, "at most one block for 32 bytes of data", frame->num_blocks);
  }
  std::memcpy(frame->content_hash, src + kAtContentHash, sizeof frame->content_hash);
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
  frame->frame_nbytes = frame->header_nbytes + data_nbytes_with_padding(frame->data_nbytes);
  return TW_OK;
}

int check_index(const uint8_t* src, const tw_frame& frame, tw_error* error) {
  const uint64_t used = index_offset(frame) + frame.num_blocks * sizeof(IndexEntry);
  if (!all_zero(src + used, frame.header_nbytes - used)) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, used, "expected zeros after the index");
  }
  if (frame.num_blocks == 0) {
    return frame.data_nbytes == 0
               ? TW_OK
               : fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtData,
                      "expected no data where there are no blocks, got %llu bytes", as_ull(frame.data_nbytes));
  }
  const Index index(frame, src);
  const size_t word = frame.word_nbytes;
  for (uint64_t block = 0; block < frame.num_blocks; ++block) {
    const uint64_t start = index.start(block), end = index.start(block + 1);
    const bool ordered = (block != 0 || start == 0) && start < end && end <= frame.data_nbytes;
    if (!ordered || end - start > ceil_to(num_block_words(frame, block) * word, kBlockAlign)) {
      return fail(error, TW_CORRUPT, block, index_offset(frame) + block * sizeof(IndexEntry),
                  ordered ? "expected a block no longer than its content"
                          : "expected offsets in the index to ascend from 0 and to stay within the data");
    }
  }
  return TW_OK;
}

// What a call decodes, and where to.
struct Job {
  const tw_frame& frame;
  const Index& index;
  const Data& data;
  uint64_t start, stop;
  uint8_t* dst;
  uint32_t flags;
};

// The block's bytes with kSlack readable behind them.
const uint8_t* with_slack(const Job& job, uint64_t start, uint64_t end, TileScratch* scratch) {
  if (end + kSlack <= job.data.offset + job.data.nbytes) return job.data.at(start);
  std::memcpy(scratch->last, job.data.at(start), end - start);
  return scratch->last;
}

int check_block(const Job& job, uint64_t block, tw_error* error) {
  const uint64_t start = job.index.start(block), end = job.index.start(block + 1);
  const uint32_t checksum = static_cast<uint32_t>(hash128(job.data.at(start), end - start).low);
  if (checksum == job.index.entry(block).checksum) return TW_OK;
  return fail(error, TW_CORRUPT, block, job.frame.header_nbytes + start,
              "expected checksum %08x of the block, got %08x", job.index.entry(block).checksum, checksum);
}

// Decodes the symbols of two blocks at once if both are sound. Returns whether it has checked their checksums.
bool begin_pair(const Job& job, uint64_t block, TileScratch* scratch) {
  const uint64_t start = job.index.start(block), middle = job.index.start(block + 1), end = job.index.start(block + 2);
  if (middle + kSlack > job.data.offset + job.data.nbytes) return false;  // only one can stand in scratch
  if ((job.flags & TW_VERIFY) != 0) {
    tw_error unused;
    if (check_block(job, block, &unused) != TW_OK || check_block(job, block + 1, &unused) != TW_OK) return false;
  }
  const BlockBytes first = {job.data.at(start), middle - start, num_block_words(job.frame, block)};
  const BlockBytes second = {with_slack(job, middle, end, scratch), end - middle,
                             num_block_words(job.frame, block + 1)};
  decode_symbols_ahead(spec_of(job.frame), first, second, &scratch->block);
  return true;
}

int decode_one(const Job& job, uint64_t block, uint64_t last_block, bool checked, TileScratch* scratch,
               tw_error* error) {
  const tw_frame& frame = job.frame;
  const uint64_t start = job.index.start(block), end = job.index.start(block + 1);
  if ((job.flags & TW_VERIFY) != 0 && !checked) {
    const int status = check_block(job, block, error);
    if (status != TW_OK) return status;
  }
  const uint64_t block_nbytes = uint64_t{frame.block_words} * frame.word_nbytes;
  const uint64_t content = block * block_nbytes;
  const uint64_t n = num_block_words(frame, block), nbytes = n * frame.word_nbytes;
  const uint64_t from = std::max(content, job.start), to = std::min(content + nbytes, job.stop);
  const bool whole = to - from == nbytes;
  uint8_t* words = whole ? job.dst + (content - job.start) : scratch->partial;
  const bool stream = whole && job.stop - job.start > kStreamNbytes && reinterpret_cast<uintptr_t>(words) % 64 == 0;
  const uint64_t next = block + 1 < last_block ? job.index.start(block + 2) - end : 0;
  const BlockOutput output = {words, stream, job.data.at(end), next};
  const char* wrong =
      decode_block(spec_of(frame), with_slack(job, start, end, scratch), end - start, n, output, &scratch->block);
  if (wrong != nullptr) return fail(error, TW_CORRUPT, block, frame.header_nbytes + start, "%s", wrong);
  if (!whole) std::memcpy(job.dst + (from - job.start), scratch->partial + (from - content), to - from);
  return TW_OK;
}

int check_range(const tw_frame& frame, uint64_t start, uint64_t stop, tw_error* error) {
  if (start <= stop && stop <= frame.uncompressed_nbytes) return TW_OK;
  return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
              "expected a range within %llu bytes of content, got %llu to %llu", as_ull(frame.uncompressed_nbytes),
              as_ull(start), as_ull(stop));
}

int check_covered(const tw_frame& frame, const void* header, const Data& data, BlockRange range, tw_error* error) {
  if (range.first == range.last) return TW_OK;
  const Index index(frame, header);
  if (data.covers(index.start(range.first), index.start(range.last))) return TW_OK;
  const auto position = [&](uint64_t at) { return as_ull(frame.header_nbytes + at); };
  return fail(error, TW_TRUNCATED, TW_NO_BLOCK, position(data.offset + data.nbytes),
              "expected the blocks at bytes %llu to %llu of the frame, got the data at %llu to %llu",
              position(index.start(range.first)), position(index.start(range.last)), position(data.offset),
              position(data.offset + data.nbytes));
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
  frame->header_nbytes = header_nbytes(*frame);
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

int tw_block_range(const tw_frame* frame, const void* header, uint64_t start, uint64_t stop, uint64_t* data_start,
                   uint64_t* data_stop, tw_error* error) {
  int status = check_range(*frame, start, stop, error);
  if (status != TW_OK) return status;
  const BlockRange range = blocks_of(*frame, start, stop);
  const Index index(*frame, header);
  *data_start = range.first == range.last ? 0 : index.start(range.first);
  *data_stop = range.first == range.last ? 0 : index.start(range.last);
  return TW_OK;
}

int tw_decode(const tw_frame* frame, const void* header, const void* data, uint64_t data_offset, uint64_t data_nbytes,
              uint64_t start, uint64_t stop, void* dst, uint32_t threads, uint32_t flags, tw_error* error) {
  int status = check_range(*frame, start, stop, error);
  if (status != TW_OK) return status;
  const BlockRange range = blocks_of(*frame, start, stop);
  const Data have = {static_cast<const uint8_t*>(data), data_offset, data_nbytes};
  status = check_covered(*frame, header, have, range, error);
  if (status != TW_OK) return status;
  const Index index(*frame, header);
  const Job job = {*frame, index, have, start, stop, static_cast<uint8_t*>(dst), flags};
  const bool pairs = frame->profile == kProfileCompact;  // whose entropy streams are decoded two at a time
  const uint64_t fitting = kTileNbytes / (uint64_t{frame->block_words} * frame->word_nbytes);
  const uint64_t per_tile = pairs ? std::max<uint64_t>(2, ceil_to(fitting, 2)) : std::max<uint64_t>(1, fitting);
  FirstFailure failure;
  const bool ran = run_tiles<TileScratch>(
      ceil_div(range.last - range.first, per_tile), threads, [&](TileScratch& scratch, uint64_t tile) {
        const uint64_t first = range.first + tile * per_tile, last = std::min(first + per_tile, range.last);
        bool checked = false;
        for (uint64_t block = first; block < last; ++block) {
          if (pairs && (block - first) % 2 == 0) checked = block + 1 < last && begin_pair(job, block, &scratch);
          tw_error why;
          const int result = decode_one(job, block, range.last, checked, &scratch, &why);
          if (result == TW_OK) continue;
          failure.note(result, why);
          return false;
        }
        return true;
      });
  if (!ran) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the decoder's scratch");
  return failure.report(error);
}

int tw_block_infos(const tw_frame* frame, const void* header, const void* data, uint64_t data_offset,
                   uint64_t data_nbytes, uint64_t first, uint64_t count, tw_block_info* infos, tw_error* error) {
  if (first > frame->num_blocks || count > frame->num_blocks - first) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected blocks among the %llu of the frame, got %llu from block %llu on", as_ull(frame->num_blocks),
                as_ull(count), as_ull(first));
  }
  const Data have = {static_cast<const uint8_t*>(data), data_offset, data_nbytes};
  const int status = check_covered(*frame, header, have, {first, first + count}, error);
  if (status != TW_OK) return status;
  const Index index(*frame, header);
  const Job job = {*frame, index, have, 0, 0, nullptr, TW_VERIFY};
  std::unique_ptr<TileScratch> scratch(new (std::nothrow) TileScratch);
  if (scratch == nullptr) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the decoder's scratch");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t block = first + i, start = index.start(block), end = index.start(block + 1);
    const int checked = check_block(job, block, error);
    if (checked != TW_OK) return checked;
    BlockFacts facts;
    const uint64_t n = num_block_words(*frame, block);
    const char* wrong = inspect_block(spec_of(*frame), with_slack(job, start, end, scratch.get()), end - start, n,
                                      &facts, &scratch->block);
    if (wrong != nullptr) return fail(error, TW_CORRUPT, block, frame->header_nbytes + start, "%s", wrong);
    infos[i] = {frame->header_nbytes + start,
                end - start,
                facts.rest_nbytes,
                facts.kind_nbytes,
                static_cast<uint32_t>(n),
                facts.kind,
                facts.rest,
                facts.variant,
                0};
  }
  return TW_OK;
}
