// Whole frames through the C ABI: every dtype and profile, contents that reach every coder; and blocks of every layout,
// sound and damaged. Prints a hash of all that it wrote and decoded, which must be the same on every target
// (cmake/on_every_target.cmake).
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/hash.h"
#include "frame/decode_block.h"
#include "frame/encode_block.h"
#include "tests/quick.h"
#include "tests/sources.h"
#include "tests/target.h"

namespace {

using tests::Bytes;
using tests::Content;
using tests::Random;
using tests::Type;

constexpr unsigned kNumContents = tests::kCounter + 1;

Bytes make_content(const Type& type, Content content, size_t count) {
  Random random(count * 1000 + content);
  return tests::make_words(type, content, tests::whole_words(type, count), &random);
}

// A copy at the end of its own allocation: a sanitizer sees every byte that is read too far.
Bytes exact(const uint8_t* bytes, size_t nbytes) { return Bytes(bytes, bytes + nbytes); }

void check_range(const tw_frame& frame, const Bytes& bytes, const Bytes& content, uint64_t start, uint64_t stop) {
  tw_error error;
  uint64_t first = 0, last = 0;
  CHECK(tw_block_range(&frame, bytes.data(), start, stop, &first, &last, &error) == TW_OK);
  const Bytes data = exact(bytes.data() + frame.header_nbytes + first, last - first);
  Bytes part(stop - start);
  CHECK(tw_decode(&frame, bytes.data(), data.data(), first, data.size(), nullptr, 0, 0, start, stop, part.data(), 2,
                  nullptr, TW_VERIFY, nullptr, &error) == TW_OK);
  CHECK(std::equal(part.begin(), part.end(), content.data() + start));
}

// Each call maps megabytes of scratch, most of which it never touches; the sanitizer marks all of them.
#ifdef __SANITIZE_ADDRESS__
constexpr int kNumDamages = 4;
#else
constexpr int kNumDamages = 20;
#endif

void check_damage(const tw_frame& frame, Bytes bytes, const Bytes& content) {
  tw_error error;
  Bytes out(content.size());
  Random random(bytes.size());
  for (int i = 0; i < kNumDamages && frame.data_nbytes != 0; ++i) {
    const size_t at = frame.header_nbytes + random.next() % frame.data_nbytes;
    const uint8_t bit = static_cast<uint8_t>(1u << random.next() % 8);
    bytes[at] ^= bit;
    const uint8_t* data = bytes.data() + frame.header_nbytes;
    CHECK(tw_decode(&frame, bytes.data(), data, 0, frame.data_nbytes, nullptr, 0, 0, 0, content.size(), out.data(), 1,
                    nullptr, TW_VERIFY, nullptr, &error) == TW_CORRUPT);
    // Without checksums anything may come out, but nothing may go out of bounds.
    tw_decode(&frame, bytes.data(), data, 0, frame.data_nbytes, nullptr, 0, 0, 0, content.size(), out.data(), 1,
              nullptr, 0, nullptr, &error);
    bytes[at] ^= bit;
  }
}

// A block that has its bit is not checked again.
void check_checked(const tw_frame& frame, Bytes bytes, const Bytes& content) {
  Bytes out(content.size()), checked((frame.num_blocks + 7) / 8);
  tw_error error;
  const auto decode = [&](uint64_t start, uint64_t stop, uint32_t threads, uint32_t flags) {
    return tw_decode(&frame, bytes.data(), bytes.data() + frame.header_nbytes, 0, frame.data_nbytes, nullptr, 0, 0,
                     start, stop, out.data(), threads, nullptr, flags, checked.data(), &error);
  };
  const auto bit = [&](uint64_t block) { return (checked[block / 8] >> block % 8 & 1) != 0; };
  if (frame.num_blocks < 2) return;
  CHECK(decode(0, content.size(), 2, 0) == TW_OK && !bit(0));
  const uint64_t block_nbytes = frame.block_words * frame.layout.word_nbytes;
  CHECK(decode(block_nbytes, block_nbytes + 1, 1, TW_VERIFY) == TW_OK);
  for (uint64_t k = 0; k < 8 * checked.size(); ++k) CHECK(bit(k) == (k == 1));
  bytes[frame.header_nbytes] ^= 1;  // the first block
  CHECK(decode(0, content.size(), 2, TW_VERIFY) == TW_CORRUPT && error.block == 0 && !bit(0));
  CHECK(std::strstr(error.message, "checksum") != nullptr);
  checked[0] |= 1;
  CHECK(decode(0, content.size(), 2, TW_VERIFY) == TW_OK || std::strstr(error.message, "checksum") == nullptr);
  bytes[frame.header_nbytes] ^= 1;
  CHECK(decode(0, content.size(), 4, TW_VERIFY) == TW_OK && out == content);
  for (uint64_t k = 0; k < 8 * checked.size(); ++k) CHECK(bit(k) == (k < frame.num_blocks));
}

// A frame in memory of so many bytes and no more, so that a sanitizer sees a step past them: it fits, or is refused.
void check_room(const tw_frame& empty, const Bytes& original, const Bytes& bytes, size_t room, uint32_t threads) {
  tw_frame frame = empty;
  tw_error error;
  Bytes out(room);
  const int status =
      tw_compress(&frame, original.data(), original.size(), nullptr, out.data(), room, threads, 0, &error);
  CHECK(status == (room < bytes.size() ? TW_BUFFER_TOO_SMALL : TW_OK));
  if (status == TW_OK) CHECK(std::equal(bytes.begin(), bytes.end(), out.begin()));
}

void check_rooms(const tw_frame& empty, const Bytes& original, const Bytes& bytes, uint32_t threads) {
  for (const size_t room : {bytes.size() / 2, bytes.size() - 1, bytes.size()}) {
    check_room(empty, original, bytes, room, threads);
  }
}

// Several tiles, of which the last ones, or all, find no room.
void check_rooms_of_many_tiles() {
  Random random(7);
  Bytes content(5 << 19);
  for (size_t i = 0; i < content.size(); i += 2) {
    tw::store(&content[i], static_cast<uint16_t>(0x3f00 | (random.next() & 0x81ff)));
  }
  const tw_frame empty = tests::new_frame("BF16", 0, {content.size() / 2}, TW_FAST, nullptr);
  tw_frame frame = empty;
  const Bytes bytes = tests::compress(&frame, content);
  CHECK(bytes.size() < content.size());
  for (const uint32_t threads : {1u, 3u}) {
    check_rooms(empty, content, bytes, threads);
    for (const size_t room : {0u, 1u, 128u}) check_room(empty, content, bytes, room, threads);
  }
}

uint64_t round_trip(const Type& type, uint32_t profile, Content content, size_t count, uint32_t block_words) {
  const Bytes original = make_content(type, content, count), untouched = original;
  tw_frame frame = tests::new_frame(type.name, type.bits, {8 * original.size() / type.bits, 1}, profile,
                                    tests::BlockWords(block_words));
  CHECK(frame.uncompressed_nbytes == original.size());
  tw_frame again = frame;
  const Bytes bytes = tests::compress(&frame, original);
  CHECK(original == untouched);
  if (count < 5000) check_rooms(again, original, bytes, 1);
  CHECK(tests::compress(&again, original, nullptr, 3) == bytes);

  const tw_frame parsed = tests::frame_of(bytes);
  CHECK(parsed.frame_nbytes == bytes.size() && parsed.uncompressed_nbytes == original.size());
  check_range(parsed, bytes, original, 0, original.size());
  if (original.size() > 10) check_range(parsed, bytes, original, original.size() / 3, original.size() - 3);
  if (count < 5000) check_damage(parsed, bytes, original), check_checked(parsed, bytes, original);
  return tw::hash128(bytes.data(), bytes.size()).low;
}

// Values that no tier and no window of symbols holds together, and too many of each for a count of escapes.
uint64_t far_apart() {
  constexpr uint32_t kNumWords = 262144;
  Bytes content(2 * kNumWords);
  for (size_t i = 0; i < kNumWords; ++i) tw::store(&content[2 * i], static_cast<uint16_t>(i % 2 == 0 ? 1 : 0xffff));
  tw_frame frame = tests::new_frame("BF16", 0, {kNumWords}, TW_COMPACT, tests::BlockWords(kNumWords));
  const Bytes bytes = tests::compress(&frame, content);
  CHECK(frame.data_nbytes < kNumWords / 2);
  check_range(frame, bytes, content, 0, 2 * kNumWords);
  return tw::hash128(bytes.data(), bytes.size()).low;
}

// Words of 2^15 at a time have exponents of their own, if they are mixed. Returns the kinds of the blocks.
std::vector<unsigned> kinds_of_row(const char* dtype, uint32_t profile, uint64_t numel, bool mixed,
                                   uint32_t block_words) {
  const size_t width = std::strcmp(dtype, "F32") == 0 ? 4 : 2;
  Bytes content(width * numel);
  uint64_t state = 1;
  for (uint64_t i = 0; i < numel; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t part = mixed ? i >> 15 : 0;
    const uint64_t word = (100 + 7 * (part % 5) + (state >> 40) % 4) << 7 | (state >> 50 & 127) | (state >> 63) << 15;
    std::memcpy(&content[i * width + width - 2], &word, 2);
  }
  tw_frame frame = tests::new_frame(dtype, 0, {numel}, profile, nullptr);
  CHECK(frame.block_words == block_words);
  CHECK(frame.num_blocks == (numel + frame.block_words - 1) / frame.block_words);
  const Bytes bytes = tests::compress(&frame, content, nullptr, 2);
  CHECK(bytes.size() <= tw_frame_bound(&frame));
  check_range(frame, bytes, content, 0, content.size());
  std::vector<unsigned> kinds;
  for (const tw_block_info& info : tests::infos_of(frame, bytes)) kinds.push_back(10 * info.kind + info.extended);
  return kinds;
}

void check_rows() {
  constexpr unsigned kRow = 75, kEntropy = 40, kPart = 1 << 15;
  for (const char* dtype : {"BF16", "F32"}) {
    const auto kinds = [&](uint32_t profile, uint64_t numel, bool mixed, uint32_t block_words) {
      return kinds_of_row(dtype, profile, numel, mixed, block_words);
    };
    CHECK((kinds(TW_COMPACT, 16 * kPart, true, 8 * kPart) == std::vector<unsigned>{kRow, kRow}));
    CHECK((kinds(TW_COMPACT, 16 * kPart, false, 8 * kPart) == std::vector<unsigned>{kEntropy, kEntropy}));
    // Rows of two to four parts would cost more than they save in the index.
    CHECK((kinds(TW_COMPACT, 4 * kPart, true, kPart).size() == 4));
    CHECK((kinds(TW_COMPACT, 5 * kPart, true, 8 * kPart) == std::vector<unsigned>{kRow}));
    CHECK((kinds(TW_FAST, 16 * kPart, true, kPart).size() == 16));
  }
}

// A block through the codec's inside, which knows layouts and no names.
class OneBlock {
 public:
  OneBlock(const tw::Layout& layout, uint8_t profile, bool relative)
      : spec_{layout, profile, relative, nullptr, tw::kBlockAlign} {
    encode_scratch().first_tier = {};
  }

