// Decode arbitrary bytes as one block, where no checksum stands in the way. Six bytes come first: the layout
// (layout.h), its highest bit for ordered; the form: profile, stored, alignment, and in the highest bit that the frame
// is relative; two for the number of words; two for how many bytes of the input are the base, again and again. What is
// left is the block, of whole units of the alignment; its end, which has the descriptor, is that of the input.
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "frame/decode_block.h"
#include "frame/header.h"
#include "layout.h"

namespace {

constexpr size_t kHead = 6;
constexpr size_t kMaxWords = 1u << 15;

void check_fault(const tw::Fault& fault) {
  CHECK(fault.status == TW_CORRUPT || fault.status == TW_UNSUPPORTED_VERSION);
  CHECK(fault.message[0] != '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size < kHead) return 0;
  tw_frame frame = {};
  frame.layout = layout_of(input[0], input[0] >= 128);
  frame.profile = input[1] & 3;
  frame.block_alignment = tw::kLeastAlignment + (input[1] >> 3 & 7);
  frame.features = input[1] >= 128 && frame.profile != TW_RESIDENT ? TW_BASE_RELATIVE : 0;
  const size_t n = 1 + tw::load<uint16_t>(input + 2) % kMaxWords;
  const size_t pattern = tw::load<uint16_t>(input + 4) % (size - kHead + 1);
  const size_t width = frame.layout.word_nbytes, unit = tw::block_align(frame);
  const size_t length = (size - kHead - pattern) / unit * unit;

  std::vector<uint8_t> base(n * width), bytes(length + tw::kSlack);
  for (size_t i = 0; i < base.size() && pattern != 0; ++i) base[i] = input[kHead + i % pattern];
  if (length != 0) std::memcpy(bytes.data(), input + size - length, length);
  const std::vector<uint8_t> original = base;
  const bool relative = frame.features != 0;
  const tw::BlockSpec spec = tw::spec_of(frame, relative ? base.data() : nullptr);
  const tw::BlockBytes block = {bytes.data(), length, n, (input[1] & 4) != 0};
  // The index allows no others.
  if (length == 0 ? block.stored || !relative : tw::check_length(spec, block) != nullptr) return 0;
  static const auto scratch = std::make_unique<tw::DecodeScratch>();

  std::vector<uint8_t> words(n * width), again(n * width);
  tw::LeafHasher hasher;
  const tw::Fault fault = tw::decode_block(spec, block, {words.data(), false, {}, &hasher}, &*scratch);
  tw::BlockFacts facts;
  const tw::Fault of_facts = tw::inspect_block(tw::spec_of(frame, nullptr), block, &facts, &*scratch);
  if (of_facts) {
    check_fault(of_facts);
    CHECK(fault);
  }
  if (fault) {
    check_fault(fault);
    return 0;
  }
  // The same once more, around the caches where memory allows, and in the place of the base. Bytes behind a block that
  // are not its own change nothing.
  std::memset(bytes.data() + length, 0xa5, tw::kSlack);
  const bool aligned = reinterpret_cast<uintptr_t>(again.data()) % 64 == 0;
  const tw::Fetch next = {words.data(), words.size()};
  CHECK(!tw::decode_block(spec, block, {again.data(), aligned, next, &hasher}, &*scratch));
  CHECK(again == words && base == original);
  if (relative) {
    CHECK(!tw::decode_block(spec, block, {base.data(), false, {}, &hasher}, &*scratch));
    CHECK(base == words);
  }
  return 0;
}
