#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "frame/blocks.h"
#include "frame/content_hash.h"
#include "frame/decode_block.h"
#include "frame/header.h"
#include "frame/workers.h"

namespace tw {
namespace {

// Output larger than this goes around the caches, which it would not fit.
constexpr uint64_t kStreamNbytes = 4u << 20;
// Content that one thread takes at a time; more where leaves of the content hash end amid blocks: a leaf that two tiles
// share is hashed once more.
constexpr uint64_t kTileNbytes = 262144, kSharedTileNbytes = 1 << 20;

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
  return {start / block_nbytes(frame), ceil_div(stop, block_nbytes(frame))};
}

// What a call decodes, and where to.
struct Job : Blocks {
  const Data& base;
  uint64_t start, stop;
  uint8_t* dst;
  uint8_t* leaves;       // of the content, which then is all of it; or nullptr
  uint8_t* base_leaves;  // of the base; or nullptr

  // A block's words in the base; nullptr in a plain frame.
  const uint8_t* base_of(uint64_t block) const {
    return base.bytes == nullptr ? nullptr : base.at(block * block_nbytes(frame));
  }
};

// Decodes the symbols of two blocks at once if both are sound. Returns whether it has checked their checksums.
bool begin_pair(const Job& job, uint64_t block, TileScratch* scratch) {
  const uint64_t middle = job.end_of(block);
  if (middle + kSlack > job.data.offset + job.data.nbytes) return false;  // only one can stand in scratch
  tw_error unused;
  if (job.check(block, &unused) != TW_OK || job.check(block + 1, &unused) != TW_OK) return false;
  const BlockBytes first = job.bytes(block, scratch->last), second = job.bytes(block + 1, scratch->last);
  const auto spec = [&](uint64_t k) { return spec_of(job.frame, job.base_of(k)); };
  decode_symbols_ahead(spec(block), first, spec(block + 1), second, &scratch->block);
  return true;
}

int decode_one(const Job& job, uint64_t block, uint64_t last_block, bool checked, LeafHasher* hasher,
               TileScratch* scratch, tw_error* error) {
  const tw_frame& frame = job.frame;
  const int status = checked ? TW_OK : job.check(block, error);
  if (status != TW_OK) return status;
  const uint64_t content = block * block_nbytes(frame);
  const uint64_t nbytes = num_block_words(frame, block) * frame.layout.word_nbytes;
  const uint64_t from = std::max(content, job.start), to = std::min(content + nbytes, job.stop);
  const bool whole = to - from == nbytes;
  uint8_t* words = whole ? job.dst + (content - job.start) : scratch->partial;
  const bool stream = whole && job.stop - job.start > kStreamNbytes && reinterpret_cast<uintptr_t>(words) % 64 == 0;
  const uint64_t end = job.end_of(block), next_nbytes = block + 1 < last_block ? job.end_of(block + 1) - end : 0;
  const BlockOutput output = {words, stream, {job.data.at(end), next_nbytes}, hasher};
  const Fault fault =
      decode_block(spec_of(frame, job.base_of(block)), job.bytes(block, scratch->last), output, &scratch->block);
  if (fault) return job.report(fault, block, error);
  // Kinds that do not look at the base leave that to be done.
  if (hasher->position() == content) hasher->update(words, nbytes);
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
  // Data that begins too late is no data whose end is missing: the caller took another offset.
  const tw_status status = data.offset > index.start(range.first) ? TW_INVALID_ARGUMENT : TW_TRUNCATED;
  return fail(error, status, TW_NO_BLOCK, frame.header_nbytes + data.offset + data.nbytes,
              "expected the blocks at bytes %llu to %llu behind the header, got %llu bytes with data_offset %llu",
              as_ull(index.start(range.first)), as_ull(index.start(range.last)), as_ull(data.nbytes),
              as_ull(data.offset));
}

// The base of a relative frame: whole blocks of it, apart from the output or in the same place.
int check_base(const tw_frame& frame, BlockRange range, const Data& base, uint64_t start, uint64_t stop,
               const uint8_t* dst, tw_error* error) {
  if (!is_relative(frame) || range.first == range.last) return TW_OK;
  const uint64_t first = range.first * block_nbytes(frame);
  const uint64_t last = std::min(range.last * block_nbytes(frame), frame.uncompressed_nbytes);
  if (!base.covers(first, last)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected bytes %llu to %llu of the base, got those at %llu to %llu", as_ull(first), as_ull(last),
                as_ull(base.offset), as_ull(base.offset + base.nbytes));
  }
  const bool apart = dst + (stop - start) <= base.bytes || base.bytes + base.nbytes <= dst;
  const bool in_place = start == first && stop == last && dst == base.at(start);
  if (apart || in_place) return TW_OK;
  return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
              "expected an output apart from the base, or whole blocks in the place of their base");
}