  // A block of n words, one in four of them changed by a few ordinals in the base of a relative one.
  void round_trip(Content content, size_t n) {
    const Type type = tests::odd_type(spec_.dtype);
    Random words(n * 1000 + content);
    words_ = base_ = tests::make_words(type, content, n, &words);
    Random random(n);
    for (size_t i = 0; i < n; ++i) {
      if (random.next() % 4 == 0) base_[i * type.nbytes] ^= static_cast<uint8_t>(random.next() % 8);
    }
    spec_.base = spec_.relative ? base_.data() : nullptr;
    const size_t most = tw::stored_nbytes(spec_, n);
    Bytes block(most);
    length_ = tw::encode_block(spec_, words_.data(), n, block.data(), &encode_scratch());
    CHECK(length_ <= most && (length_ != 0 || words_ == base_));
    block_.assign(block.begin(), block.begin() + static_cast<ptrdiff_t>(length_));
    block_.resize(length_ + tw::kSlack);
    CHECK(decodes(block_));
  }

  // Bits that are wrong, half of them in the descriptor: a block is refused or decodes, within its memory.
  void damage(unsigned times) {
    Random random(length_);
    for (unsigned i = 0; i < times && length_ != 0; ++i) {
      Bytes damaged = block_;
      for (uint64_t flips = 1 + random.next() % 3; flips > 0; --flips) {
        const size_t tail = random.next() % 2 == 0 && length_ > 24 ? length_ - 24 : 0;
        damaged[tail + random.next() % (length_ - tail)] ^= static_cast<uint8_t>(1 << random.next() % 8);
      }
      decodes(damaged);
    }
  }

