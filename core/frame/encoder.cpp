#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#include "frame/content_hash.h"
#include "frame/encode_block.h"
#include "frame/layout.h"
#include "frame/workers.h"

namespace tw {
namespace {

constexpr uint32_t kDefaultBlockLog2[] = {15, 15, 18};  // by profile
// Content that one thread takes at a time, or a block if that is more: whole blocks and whole leaves in both cases.
constexpr uint64_t kTileNbytes = 524288, kMaxTileNbytes = TW_STREAM_NBYTES;

struct TileScratch {
  EncodeScratch block;
  alignas(64) uint8_t blocks[kMaxTileNbytes];
};

// The content that a call encodes.
struct Chunk {
  const tw_frame& frame;
  const uint8_t* src;
  uint64_t nbytes;
  uint64_t first_byte;
  uint8_t* index;
  uint8_t* leaves;

  uint64_t block_nbytes() const { return uint64_t{frame.block_words} * frame.word_nbytes; }
  uint64_t tile_nbytes() const { return std::max(kTileNbytes, block_nbytes()); }
};

// Blocks of one tile to dst; entries of the index get offsets from the tile's start. Returns their size.
uint64_t encode_tile(const Chunk& chunk, uint64_t tile, uint8_t* dst, EncodeScratch* scratch) {
  const tw_frame& frame = chunk.frame;
  const BlockSpec spec = spec_of(frame);
  const uint64_t start = tile * chunk.tile_nbytes();
  const uint64_t nbytes = std::min(chunk.tile_nbytes(), chunk.nbytes - start);
  const uint64_t first_byte = chunk.first_byte + start;
  const uint64_t block_nbytes = chunk.block_nbytes();
  const uint64_t leaves_per_block = std::max<uint64_t>(1, block_nbytes / TW_LEAF_NBYTES);
  uint64_t size = 0, hashed = 0;
  for (uint64_t done = 0; done < nbytes; done += block_nbytes) {
    // A leaf is hashed while its words are on their way into the cache.
    if (done == hashed) {
      const uint64_t more = std::min(leaves_per_block * TW_LEAF_NBYTES, nbytes - hashed);
      hash_leaves(chunk.src + start + hashed, more, chunk.leaves + (first_byte + hashed) / TW_LEAF_NBYTES * 16);
      hashed += more;
    }
    const uint64_t block = (first_byte + done) / block_nbytes;
    uint8_t* out = dst + size;
    const size_t length = encode_block(spec, chunk.src + start + done, num_block_words(frame, block), out, scratch);
    const IndexEntry entry = {static_cast<uint32_t>(size / kBlockAlign),
                              static_cast<uint32_t>(hash128(out, length).low)};
    store(chunk.index + block * sizeof entry, entry);
    size += length;
  }
  return size;
}

// Turn the tile's offsets into the frame's.
void shift_index(const Chunk& chunk, uint64_t tile, uint64_t offset) {
  const uint64_t block_nbytes = chunk.block_nbytes();
  const uint64_t start = tile * chunk.tile_nbytes();
  const uint64_t nbytes = std::min(chunk.tile_nbytes(), chunk.nbytes - start);
  const uint64_t first = (chunk.first_byte + start) / block_nbytes;
  for (uint64_t block = first; block < first + ceil_div(nbytes, block_nbytes); ++block) {
    IndexEntry entry = load<IndexEntry>(chunk.index + block * sizeof(IndexEntry));
    entry.offset += static_cast<uint32_t>(offset / kBlockAlign);
    store(chunk.index + block * sizeof entry, entry);
  }
}

// Threads encode tiles in any order and write them one behind the other: each waits to learn where the tile before
// ends.
int encode_chunk(const Chunk& chunk, uint64_t data_offset, uint8_t* dst, uint64_t* written, uint32_t threads,
                 tw_error* error) {
  const uint64_t num_tiles = ceil_div(chunk.nbytes, chunk.tile_nbytes());
  std::atomic<uint64_t> turn{0};
  uint64_t end = 0;  // of the tiles before `turn`
  const bool alone = threads == 1 || num_tiles == 1;
  const bool ran = run_tiles<TileScratch>(num_tiles, threads, [&](TileScratch& scratch, uint64_t tile) {
    uint8_t* out = alone ? dst + end : scratch.blocks;
    const uint64_t size = encode_tile(chunk, tile, out, &scratch.block);
    while (turn.load(std::memory_order_acquire) != tile) std::this_thread::yield();
    const uint64_t start = end;
    end += size;
    turn.store(tile + 1, std::memory_order_release);
    shift_index(chunk, tile, data_offset + start);
    if (!alone) std::memcpy(dst + start, scratch.blocks, size);
    return true;
  });
  if (!ran) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the encoder's scratch");
  *written = end;
  if (data_offset + end > kMaxData) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtData, "the blocks exceed 2^37 bytes: split the tensor");
  }
  return TW_OK;
}

}  // namespace
}  // namespace tw

