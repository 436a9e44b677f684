#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <type_traits>

#include "frame/block_words.h"
#include "frame/content_hash.h"
#include "frame/encode_block.h"
#include "frame/header.h"
#include "frame/once_reader.h"
#include "frame/workers.h"

namespace tw {
namespace {

// Content that one thread takes at a time, in whole blocks, or a block if that is more.
constexpr uint64_t kMostFetched = 131072;
constexpr uint64_t kTileNbytes = 524288, kMaxTileNbytes = kMaxBlockWords * kMaxWordNbytes;

struct TileScratch {
  EncodeScratch block;
  OnceReader content, base;
  alignas(64) uint8_t words[kMaxTileNbytes + kSlack];
  alignas(64) uint8_t base_words[kMaxTileNbytes + kSlack];
  alignas(64) uint8_t blocks[kMaxTileNbytes];
};

// The content that a call encodes.
struct Chunk {
  const tw_frame& frame;
  const uint8_t* src;
  const uint8_t* base;  // of the same bytes; nullptr in a plain frame
  uint64_t nbytes;
  uint64_t first_byte;
  uint8_t* index;
  uint8_t* replaced = nullptr;  // the base, where it becomes the content

  // Its blocks take no more than kMaxTileNbytes, whatever their alignment.
  uint64_t tile_nbytes() const {
    const uint64_t block = block_nbytes(frame);
    return std::max<uint64_t>(1, kTileNbytes / ceil_to(block, block_align(frame))) * block;
  }
  // The most bytes that the blocks of a tile take.
  uint64_t tile_bound(uint64_t tile) const {
    return tw_data_bound(&frame, std::min(tile_nbytes(), nbytes - tile * tile_nbytes()));
  }
};

// What has hashed all bytes of content and base in the tiles that are done.
struct Hashers {
  LeafHasher content, base;
};

// While a block is encoded that begins at `start`, the next one is fetched; of a large one as much as no cache minds.
FetchPair upcoming(const Chunk& chunk, uint64_t start, uint64_t end) {
  const uint64_t block = block_nbytes(chunk.frame), next = std::min(start + block, end);
  const uint64_t nbytes = std::min({block, end - next, kMostFetched});
  return {{chunk.src + next, nbytes}, chunk.base == nullptr ? Fetch() : Fetch{chunk.base + next, nbytes}};
}

// Blocks of one tile to dst; entries of the index get offsets from the tile's start. Returns their size.
uint64_t encode_tile(const Chunk& chunk, uint64_t tile, bool alone, uint8_t* dst, TileScratch* scratch) {
  const tw_frame& frame = chunk.frame;
  const uint64_t first = tile * chunk.tile_nbytes();
  const uint64_t last = std::min(first + chunk.tile_nbytes(), chunk.nbytes);
  const BlockSpec spec = spec_of(frame, chunk.base == nullptr ? nullptr : scratch->base_words);
  uint64_t size = 0;
  for (uint64_t start = first; start < last; start += block_nbytes(frame)) {
    const uint64_t nbytes = std::min(block_nbytes(frame), last - start);
    scratch->block.arrival = {&scratch->content, chunk.src + start, scratch->words, nbytes, 0};
    if (chunk.base != nullptr) scratch->base.read(chunk.base + start, nbytes, scratch->base_words);
    scratch->block.upcoming = upcoming(chunk, start, alone ? chunk.nbytes : last);
    const uint64_t block = (chunk.first_byte + start) / block_nbytes(frame);
    uint8_t* out = dst + size;
    const uint64_t n = num_block_words(frame, block);
    const size_t length = encode_block(spec, scratch->words, n, out, &scratch->block);
    if (chunk.replaced != nullptr && length != 0) std::memcpy(chunk.replaced + start, scratch->words, nbytes);
    const uint32_t checksum = length == 0 ? 0 : static_cast<uint32_t>(hash128(out, length).low);
    const uint32_t stored = length == stored_nbytes(spec, n) ? kStoredBit : 0;
    const IndexEntry entry = {static_cast<uint32_t>(size >> frame.block_alignment) | stored, checksum};
    store(chunk.index + block * sizeof entry, entry);
    size += length;
  }
  return size;
}

// Turn the tile's offsets into the frame's.
void shift_index(const Chunk& chunk, uint64_t tile, uint64_t offset) {
  const uint64_t start = tile * chunk.tile_nbytes();
  const uint64_t nbytes = std::min(chunk.tile_nbytes(), chunk.nbytes - start);
  const uint64_t first = (chunk.first_byte + start) / block_nbytes(chunk.frame);
  for (uint64_t block = first; block < first + ceil_div(nbytes, block_nbytes(chunk.frame)); ++block) {
    IndexEntry entry = load<IndexEntry>(chunk.index + block * sizeof(IndexEntry));
    entry.place += static_cast<uint32_t>(offset >> chunk.frame.block_alignment);
    store(chunk.index + block * sizeof entry, entry);
  }
}

// Threads encode tiles in any order and write them one behind the other: each waits to learn where the tile before
// ends, and its last leaf's hash so far. They stop at the first tile that does not fit into `room` bytes.
int encode_chunk(const Chunk& chunk, Hashers* hashers, uint64_t data_offset, uint8_t* dst, uint64_t room,
                 uint64_t* written, uint32_t threads, tw_error* error) {
  const uint64_t num_tiles = ceil_div(chunk.nbytes, chunk.tile_nbytes());
  const Hashers fresh = *hashers;
  std::atomic<uint64_t> turn{0};
  uint64_t end = 0;  // of the tiles before `turn`, which may be past the room
  const bool alone = threads == 1 || num_tiles == 1;
  const bool ran = run_tiles<TileScratch>(num_tiles, threads, [&](TileScratch& scratch, uint64_t tile) {
    const bool in_place = alone && chunk.tile_bound(tile) <= room - end;
    uint8_t* out = in_place ? dst + end : scratch.blocks;
    const uint64_t position = chunk.first_byte + tile * chunk.tile_nbytes();
    scratch.content.start(fresh.content, position, alone ? &hashers->content : nullptr);
    scratch.base.start(fresh.base, position, alone ? &hashers->base : nullptr);
    const uint64_t size = encode_tile(chunk, tile, alone, out, &scratch);
    while (turn.load(std::memory_order_acquire) != tile) std::this_thread::yield();
    const uint64_t start = end;
    end += size;
    scratch.content.finish(&hashers->content);
    scratch.base.finish(&hashers->base);
    turn.store(tile + 1, std::memory_order_release);
    if (start + size > room) return false;
    shift_index(chunk, tile, data_offset + start);
    if (!in_place) std::memcpy(dst + start, scratch.blocks, size);
    return true;
  });
  if (!ran) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the encoder's scratch");
  if (end > room) return TW_BUFFER_TOO_SMALL;  // what else is in dst only the caller knows
  *written = end;
  if (data_offset + end > max_data(chunk.frame)) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtData,
                "the blocks exceed %llu bytes: split the tensor, or align its blocks to more bytes",
                as_ull(max_data(chunk.frame)));
  }
  return TW_OK;
}