  size_t length() const { return length_; }
  std::vector<uint64_t> hashes;  // of blocks, and of what they decode to

 private:
  static tw::EncodeScratch& encode_scratch() {
    static const std::unique_ptr<tw::EncodeScratch> scratch(new tw::EncodeScratch);
    return *scratch;
  }

  // Whether the block decodes to the words.
  bool decodes(const Bytes& block) {
    static const std::unique_ptr<tw::DecodeScratch> scratch(new tw::DecodeScratch);
    const size_t n = words_.size() / spec_.dtype.word_nbytes;
    Bytes out(words_.size());
    tw::LeafHasher hasher(0, nullptr);
    const tw::BlockBytes bytes = {block.data(), length_, n, length_ == tw::stored_nbytes(spec_, n)};
    const tw::Fault fault = tw::decode_block(spec_, bytes, {out.data(), false, {}, &hasher}, scratch.get());
    tw::BlockFacts facts;
    const tw::Fault of_facts = tw::inspect_block(spec_, bytes, &facts, scratch.get());
    CHECK(fault || !of_facts);
    if (fault) out = {static_cast<uint8_t>(fault.status)};
    hashes.push_back(tw::hash128(block.data(), block.size()).low);
    hashes.push_back(tw::hash128(out.data(), out.size()).low);
    return out == words_;
  }

