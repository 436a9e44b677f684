// Relative frames through the C ABI: blocks that are the base's, blocks that are not, and frames without an index.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "tests/frames.h"
#include "tests/target.h"

namespace {

using namespace tests;

constexpr uint32_t kBlockWords = 512;
constexpr size_t kBlockNbytes = 2 * kBlockWords;
constexpr size_t kNumBlocks = 7;
constexpr size_t kNumel = kNumBlocks * kBlockWords - 100;

// BF16 words near 1 that are no two alike in a row.
Bytes make_base(size_t numel = kNumel) {
  Bytes bytes(2 * numel);
  uint32_t state = 1;
  for (size_t i = 0; i < numel; ++i) {
    state = state * 1664525 + 1013904223;
    const uint16_t word = static_cast<uint16_t>(0x3f00 | state >> 24);
    std::memcpy(bytes.data() + 2 * i, &word, 2);
  }
  return bytes;
}

int compress_with(const Bytes& content, Bytes* base, uint32_t threads, uint32_t block_words, uint32_t flags,
                  Bytes* bytes) {
  tw_error error;
  const uint8_t unknown[16] = {};
  tw_frame frame = new_frame("BF16", 0, {content.size() / 2}, TW_FAST, BlockWords(block_words), unknown);
  bytes->resize(tw_frame_bound(&frame));
  const int status = tw_compress(&frame, content.data(), content.size(), base->data(), bytes->data(), bytes->size(),
                                 threads, flags, &error);
  bytes->resize(frame.frame_nbytes);
  return status;
}

Bytes compress(const Bytes& content, const Bytes& base, uint32_t threads = 1, uint32_t block_words = kBlockWords) {
  Bytes bytes, same = base;
  CHECK(compress_with(content, &same, threads, block_words, 0, &bytes) == TW_OK && same == base);
  return bytes;
}

int decode(const Bytes& bytes, const Bytes& base, uint64_t base_offset, uint64_t start, uint64_t stop, uint8_t* dst) {
  const tw_frame frame = frame_of(bytes);
  tw_error error;
  uint64_t first = 0, last = 0;
  CHECK(tw_block_range(&frame, bytes.data(), start, stop, &first, &last, &error) == TW_OK);
  const Bytes data(bytes.begin() + static_cast<ptrdiff_t>(frame.header_nbytes + first),
                   bytes.begin() + static_cast<ptrdiff_t>(frame.header_nbytes + last));
  return tw_decode(&frame, bytes.data(), data.data(), first, data.size(), base.data(), base_offset, base.size(), start,
                   stop, dst, 2, nullptr, TW_VERIFY, nullptr, &error);
}

void check_decodes(const Bytes& bytes, const Bytes& base, const Bytes& content) {
  Bytes out(content.size());
  CHECK(decode(bytes, base, 0, 0, content.size(), out.data()) == TW_OK && out == content);
  Bytes in_place = base;
  CHECK(decode(bytes, in_place, 0, 0, content.size(), in_place.data()) == TW_OK && in_place == content);
  // Parts, of which the base has the whole blocks and no byte more.
  for (size_t first = 0; first < kNumBlocks; ++first) {
    const size_t start = first * kBlockNbytes, stop = std::min(start + 2 * kBlockNbytes, content.size());
    const Bytes of_base(base.begin() + static_cast<ptrdiff_t>(start), base.begin() + static_cast<ptrdiff_t>(stop));
    Bytes part(stop - start - 2);
    CHECK(decode(bytes, of_base, start, start + 1, stop - 1, part.data()) == TW_OK);
    CHECK(std::equal(part.begin(), part.end(), content.begin() + static_cast<ptrdiff_t>(start) + 1));
    CHECK(decode(bytes, of_base, start + 2, start + 1, stop - 1, part.data()) == TW_INVALID_ARGUMENT);
  }
}

uint64_t check_some_blocks(const Bytes& base, const std::vector<size_t>& changed) {
  Bytes content = base;
  for (const size_t block : changed) content[block * kBlockNbytes + 3] ^= 1;
  const Bytes bytes = compress(content, base);
  CHECK(compress(content, base, 3) == bytes);
  check_decodes(bytes, base, content);
  const tw_frame frame = frame_of(bytes);
  CHECK(frame.features == TW_BASE_RELATIVE && frame.num_blocks == kNumBlocks);
  CHECK(std::memcmp(frame.base_hash, hash_of(base).data(), 16) == 0);
  const std::vector<tw_block_info> infos = infos_of(frame, bytes);
  for (size_t block = 0; block < kNumBlocks; ++block) {
    const bool same = std::find(changed.begin(), changed.end(), block) == changed.end();
    CHECK((infos[block].kind == TW_KIND_SAME) == same && (infos[block].nbytes == 0) == same);
  }
  return tw::hash128(bytes.data(), bytes.size()).low;
}

void check_all_same(const Bytes& base) {
  const Bytes bytes = compress(base, base);
  CHECK(bytes.size() == 160);  // 128, one size, padding: no index
  check_decodes(bytes, base, base);
  const uint8_t hash[16] = {};
  for (const size_t room : {size_t{159}, size_t{160}}) {  // less than the index of another frame would take
    tw_frame frame = new_frame("BF16", 0, {base.size() / 2}, TW_FAST, BlockWords(kBlockWords), hash);
    tw_error error;
    Bytes out(room);
    const int status = tw_compress(&frame, base.data(), base.size(), base.data(), out.data(), room, 2, 0, &error);
    CHECK(room == 160 ? status == TW_OK && out == bytes : status == TW_BUFFER_TOO_SMALL);
  }
  const Bytes nothing;
  CHECK(compress(nothing, nothing).size() == 160);
}

void check_refusals(const Bytes& base) {
  Bytes content = base;
  for (const size_t block : {1u, 4u}) content[block * kBlockNbytes] ^= 1;
  const Bytes bytes = compress(content, base);
  // An output in the base's memory that is not its place, or not of whole blocks.
  Bytes memory = base;
  CHECK(decode(bytes, memory, 0, kBlockNbytes, 3 * kBlockNbytes, memory.data()) == TW_INVALID_ARGUMENT);
  CHECK(decode(bytes, memory, 0, 0, kBlockNbytes + 2, memory.data()) == TW_INVALID_ARGUMENT);
  CHECK(memory == base);

  tw_frame frame;
  tw_error error;
  const uint64_t numel = kNumel;
  const uint8_t wrong[16] = {1};
  CHECK(tw_frame_init(&frame, "BF16", 0, &numel, 1, TW_RESIDENT, nullptr, wrong, &error) == TW_INVALID_ARGUMENT);
  frame = new_frame("BF16", 0, {numel}, TW_FAST, nullptr, wrong);
  CHECK(frame.block_words == 32768);  // as in a plain frame
  Bytes out(tw_frame_bound(&frame));
  const auto status = [&](const uint8_t* of) {
    return tw_compress(&frame, base.data(), base.size(), of, out.data(), out.size(), 1, 0, &error);
  };
  CHECK(status(nullptr) == TW_INVALID_ARGUMENT);
  CHECK(status(base.data()) == TW_OK);  // the hash of the base is found out, whatever was said
  CHECK(std::memcmp(frame.base_hash, hash_of(base).data(), 16) == 0);
  std::memcpy(frame.base_hash, wrong, sizeof wrong);
  const Bytes leaves(16);  // of other content than the base, though no block is said to differ
  CHECK(tw_encode_header(&frame, 0, nullptr, leaves.data(), nullptr, out.data(), &error) == TW_INVALID_ARGUMENT);
}

// The hashes that decoding gives are those of the bytes, wherever leaves, blocks and the tiles of threads end. Blocks
// are of kinds sparse, dense and same, and every eighth one is rewritten.
void check_hashes(size_t numel, uint32_t block_words) {
  const Bytes base = make_base(numel);
  Bytes content = base;
  for (size_t i = 0; i < numel; ++i) {
    const size_t block = i / block_words;
    if (block % 8 >= 6 && i % 2 == 0) content[2 * i] ^= static_cast<uint8_t>(1 + i % 7);
    if (block % 8 == 3 || (block % 8 < 5 && i % 61 == 0)) content[2 * i] ^= static_cast<uint8_t>(1 + i % 3);
  }
  const Bytes bytes = compress(content, base, 1, block_words);
  for (const uint32_t threads : {1u, 3u}) {
    CHECK(compress(content, base, threads, block_words) == bytes);
    Bytes again, replaced = base;
    CHECK(compress_with(content, &replaced, threads, block_words, TW_REPLACE_BASE, &again) == TW_OK);
    CHECK(again == bytes && replaced == content);
  }
  const tw_frame frame = frame_of(bytes);
  tw_error error;
  const auto decode = [&](const Bytes& of, uint8_t* dst, uint32_t threads, uint8_t* hash, uint8_t* base_hash) {
    return tw_decode_and_hash(&frame, bytes.data(), bytes.data() + frame.header_nbytes, frame.data_nbytes, of.data(),
                              of.size(), dst, threads, hash, base_hash, &error);
  };
  for (const uint32_t threads : {1u, 2u, 5u}) {
    Bytes out(content.size()), hash(16), base_hash(16);
    CHECK(decode(base, out.data(), threads, hash.data(), base_hash.data()) == TW_OK && out == content);
    CHECK(hash == hash_of(content) && base_hash == hash_of(base));
    Bytes in_place = base;
    CHECK(decode(in_place, in_place.data(), threads, base_hash.data(), nullptr) == TW_OK && in_place == content);
    CHECK(base_hash == hash);
    if (numel == 0) continue;
    CHECK(decode(in_place, in_place.data(), threads, hash.data(), base_hash.data()) == TW_INVALID_ARGUMENT);
  }
}

}  // namespace

int main() {
  if (!forced_target_runs()) return kSkipped;
  const Bytes base = make_base();
  uint64_t all = 0;
  for (const std::vector<size_t>& changed :
       {std::vector<size_t>{0}, {6}, {0, 6}, {3}, {1, 2, 5}, {0, 1, 2, 3, 4, 5, 6}}) {
    all = all * 31 + check_some_blocks(base, changed);
  }
  check_all_same(base);
  check_refusals(base);
  for (const uint32_t block_words : {256u, 32768u, 33024u, 65536u, 262144u})
    check_hashes((5 << 20) / 2 + 77, block_words);
  for (const size_t numel : {0u, 1u, 65535u, 65536u, 65537u}) check_hashes(numel, 33024);
  std::printf("hash %016llx\n", static_cast<unsigned long long>(all));
  return 0;
}
