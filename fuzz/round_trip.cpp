// Encode arbitrary content and decode it again. The first four bytes of an input choose dtype or layout (layout.h),
// profile with the alignment of blocks (and how the base is made, if there is one), block size and how often the rest
// is repeated (so that a short input makes a tensor of several blocks that are worth coding).
#include <cstdint>
#include <vector>

#include "check.h"
#include "layout.h"
#include "tests/frames.h"

namespace {

struct Choice {
  const char* dtype;
  uint32_t bits;
};
// All forms of the format's table, then dtypes outside it: whole and part bytes.
constexpr Choice kChoices[] = {{"BF16", 16}, {"F16", 16}, {"F32", 32}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F64", 64},
                               {"I64", 64},  {"I32", 32}, {"U16", 16}, {"BOOL", 8},    {"F4", 4},      {"C128", 128}};
constexpr size_t kMaxContent = 32u << 10;

// Another tensor, by the highest bits but one of input[1]: noise, or the content with steps at places that the input
// chooses.
std::vector<uint8_t> base_of(std::vector<uint8_t> content, const uint8_t* input, size_t size) {
  const uint8_t* const rest = input + 4;
  const size_t nbytes = size - 4;
  if (nbytes == 0) return content;
  if ((input[1] & 64) != 0) {
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<uint8_t>(rest[i % nbytes] * (i | 1) >> 3);
    return content;
  }
  const size_t dense = (input[1] & 32) != 0 ? 1 : 16;
  size_t at = 0;
  for (size_t i = 0; at < content.size(); i += 2) {
    content[at] = static_cast<uint8_t>(content[at] + rest[i % nbytes] % 8 - 3);
    at += 1 + rest[(i + 1) % nbytes] * dense;
  }
  return content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size < 4) return 0;
  tw_form form = {};
  Choice choice = kChoices[input[0] % (sizeof kChoices / sizeof kChoices[0])];
  if (input[0] >= 128) {
    form.layout = layout_of(input[0], input[3] % 2 != 0);
    choice = {"ODD_1", 8u * form.layout.word_nbytes};
  }
  const uint32_t profile = input[1] % 4;
  const bool relative = input[1] >= 128 && profile != TW_RESIDENT;
  form.block_alignment = 5 + (input[1] >> 2 & 7);
  form.block_words = input[2] * 256u;  // 0 is the library's choice
  const size_t repeats = 1 + input[3];
  std::vector<uint8_t> content;
  for (size_t i = 0; i < repeats && content.size() + (size - 4) <= kMaxContent; ++i) {
    content.insert(content.end(), input + 4, input + size);
  }
  const uint64_t numel = 8 * content.size() / choice.bits;
  content.resize((numel * choice.bits + 7) / 8);
  const std::vector<uint8_t> original = content;
  std::vector<uint8_t> base_bytes = base_of(content, input, size);
  std::vector<uint8_t> leaves(16 * ((content.size() + TW_LEAF_NBYTES - 1) / TW_LEAF_NBYTES));
  const uint8_t empty = 0;
  const uint8_t* const base = !relative ? nullptr : base_bytes.empty() ? &empty : base_bytes.data();

  tw_error error;
  const std::vector<uint8_t> base_hash = tests::hash_of(base_bytes);
  tw_frame frame =
      tests::new_frame(choice.dtype, choice.bits, {numel}, profile, &form, relative ? base_hash.data() : nullptr);
  std::vector<uint8_t> index(8 * frame.num_blocks);
  std::vector<uint8_t> blocks(tw_data_bound(&frame, content.size()));
  tw_frame in_chunks = frame;
  const std::vector<uint8_t> bytes = tests::compress(&frame, content, base, 2);
  CHECK(content == original);
  CHECK(frame.header_nbytes <= in_chunks.header_nbytes);
  const uint64_t header_nbytes = frame.header_nbytes;

  // Header and blocks encoded apart are the same bytes.
  uint64_t written = 0;
  tw_leaves of_content = {leaves.data(), {}};
  CHECK(tw_encode_blocks(&in_chunks, 0, content.data(), content.size(), base, 0, blocks.data(), blocks.size(), &written,
                         index.data(), &of_content, nullptr, 1, &error) == TW_OK);
  CHECK(written == frame.data_nbytes);
  CHECK(same(blocks.data(), bytes.data() + header_nbytes, written));
  std::vector<uint8_t> header(in_chunks.header_nbytes);
  CHECK(tw_encode_header(&in_chunks, written, index.data(), leaves.data(), nullptr, header.data(), &error) == TW_OK);
  CHECK(in_chunks.header_nbytes == header_nbytes);
  CHECK(same(header.data(), bytes.data(), header_nbytes));

  const tw_frame read = tests::frame_of(bytes);
  CHECK(read.frame_nbytes == bytes.size() && read.uncompressed_nbytes == content.size());
  std::vector<uint8_t> decoded(content.size());
  CHECK(tw_decode(&read, bytes.data(), bytes.data() + header_nbytes, 0, bytes.size() - header_nbytes, base, 0,
                  base_bytes.size(), 0, content.size(), decoded.data(), 1, nullptr, TW_VERIFY, nullptr,
                  &error) == TW_OK);
  CHECK(decoded == content);
  if (!relative) return 0;
  CHECK(tw_decode(&read, bytes.data(), bytes.data() + header_nbytes, 0, bytes.size() - header_nbytes, base, 0,
                  base_bytes.size(), 0, content.size(), base_bytes.data(), 2, nullptr, TW_VERIFY, nullptr,
                  &error) == TW_OK);
  CHECK(base_bytes == content);
  return 0;
}
