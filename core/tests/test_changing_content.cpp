// Content and a base that another thread writes to while they are encoded, as an optimizer step or a mapped file may:
// the frame is whole, and holds what its content hash says. Nothing is read or written out of bounds, which the
// sanitizers see.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/mutation.h"
#include "tests/quick.h"
#include "tests/target.h"

namespace {

using tests::Bytes;
using tests::Random;
using tests::Type;

constexpr int kTimes = 3;  // on one thread, in chunks, on two threads
enum class Writes { kContent, kBase, kBoth };

// Writes to a few words at a time, to zero and back among others, so that what a block is best coded with changes.
class Writer {
 public:
  Writer(std::vector<Bytes*> targets, const Type& type, uint64_t seed) : targets_(std::move(targets)) {
    thread_ = std::thread([this, type, seed] { run(type, seed); });
    while (!begun_) std::this_thread::yield();
  }
  ~Writer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void run(const Type& type, uint64_t seed) {
    Random random(seed);
    while (!stop_.load(std::memory_order_relaxed)) {
      for (Bytes* bytes : targets_) {
        const auto content = static_cast<tests::Content>(random.below(tests::kNumContents));
        const size_t count = 1 + random.below(400), first = random.below(bytes->size() / type.nbytes - count);
        for (size_t i = first; i < first + count; ++i) {
          const uint64_t word = tests::word(type, content, &random);
          volatile uint8_t* const at = bytes->data() + i * type.nbytes;
          for (unsigned b = 0; b < type.nbytes; ++b) at[b] = static_cast<uint8_t>(word >> 8 * b);
        }
      }
      begun_ = true;
    }
  }

  std::vector<Bytes*> targets_;
  std::atomic<bool> begun_{false}, stop_{false};
  std::thread thread_;
};

// The frame's bytes as tw_encode_blocks makes them, of chunks of two blocks.
Bytes encode_chunks(tw_frame* frame, const Bytes& content, const uint8_t* base) {
  Bytes index(8 * frame->num_blocks), hashes(16 * (content.size() / TW_LEAF_NBYTES + 1)), base_hashes(hashes.size());
  tw_leaves leaves = {hashes.data(), {}}, base_leaves = {base_hashes.data(), {}};
  Bytes blocks(tw_data_bound(frame, content.size())), out(tw_frame_bound(frame));
  tw_error error;
  const uint64_t chunk = 2 * uint64_t{frame->block_words} * frame->layout.word_nbytes;
  uint64_t end = 0;
  for (uint64_t first = 0; first < content.size(); first += chunk) {
    const uint64_t nbytes = std::min<uint64_t>(chunk, content.size() - first);
    uint64_t written = 0;
    CHECK(tw_encode_blocks(frame, first, content.data() + first, nbytes, base == nullptr ? nullptr : base + first, end,
                           blocks.data() + end, blocks.size() - end, &written, index.data(), &leaves,
                           base == nullptr ? nullptr : &base_leaves, 1, &error) == TW_OK);
    end += written;
  }
  if (base != nullptr) tw_hash_root(content.size(), base_hashes.data(), frame->base_hash);
  CHECK(tw_encode_header(frame, end, index.data(), hashes.data(), nullptr, out.data(), &error) == TW_OK);
  std::memcpy(out.data() + frame->header_nbytes, blocks.data(), end);
  out.resize(frame->frame_nbytes);
  return out;
}

Bytes encode(const Type& type, uint32_t profile, const Bytes& content, const uint8_t* base, int time) {
  const uint8_t unknown[16] = {};
  tw_frame frame = tests::new_frame(type.name, type.bits, {8 * content.size() / type.bits}, profile,
                                    tests::BlockWords(time == 0 ? 0 : 8192), base == nullptr ? nullptr : unknown);
  if (time == 1) return encode_chunks(&frame, content, base);
  return tests::compress(&frame, content, base, 1 + time / 2);
}

// The frame is sound; and if `base` is what it is relative to, it decodes to what its hash says.
void check_frame(const Bytes& bytes, const Bytes* base) {
  const tw_frame frame = tests::frame_of(bytes);
  tw_error error;
  CHECK(frame.frame_nbytes == bytes.size());
  const uint8_t* data = bytes.data() + frame.header_nbytes;
  if (frame.data_nbytes != 0) tests::infos_of(frame, bytes);
  if (base == nullptr && frame.features != 0) return;
  Bytes out(frame.uncompressed_nbytes);
  CHECK(tw_decode(&frame, bytes.data(), data, 0, frame.data_nbytes, base == nullptr ? nullptr : base->data(), 0,
                  base == nullptr ? 0 : base->size(), 0, out.size(), out.data(), 1, nullptr, TW_VERIFY, nullptr,
                  &error) == TW_OK);
  CHECK(std::memcmp(tests::hash_of(out).data(), frame.content_hash, 16) == 0);
}

void encode_while_it_changes(const Type& type, uint32_t profile, const Writes* writes, uint64_t seed) {
  Random random(seed);
  Bytes content;  // of several blocks and leaves, none of which end together
  while (content.size() < 3 * TW_LEAF_NBYTES + 999) {
    const Bytes more = tests::make_content(type, profile, tests::kWeights, &random);
    content.insert(content.end(), more.begin(), more.end());
  }
  Bytes base = tests::make_base(type, profile, content, tests::kFewSteps, &random);
  base.insert(base.end(), content.begin() + static_cast<ptrdiff_t>(base.size()), content.end());
  std::vector<Bytes*> targets;
  if (writes == nullptr || *writes != Writes::kBase) targets.push_back(&content);
  if (writes != nullptr && *writes != Writes::kContent) targets.push_back(&base);
  const Writer writer(targets, type, seed);
  const bool stands = writes != nullptr && *writes == Writes::kContent;
  for (int time = 0; time < kTimes; ++time) {
    check_frame(encode(type, profile, content, writes == nullptr ? nullptr : base.data(), time),
                stands ? &base : nullptr);
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  constexpr Writes kAll[] = {Writes::kContent, Writes::kBase, Writes::kBoth};
  uint64_t seed = 0, num_cases = 0;
  const auto check = [&](const Type& type, uint32_t profile, const Writes* writes) {
    if (!tests::runs(++seed, 3)) return;
    encode_while_it_changes(type, profile, writes, seed);
    ++num_cases;
  };
  for (const Type& type : tests::kTypes) {
    for (uint32_t profile = TW_ENEC; profile <= TW_RESIDENT; ++profile) {
      // There are 13 cases for each type, so that each of them runs with another third of the types.
      check(type, profile, nullptr);
      if (profile == TW_RESIDENT) continue;
      for (const Writes& writes : kAll) check(type, profile, &writes);
    }
  }
  std::printf("%llu cases\n", static_cast<unsigned long long>(num_cases));
  return 0;
}