  tw::BlockSpec spec_;
  Bytes words_, base_, block_;
  size_t length_ = 0;
};

void all_blocks(std::vector<uint64_t>* hashes) {
  for (const tw::Layout& layout : tests::all_layouts()) {
    for (uint8_t profile = tw::kProfileEnec; profile <= tw::kProfileResident; ++profile) {
      for (const bool relative : {false, true}) {
        // In plain frames and in those of integers nothing depends on the order.
        if (relative ? profile == tw::kProfileResident : layout.ordered) continue;
        OneBlock blocks(layout, profile, relative);
        for (unsigned content = 0; content < kNumContents; ++content) {
          blocks.round_trip(static_cast<Content>(content), 1 + 97 * (content % 3 + 1));
          blocks.round_trip(static_cast<Content>(content), content % 2 == 0 ? 2048 : 1777);
          blocks.damage(tests::times(12, 5));
        }
        hashes->insert(hashes->end(), blocks.hashes.begin(), blocks.hashes.end());
      }
    }
  }
}

// Words that are nothing but an exponent, of 2 bits of entropy: half of them are the same, a quarter the next, and so
// on.
void check_exponents_alone() {
  const tw::Layout layout = {1, 8, 0, tw::Split::kUnsigned, false};
  constexpr size_t kWords = 1 << 15, kEntropyNbytes = kWords * 2 / 8;
  OneBlock fast(layout, tw::kProfileFast, false), compact(layout, tw::kProfileCompact, false);
  fast.round_trip(tests::kWeights, kWords);
  compact.round_trip(tests::kWeights, kWords);
  CHECK(fast.length() < kEntropyNbytes * 115 / 100);
  CHECK(compact.length() < kEntropyNbytes * 102 / 100);
}

std::vector<uint64_t> all_frames() {
  std::vector<uint64_t> hashes = {far_apart()};
  for (const Type& type : tests::kTypes) {
    for (uint32_t profile = TW_ENEC; profile <= TW_RESIDENT; ++profile) {
      for (unsigned content = 0; content < kNumContents; ++content) {
        for (const size_t numel : {0u, 1u, 31u, 255u, 256u, 257u, 2047u, 4096u, 4999u}) {
          if (!tests::runs(numel + content + profile, 2)) continue;
          hashes.push_back(round_trip(type, profile, static_cast<Content>(content), numel, 2048));
        }
        hashes.push_back(round_trip(type, profile, static_cast<Content>(content), 4999, 3 * 256));
        if (!tests::runs(content + profile + type.bits / 8, 3)) continue;
        hashes.push_back(round_trip(type, profile, static_cast<Content>(content), 40001, 0));
      }
    }
  }
  return hashes;
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  check_rows();
  check_rooms_of_many_tiles();
  check_exponents_alone();
  std::vector<uint64_t> hashes = all_frames();
  const size_t num_frames = hashes.size();
  all_blocks(&hashes);
  const tw::Hash128 all =
      tw::hash128(reinterpret_cast<const uint8_t*>(hashes.data()), hashes.size() * sizeof(uint64_t));
  std::printf("%zu frames, hash of all %016llx\n", num_frames, static_cast<unsigned long long>(all.low));
  return 0;
}