// The hasher that a chunk goes on with: the one that the chunk before left in `leaves`, or a new one.
int open_leaves(const tw_leaves* leaves, uint64_t total, uint64_t first_byte, LeafHasher* hasher, tw_error* error) {
  *hasher = LeafHasher(total);
  if (leaves == nullptr) return TW_OK;
  if (first_byte != 0) std::memcpy(hasher, leaves->state, sizeof *hasher);
  if (hasher->position() != first_byte) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected the chunk at byte %llu, where the one before ended, got the one at byte %llu",
                as_ull(hasher->position()), as_ull(first_byte));
  }
  hasher->store_to(static_cast<uint8_t*>(leaves->hashes));
  return TW_OK;
}

void keep_leaves(const LeafHasher& hasher, tw_leaves* leaves) {
  static_assert(std::is_trivially_copyable_v<LeafHasher> && sizeof hasher <= sizeof leaves->state,
                "it is kept as bytes");
  if (leaves != nullptr) std::memcpy(leaves->state, &hasher, sizeof hasher);
}

int check_chunk(const Chunk& chunk, uint64_t data_offset, tw_error* error) {
  const uint64_t total = chunk.frame.uncompressed_nbytes, block = block_nbytes(chunk.frame);
  const uint64_t first_byte = chunk.first_byte, nbytes = chunk.nbytes;
  const bool inside = first_byte <= total && nbytes <= total - first_byte;
  if (!inside || first_byte % block != 0 || (nbytes % block != 0 && nbytes != total - first_byte)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected a chunk of whole blocks of %llu bytes, or the last one, of %llu bytes of content; "
                "got %llu bytes at byte %llu",
                as_ull(block), as_ull(total), as_ull(nbytes), as_ull(first_byte));
  }
  if (is_relative(chunk.frame) != (chunk.base != nullptr) && nbytes != 0) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0, "expected a base for a frame with the hash of one alone");
  }
  if (data_offset % block_align(chunk.frame) != 0) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected a data offset that is a multiple of %llu, got %llu", as_ull(block_align(chunk.frame)),
                as_ull(data_offset));
  }
  return TW_OK;
}