using namespace tw;

int tw_frame_init(tw_frame* frame, const char* dtype, uint32_t bits, const uint64_t* shape, uint32_t ndim,
                  uint32_t profile, uint32_t block_log2, tw_error* error) {
  std::memset(frame, 0, sizeof *frame);
  if (!valid_dtype_name(dtype)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtDtype, "expected a dtype of 1 to 16 characters A-Z 0-9 _");
  }
  if (ndim > TW_MAX_NDIM) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtNdim, "expected at most %d dimensions, got %u", TW_MAX_NDIM,
                ndim);
  }
  if (profile > kProfileCompact) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtProfile, "expected a profile of 0 to 2, got %u", profile);
  }
  if (block_log2 == 0) block_log2 = kDefaultBlockLog2[profile];
  if (block_log2 < kMinBlockLog2 || block_log2 > kMaxBlockLog2) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtBlockLog2, "expected a block_log2 of %u to %u, got %u",
                kMinBlockLog2, kMaxBlockLog2, block_log2);
  }
  std::strcpy(frame->dtype, dtype);
  frame->bits = bits == 0 ? find_dtype(dtype).bits : bits;
  frame->ndim = ndim;
  if (ndim != 0) std::memcpy(frame->shape, shape, 8 * size_t{ndim});
  frame->profile = profile;
  frame->block_words = 1u << block_log2;
  if (check_bits(*frame, error) != TW_OK) return TW_INVALID_ARGUMENT;
  return complete_frame(frame, error);
}

uint64_t tw_data_bound(uint64_t nbytes) { return ceil_to(nbytes, kBlockAlign); }

uint64_t tw_frame_bound(const tw_frame* frame) {
  return frame->header_nbytes + data_nbytes_with_padding(tw_data_bound(frame->uncompressed_nbytes));
}

int tw_encode_blocks(const tw_frame* frame, uint64_t first_byte, const void* src, uint64_t src_nbytes,
                     uint64_t data_offset, void* dst, uint64_t dst_nbytes, uint64_t* written, void* index, void* leaves,
                     uint32_t threads, tw_error* error) {
  *written = 0;
  const uint64_t total = frame->uncompressed_nbytes;
  const bool inside = first_byte <= total && src_nbytes <= total - first_byte;
  if (!inside || first_byte % TW_STREAM_NBYTES != 0 ||
      (src_nbytes % TW_STREAM_NBYTES != 0 && src_nbytes != total - first_byte)) {
    return fail(
        error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
        "expected a chunk of a multiple of %u bytes, or the last one, at such a multiple of %llu bytes of content; "
        "got %llu bytes at byte %llu",
        TW_STREAM_NBYTES, as_ull(total), as_ull(src_nbytes), as_ull(first_byte));
  }
  if (data_offset % kBlockAlign != 0) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected a data offset that is a multiple of %zu, got %llu", kBlockAlign, as_ull(data_offset));
  }
  if (dst_nbytes < tw_data_bound(src_nbytes)) {
    return fail(error, TW_BUFFER_TOO_SMALL, TW_NO_BLOCK, 0, "expected room for %llu bytes, got %llu",
                as_ull(tw_data_bound(src_nbytes)), as_ull(dst_nbytes));
  }
  if (src_nbytes == 0) return TW_OK;
  const Chunk chunk = {*frame,     static_cast<const uint8_t*>(src), src_nbytes,
                       first_byte, static_cast<uint8_t*>(index),     static_cast<uint8_t*>(leaves)};
  return encode_chunk(chunk, data_offset, static_cast<uint8_t*>(dst), written, threads, error);
}