// Whether blocks may have entropy streams, which are decoded two at a time.
bool has_pairs(const tw_frame& frame) { return frame.profile == kProfileCompact || is_relative(frame); }

// The blocks of a tile. False if one is not valid.
bool decode_tile(const Job& job, BlockRange tile, uint64_t last_block, LeafHasher* hasher, TileScratch* scratch,
                 FirstFailure* failure) {
  const bool pairs = has_pairs(job.frame);
  const uint64_t start = tile.first * block_nbytes(job.frame), total = job.frame.uncompressed_nbytes;
  const uint64_t stop = std::min(tile.last * block_nbytes(job.frame), total);
  LeavesAhead ahead(job.base.bytes, job.base.offset, total, start, stop, job.base_leaves);
  hasher->start(start);
  bool checked = false;
  for (uint64_t block = tile.first; block < tile.last; ++block) {
    if (job.base_leaves != nullptr) ahead.reach(std::min((block + 1) * block_nbytes(job.frame), stop));
    if (pairs && (block - tile.first) % 2 == 0) checked = block + 1 < tile.last && begin_pair(job, block, scratch);
    tw_error why;
    const int result = decode_one(job, block, last_block, checked, hasher, scratch, &why);
    if (result == TW_OK) continue;
    failure->note(result, why);
    return false;
  }
  return true;
}

// Whole blocks that one thread takes at a time.
uint64_t blocks_of_tile(const Job& job) {
  const uint64_t block = block_nbytes(job.frame);
  const bool shared = job.leaves != nullptr && kTileNbytes % block != 0 && block % TW_LEAF_NBYTES != 0;
  const uint64_t fitting = std::max<uint64_t>(1, (shared ? kSharedTileNbytes : kTileNbytes) / block);
  return has_pairs(job.frame) ? ceil_to(fitting, 2) : fitting;
}

int decode_blocks(const Job& job, const void* header, Workers workers, tw_error* error) {
  const tw_frame& frame = job.frame;
  int status = check_range(frame, job.start, job.stop, error);
  if (status != TW_OK) return status;
  const BlockRange range = blocks_of(frame, job.start, job.stop);
  status = check_covered(frame, header, job.data, range, error);
  if (status != TW_OK) return status;
  status = check_base(frame, range, job.base, job.start, job.stop, job.dst, error);
  if (status != TW_OK) return status;
  const uint64_t per_tile = blocks_of_tile(job), num_tiles = ceil_div(range.last - range.first, per_tile);
  FirstFailure failure;
  // Threads take tiles in order. Where one takes the next tile, too, a leaf that both share is hashed in one go.
  struct ThreadScratch {
    TileScratch tile;
    LeafHasher hasher{0, nullptr};
    bool begun = false;
  };
  const bool ran = run_tiles<ThreadScratch>(num_tiles, workers, [&](ThreadScratch& scratch, uint64_t tile) {
    if (!scratch.begun) scratch.hasher = LeafHasher(frame.uncompressed_nbytes, job.leaves);
    scratch.begun = true;
    const uint64_t first = range.first + tile * per_tile;
    return decode_tile(job, {first, std::min(first + per_tile, range.last)}, range.last, &scratch.hasher, &scratch.tile,
                       &failure);
  });
  if (!ran) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the decoder's scratch");
  status = failure.report(error);
  if (status != TW_OK || job.leaves == nullptr || workers.threads <= 1) return status;
  for (uint64_t tile = 1; tile < num_tiles; ++tile) {
    const uint64_t border = (range.first + tile * per_tile) * block_nbytes(frame);
    if (border % TW_LEAF_NBYTES == 0) continue;
    const uint64_t stop = std::min(ceil_to(border, TW_LEAF_NBYTES), frame.uncompressed_nbytes);
    hash_leaves_ending(job.dst, 0, frame.uncompressed_nbytes, border, stop, job.leaves);
  }
  return TW_OK;
}

}  // namespace
}  // namespace tw