// The form that a caller asks for, by default the usual one.
int set_form(const tw_form& form, const char* dtype, uint32_t bits, tw_frame* frame, tw_error* error) {
  const NamedDtype* const known = find_dtype(dtype);
  frame->layout = form.layout.word_nbytes != 0 ? form.layout : numbers_of(known != nullptr ? known->layout : kOpaque);
  frame->bits = bits == 0 && known != nullptr ? known->bits : bits;
  if (known != nullptr && frame->bits != known->bits) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtBits, "expected %u bits per element for dtype %s, got %u",
                known->bits, dtype, frame->bits);
  }
  if (check_layout(*frame, error) != TW_OK) return TW_INVALID_ARGUMENT;
  frame->block_alignment = form.block_alignment == 0 ? kLeastAlignment : form.block_alignment;
  frame->frame_alignment = form.frame_alignment == 0 ? frame->block_alignment : form.frame_alignment;
  if (frame->block_alignment < kLeastAlignment || frame->block_alignment > kMaxBlockAlignment ||
      frame->frame_alignment < frame->block_alignment || frame->frame_alignment > kMaxFrameAlignment) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtBlockAlignment,
                "expected blocks aligned to 2^5 to 2^12 bytes, and a frame to as many or more, up to 2^21; "
                "got 2^%u and 2^%u",
                frame->block_alignment, frame->frame_alignment);
  }
  if (form.padding_nbytes > kMaxPadding / 2) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtPadding, "expected padding of at most %u bytes, got %u",
                kMaxPadding / 2, form.padding_nbytes);
  }
  frame->padding_nbytes = form.padding_nbytes;
  if (form.extensions_nbytes % 8 != 0 || form.extensions_nbytes > kMaxHeader / 2) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected extensions of a multiple of 8 bytes up to 2^36, got %llu", as_ull(form.extensions_nbytes));
  }
  frame->extensions_nbytes = form.extensions_nbytes;
  if (form.block_words == 0 || valid_block_words(form.block_words)) return TW_OK;
  return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtBlockWords,
              "expected block_words of a multiple of %u up to %u, got %u", kMinBlockWords, kMaxBlockWords,
              form.block_words);
}

int check_profile(uint32_t profile, bool relative, tw_error* error) {
  if (profile > kProfileResident) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtProfile, "expected a profile of 0 to 3, got %u", profile);
  }
  if (relative && profile == kProfileResident) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtProfile,
                "expected another profile than resident for a frame with a base");
  }
  return TW_OK;
}

}  // namespace
}  // namespace tw

using namespace tw;

int tw_frame_init(tw_frame* frame, const char* dtype, uint32_t bits, const uint64_t* shape, uint32_t ndim,
                  uint32_t profile, const tw_form* form, const void* base_hash, tw_error* error) {
  std::memset(frame, 0, sizeof *frame);
  if (!valid_dtype_name(dtype)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtDtype, "expected a dtype of 1 to 16 characters A-Z 0-9 _");
  }
  if (ndim > TW_MAX_NDIM) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtNdim, "expected at most %d dimensions, got %u", TW_MAX_NDIM,
                ndim);
  }
  int status = check_profile(profile, base_hash != nullptr, error);
  if (status != TW_OK) return status;
  const tw_form usual = {};
  status = set_form(form == nullptr ? usual : *form, dtype, bits, frame, error);
  if (status != TW_OK) return status;
  std::strcpy(frame->dtype, dtype);
  frame->ndim = ndim;
  if (ndim != 0) std::memcpy(frame->shape, shape, 8 * size_t{ndim});
  frame->profile = profile;
  if (base_hash != nullptr) {
    frame->features = kBaseRelative;
    std::memcpy(frame->base_hash, base_hash, sizeof frame->base_hash);
  }
  const bool chosen = form != nullptr && form->block_words != 0;
  frame->block_words = chosen ? form->block_words : kMaxBlockWords;
  status = complete_frame(frame, error);
  if (status != TW_OK) return status;
  if (!chosen) {
    frame->block_words = usual_block_words(*frame);
    frame->num_blocks = ceil_div(frame->num_words, frame->block_words);
  }
  if (frame->num_blocks > kMaxBlocks) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtBlockWords, "expected at most 2^32 blocks, got %llu",
                as_ull(frame->num_blocks));
  }
  frame->header_nbytes = header_nbytes(*frame, 1);
  return TW_OK;
}