void tw_encode_header(tw_frame* frame, uint64_t data_nbytes, const void* index, const void* leaves, void* dst) {
  frame->data_nbytes = data_nbytes;
  frame->frame_nbytes = frame->header_nbytes + data_nbytes_with_padding(data_nbytes);
  store_hash(hash_root(frame->uncompressed_nbytes, static_cast<const uint8_t*>(leaves)), frame->content_hash);
  uint8_t* header = static_cast<uint8_t*>(dst);
  if (frame->num_blocks != 0 && index != header + index_offset(*frame)) {
    std::memcpy(header + index_offset(*frame), index, frame->num_blocks * sizeof(IndexEntry));
  }
  std::memset(header, 0, kAtShape);
  const uint64_t used = index_offset(*frame) + frame->num_blocks * sizeof(IndexEntry);
  std::memset(header + used, 0, frame->header_nbytes - used);
  std::memcpy(header, kMagic, sizeof kMagic);
  header[kAtVersion] = kVersion;
  header[kAtProfile] = static_cast<uint8_t>(frame->profile);
  header[kAtNdim] = static_cast<uint8_t>(frame->ndim);
  std::memcpy(header + kAtDtype, frame->dtype, std::strlen(frame->dtype));
  store(header + kAtBits, static_cast<uint16_t>(frame->bits));
  header[kAtBlockLog2] = static_cast<uint8_t>(trailing_zeros(frame->block_words, 0));
  store(header + kAtUncompressed, frame->uncompressed_nbytes);
  store(header + kAtData, data_nbytes);
  store(header + kAtNumBlocks, frame->num_blocks);
  std::memcpy(header + kAtContentHash, frame->content_hash, sizeof frame->content_hash);
  for (uint32_t d = 0; d < frame->ndim; ++d) store(header + kAtShape + 8 * d, frame->shape[d]);
  store(header + kAtChecksum, header_checksum(header, frame->header_nbytes));
}

int tw_compress(tw_frame* frame, const void* src, uint64_t src_nbytes, void* dst, uint64_t dst_nbytes, uint32_t threads,
                tw_error* error) {
  if (src_nbytes != frame->uncompressed_nbytes) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtUncompressed, "expected %llu bytes of content, got %llu",
                as_ull(frame->uncompressed_nbytes), as_ull(src_nbytes));
  }
  if (dst_nbytes < tw_frame_bound(frame)) {
    return fail(error, TW_BUFFER_TOO_SMALL, TW_NO_BLOCK, 0, "expected room for %llu bytes, got %llu",
                as_ull(tw_frame_bound(frame)), as_ull(dst_nbytes));
  }
  std::unique_ptr<uint8_t[]> leaves(new (std::nothrow) uint8_t[ceil_div(src_nbytes, TW_LEAF_NBYTES) * 16 + 1]);
  if (leaves == nullptr) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the content's hashes");
  uint8_t* out = static_cast<uint8_t*>(dst);
  uint8_t* index = out + index_offset(*frame);
  uint64_t data_nbytes = 0;
  const int status =
      tw_encode_blocks(frame, 0, src, src_nbytes, 0, out + frame->header_nbytes, dst_nbytes - frame->header_nbytes,
                       &data_nbytes, index, leaves.get(), threads, error);
  if (status != TW_OK) return status;
  tw_encode_header(frame, data_nbytes, index, leaves.get(), dst);
  std::memset(out + frame->header_nbytes + data_nbytes, 0, frame->frame_nbytes - frame->header_nbytes - data_nbytes);
  return TW_OK;
}