using namespace tw;

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
              const void* base, uint64_t base_offset, uint64_t base_nbytes, uint64_t start, uint64_t stop, void* dst,
              uint32_t threads, tw_parallel parallel, uint32_t flags, uint8_t* checked, tw_error* error) {
  const Data have = {static_cast<const uint8_t*>(data), data_offset, data_nbytes};
  const Data of_base = {is_relative(*frame) ? static_cast<const uint8_t*>(base) : nullptr, base_offset, base_nbytes};
  const Index index(*frame, header);
  const Checks checks = {(flags & TW_VERIFY) != 0, checked};
  const Job job = {{*frame, index, have, checks}, of_base, start, stop, static_cast<uint8_t*>(dst), nullptr, nullptr};
  return decode_blocks(job, header, Workers(threads, parallel), error);
}

int tw_decode_and_hash(const tw_frame* frame, const void* header, const void* data, uint64_t data_nbytes,
                       const void* base, uint64_t base_nbytes, void* dst, uint32_t threads, void* content_hash,
                       void* base_hash, tw_error* error) {
  if (!is_relative(*frame) || (base_hash != nullptr && base == dst && base_nbytes != 0)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected a relative frame, and no hashes of a base that is changed in place");
  }
  const Data have = {static_cast<const uint8_t*>(data), 0, data_nbytes};
  const Data of_base = {static_cast<const uint8_t*>(base), 0, base_nbytes};
  const Index index(*frame, header);
  // The base bounds them: decode_blocks() compares its size before it writes any.
  const uint64_t leaves_nbytes = ceil_div(std::min(frame->uncompressed_nbytes, base_nbytes), TW_LEAF_NBYTES) * 16;
  std::unique_ptr<uint8_t[]> leaves(new (std::nothrow) uint8_t[2 * leaves_nbytes + 1]);
  if (leaves == nullptr) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the content's hashes");
  uint8_t* const base_leaves = base_hash == nullptr ? nullptr : leaves.get() + leaves_nbytes;
  const Job job = {{*frame, index, have, {true}}, of_base,      0,          frame->uncompressed_nbytes,
                   static_cast<uint8_t*>(dst),    leaves.get(), base_leaves};
  const int status = decode_blocks(job, header, threads, error);
  if (status != TW_OK) return status;
  store_hash(hash_root(frame->uncompressed_nbytes, leaves.get()), static_cast<uint8_t*>(content_hash));
  if (base_hash == nullptr) return TW_OK;
  store_hash(hash_root(frame->uncompressed_nbytes, base_leaves), static_cast<uint8_t*>(base_hash));
  return TW_OK;
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
  const Blocks blocks = {*frame, index, have, {true}};
  const Lent<TileScratch> lent;
  TileScratch* const scratch = lent.get();
  if (scratch == nullptr) return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for the decoder's scratch");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t block = first + i, nbytes = blocks.end_of(block) - blocks.start_of(block);
    const int checked = blocks.check(block, error);
    if (checked != TW_OK) return checked;
    BlockFacts facts;
    const Fault fault =
        inspect_block(spec_of(*frame, nullptr), blocks.bytes(block, scratch->last), &facts, &scratch->block);
    if (fault) return blocks.report(fault, block, error);
    infos[i] = {frame->header_nbytes + blocks.start_of(block),
                nbytes,
                facts.rest_nbytes,
                facts.kind_nbytes,
                static_cast<uint32_t>(num_block_words(*frame, block)),
                facts.kind,
                facts.rest,
                facts.variant,
                facts.extended};
  }
  return TW_OK;
}