uint64_t tw_data_bound(const tw_frame* frame, uint64_t nbytes) {
  const uint64_t block = block_nbytes(*frame), align = block_align(*frame);
  return nbytes / block * ceil_to(block, align) + ceil_to(nbytes % block, align);
}

uint64_t tw_frame_bound(const tw_frame* frame) {
  return frame_nbytes(*frame, tw_data_bound(frame, frame->uncompressed_nbytes));
}

int tw_encode_blocks(const tw_frame* frame, uint64_t first_byte, const void* src, uint64_t src_nbytes, const void* base,
                     uint64_t data_offset, void* dst, uint64_t dst_nbytes, uint64_t* written, void* index,
                     tw_leaves* leaves, tw_leaves* base_leaves, uint32_t threads, tw_error* error) {
  *written = 0;
  const Chunk chunk = {*frame,     static_cast<const uint8_t*>(src), static_cast<const uint8_t*>(base), src_nbytes,
                       first_byte, static_cast<uint8_t*>(index)};
  int status = check_chunk(chunk, data_offset, error);
  if (status != TW_OK || src_nbytes == 0) return status;
  const uint64_t bound = tw_data_bound(frame, src_nbytes);
  if (dst_nbytes < bound) {
    return fail(error, TW_BUFFER_TOO_SMALL, TW_NO_BLOCK, 0, "expected room for %llu bytes, got %llu", as_ull(bound),
                as_ull(dst_nbytes));
  }
  Hashers hashers;
  status = open_leaves(leaves, frame->uncompressed_nbytes, first_byte, &hashers.content, error);
  if (status == TW_OK) status = open_leaves(base_leaves, frame->uncompressed_nbytes, first_byte, &hashers.base, error);
  if (status != TW_OK) return status;
  status = encode_chunk(chunk, &hashers, data_offset, static_cast<uint8_t*>(dst), dst_nbytes, written, threads, error);
  keep_leaves(hashers.content, leaves);
  keep_leaves(hashers.base, base_leaves);
  return status;
}

int tw_encode_header(tw_frame* frame, uint64_t data_nbytes, const void* index, const void* leaves,
                     const void* extensions, void* dst, tw_error* error) {
  frame->data_nbytes = data_nbytes;
  frame->header_nbytes = header_nbytes(*frame, data_nbytes);
  frame->frame_nbytes = frame_nbytes(*frame, data_nbytes);
  frame->padding_nbytes = static_cast<uint32_t>(frame->frame_nbytes - frame->header_nbytes - data_nbytes);
  store_hash(hash_root(frame->uncompressed_nbytes, static_cast<const uint8_t*>(leaves)), frame->content_hash);
  if (is_relative(*frame) && data_nbytes == 0 &&
      std::memcmp(frame->content_hash, frame->base_hash, sizeof frame->base_hash) != 0) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtBaseHash,
                "expected the hash of the base that the content was compared with, got another");
  }
  const uint64_t index_size = index_nbytes(*frame, data_nbytes);
  uint8_t* header = static_cast<uint8_t*>(dst);
  if (index_size != 0) std::memcpy(header + index_offset(*frame), index, index_size);
  std::memset(header, 0, kAtShape);
  const uint64_t index_end = index_offset(*frame) + index_size, used = index_end + frame->extensions_nbytes;
  if (frame->extensions_nbytes != 0) {
    std::memcpy(header + index_end, extensions, frame->extensions_nbytes);
    const int status = check_extensions(header + index_end, frame->extensions_nbytes, index_end, error);
    if (status != TW_OK) return TW_INVALID_ARGUMENT;
  }
  std::memset(header + used, 0, frame->header_nbytes - used);
  std::memcpy(header, kMagic, sizeof kMagic);
  header[kAtVersion] = kVersion;
  header[kAtProfile] = static_cast<uint8_t>(frame->profile);
  header[kAtNdim] = static_cast<uint8_t>(frame->ndim);
  store(header + kAtFeatures, frame->features);
  header[kAtBlockAlignment] = static_cast<uint8_t>(frame->block_alignment);
  header[kAtFrameAlignment] = static_cast<uint8_t>(frame->frame_alignment);
  const tw_layout& layout = frame->layout;
  const uint8_t numbers[] = {layout.word_nbytes, layout.exponent_bits, layout.rest_bits, layout.split, layout.ordered};
  std::memcpy(header + kAtLayout, numbers, sizeof numbers);
  store(header + kAtBits, static_cast<uint16_t>(frame->bits));
  std::memcpy(header + kAtDtype, frame->dtype, std::strlen(frame->dtype));
  store(header + kAtUncompressed, frame->uncompressed_nbytes);
  store(header + kAtHeader, frame->header_nbytes);
  store(header + kAtData, data_nbytes);
  store(header + kAtBlockWords, frame->block_words);
  store(header + kAtPadding, frame->padding_nbytes);
  std::memcpy(header + kAtContentHash, frame->content_hash, sizeof frame->content_hash);
  std::memcpy(header + kAtBaseHash, frame->base_hash, sizeof frame->base_hash);
  for (uint32_t d = 0; d < frame->ndim; ++d) store(header + kAtShape + 8 * d, frame->shape[d]);
  store(header + kAtIndexChecksum, index_checksum(header, *frame));
  store(header + kAtChecksum, header_checksum(header, *frame));
  return TW_OK;
}

