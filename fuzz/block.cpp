// Decode arbitrary bytes as one block, where no checksum stands in the way. Four bytes choose dtype, profile (and that
// the frame is relative) and the number of words, two more how many bytes of the input are the base, again and again.
// What is left is the block, of whole units of 32 bytes; its end, which has the descriptor, is that of the input.
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "frame/decode_block.h"
#include "frame/layout.h"
#include "transforms/planes.h"

namespace {

constexpr const char* kDtypes[] = {"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "F64",
                                   "I8",   "U8",  "I64", "I32",     "U16",     "BOOL"};
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
  std::strcpy(frame.dtype, kDtypes[input[0] % (sizeof kDtypes / sizeof kDtypes[0])]);
  frame.profile = input[1] % 4;
  frame.features = input[1] >= 128 && frame.profile != TW_RESIDENT ? TW_BASE_RELATIVE : 0;
  const size_t n = 1 + tw::load<uint16_t>(input + 2) % kMaxWords;
  const size_t pattern = tw::load<uint16_t>(input + 4) % (size - kHead + 1);
  const size_t width = tw::layout_of(frame).word_nbytes;
  const size_t length = (size - kHead - pattern) / tw::kBlockAlign * tw::kBlockAlign;
  if (length == 0 && frame.features == 0) return 0;  // the index allows that in relative frames alone

  std::vector<uint8_t> base(n * width), block(length + tw::kSlack);
  for (size_t i = 0; i < base.size() && pattern != 0; ++i) base[i] = input[kHead + i % pattern];
  if (length != 0) std::memcpy(block.data(), input + size - length, length);
  const std::vector<uint8_t> original = base;
  const tw::BlockSpec spec = tw::spec_of(frame, frame.features != 0 ? base.data() : nullptr);
  static const auto scratch = std::make_unique<tw::DecodeScratch>();

  std::vector<uint8_t> words(n * width), again(n * width);
  const tw::Fault fault = tw::decode_block(spec, block.data(), length, n, {words.data(), false, nullptr, 0}, &*scratch);
  tw::BlockFacts facts;
  const tw::Fault of_facts = tw::inspect_block(tw::spec_of(frame, nullptr), block.data(), length, n, &facts, &*scratch);
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
  std::memset(block.data() + length, 0xa5, tw::kSlack);
  const bool aligned = reinterpret_cast<uintptr_t>(again.data()) % 64 == 0;
  CHECK(
      !tw::decode_block(spec, block.data(), length, n, {again.data(), aligned, words.data(), words.size()}, &*scratch));
  CHECK(again == words && base == original);
  if (frame.features != 0) {
    CHECK(!tw::decode_block(spec, block.data(), length, n, {base.data(), false, nullptr, 0}, &*scratch));
    CHECK(base == words);
  }
  return 0;
}