int tw_compress(tw_frame* frame, const void* src, uint64_t src_nbytes, const void* base, void* dst, uint64_t dst_nbytes,
                uint32_t threads, uint32_t flags, tw_error* error) {
  if (src_nbytes != frame->uncompressed_nbytes) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, kAtUncompressed, "expected %llu bytes of content, got %llu",
                as_ull(frame->uncompressed_nbytes), as_ull(src_nbytes));
  }
  const bool hashes_base = is_relative(*frame) && (flags & TW_KNOWN_BASE) == 0;
  const uint64_t leaves_nbytes = ceil_div(src_nbytes, TW_LEAF_NBYTES) * 16, index_size = index_nbytes(*frame, 1);
  const uint64_t scratch_nbytes = leaves_nbytes * (hashes_base ? 2 : 1) + index_size;
  std::unique_ptr<uint8_t[]> leaves(new (std::nothrow) uint8_t[scratch_nbytes + 1]);
  if (leaves == nullptr) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the content's hashes");
  // A frame whose blocks are all those of the base has no index, and may fit where that would not.
  uint8_t* index = leaves.get() + scratch_nbytes - index_size;
  const uint64_t header = std::min(header_nbytes(*frame, 1), dst_nbytes);
  uint8_t* out = static_cast<uint8_t*>(dst);
  uint8_t* base_leaves = hashes_base ? leaves.get() + leaves_nbytes : nullptr;
  uint8_t* replaced = (flags & TW_REPLACE_BASE) != 0 ? static_cast<uint8_t*>(const_cast<void*>(base)) : nullptr;
  const Chunk chunk = {
      *frame, static_cast<const uint8_t*>(src), static_cast<const uint8_t*>(base), src_nbytes, 0, index, replaced};
  Hashers hashers = {LeafHasher(src_nbytes, leaves.get()), LeafHasher(src_nbytes, base_leaves)};
  int status = check_chunk(chunk, 0, error);
  if (status != TW_OK) return status;
  uint64_t data_nbytes = 0;
  if (src_nbytes != 0) {
    status = encode_chunk(chunk, &hashers, 0, out + header, dst_nbytes - header, &data_nbytes, threads, error);
  }
  if (status == TW_BUFFER_TOO_SMALL || (status == TW_OK && frame_nbytes(*frame, data_nbytes) > dst_nbytes)) {
    return fail(error, TW_BUFFER_TOO_SMALL, TW_NO_BLOCK, 0, "expected a frame of at most %llu bytes, got a larger one",
                as_ull(dst_nbytes));
  }
  if (status != TW_OK) return status;
  if (hashes_base) store_hash(hash_root(src_nbytes, base_leaves), frame->base_hash);
  status = tw_encode_header(frame, data_nbytes, index, leaves.get(), nullptr, dst, error);
  if (status == TW_OK) std::memset(out + frame->header_nbytes + data_nbytes, 0, frame->padding_nbytes);
  return status;
}
