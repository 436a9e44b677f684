// Blocks as a device takes them, by their tails: against the facts that the core finds in whole blocks.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "frame/header.h"
#include "frame/open_block.h"
#include "include/tensorwire.h"
#include "tests/sources.h"
#include "tests/tails.h"
#include "transforms/planes.h"

namespace {

using tests::Bytes;
using tests::OnDevice;

constexpr uint8_t kInfoCascade2 = 1;

// The kind that the facts of a block lead to; for the host, if each run of the rest has zeros of its own.
uint8_t kind_of(const tw_block_info& info, bool per_run) {
  if (info.kind == tw::kStored) return TW_DEVICE_STORED;
  if (info.kind == tw::kConstant) return TW_DEVICE_CONSTANT;
  const bool cascade = info.kind == tw::kCascade || (info.kind == tw::kExtended && info.extended == kInfoCascade2);
  if ((!cascade && info.kind != tw::kEnec) || info.rest == tw::kBytes || per_run) return TW_DEVICE_HOST;
  return cascade ? TW_DEVICE_CASCADE : TW_DEVICE_ENEC;
}

// n_2 to n_6.
std::vector<uint32_t> counts_of(const tw_device_row& row) {
  std::vector<uint32_t> counts;
  for (unsigned i = 0; i < 5; ++i) counts.push_back(row.numbers[i / 2] >> (16 * (i % 2)) & 0xffff);
  return counts;
}

// What the numbers of a block say of its streams is what they take.
void check_cascade(const tw_device_row& row, const tw_device_block& block, const tw_block_info& info) {
  const std::vector<uint32_t> counts = counts_of(row);
  uint32_t coding = block.coding, count = row.num_words, later_runs = 0, tiers = 0;
  uint64_t nbytes = 0;
  for (; coding != 8; coding >>= 4, count = counts[tiers++]) {
    CHECK((coding & 15) >= 1 && (coding & 15) <= 4);
    nbytes += tw::field_nbytes(count, coding & 15);
    if (tiers != 0) later_runs += (count + 255) / 256;
  }
  CHECK(info.kind_nbytes == nbytes + tw::field_nbytes(count, 8));
  CHECK(block.later_runs == later_runs);
  CHECK(block.listed == (block.coding == 0x84 ? counts[0] : 0));
  CHECK(row.parameters >> 24 == 0);
}

void check_enec(const tw_device_row& row, const tw_device_block& block, const tw_block_info& info) {
  const unsigned m = block.coding & 15, nb = block.coding >> 4 & 15, quads_log2 = block.coding >> 8;
  CHECK(quads_log2 + 2 == info.variant && m >= 1 && m < nb && row.parameters < 256);
  const uint64_t groups = tw::ceil_div(row.num_words, uint64_t{4} << quads_log2);
  CHECK(info.kind_nbytes ==
        tw::field_nbytes(row.num_words, m) + tw::field_nbytes(groups, 1) + tw::field_nbytes(row.numbers[0], nb - m));
  CHECK(block.later_runs == (row.numbers[0] + 255) / 256 && block.listed == 0);
}

std::set<int> seen;

void check_block(const tw_frame& frame, const uint8_t* tail, const tw_block_info& info, uint64_t ordinal,
                 const tw_device_row& row, const tw_device_block& block) {
  // With trimmed rests the two bytes before the kind's parameters are the numbers of bits to trim.
  const size_t of_kind =
      tw::kTagNbytes + tw::kind_params_nbytes(info.kind, info.extended, info.variant, tw::layout_of(frame));
  const bool trimmed = info.kind != tw::kStored && info.rest == tw::kTrimmed;
  const uint8_t lead = trimmed ? tail[TW_TAIL_NBYTES - of_kind - 2] : 0;
  const uint8_t trail = trimmed ? tail[TW_TAIL_NBYTES - of_kind - 1] : 0;
  CHECK(uint64_t{row.place} * 32 == info.offset && row.ordinal == ordinal && row.num_words == info.num_words);
  CHECK(row.later == 0);
  CHECK(block.kind == kind_of(info, trail == tw::kTrailPerRun));
  seen.insert(block.kind);
  if (block.kind == TW_DEVICE_CASCADE || block.kind == TW_DEVICE_ENEC) {
    CHECK(block.rest_bits == frame.layout.rest_bits - lead - trail && block.trail == trail);
    CHECK(block.whole == (row.num_words % 256 == 0));
    CHECK(info.rest_nbytes == tw::field_nbytes(row.num_words, block.rest_bits));
    (block.kind == TW_DEVICE_CASCADE ? check_cascade : check_enec)(row, block, info);
    return;
  }
  CHECK(block.rest_bits == 0 && block.trail == 0 && block.whole == 0 && block.coding == 0);
  CHECK(block.later_runs == 0 && block.listed == 0 && row.numbers[1] == 0 && row.numbers[2] == 0);
  const uint32_t words[2] = {row.parameters, row.numbers[0]};
  const size_t width = frame.layout.word_nbytes;
  for (size_t i = 0; i < sizeof words; ++i) {
    const uint8_t expected = block.kind == TW_DEVICE_CONSTANT ? tail[TW_TAIL_NBYTES - 1 - width + i % width] : 0;
    CHECK(reinterpret_cast<const uint8_t*>(words)[i] == expected);
  }
}

void test_every_source() {
  for (const tests::Source& source : tests::make_sources()) {
    const Bytes& bytes = source.frame;
    const tw_frame frame = tests::frame_of(bytes);
    tw_error error;
    if (frame.features != 0) {
      const Bytes tails(TW_TAIL_NBYTES * frame.num_blocks);
      CHECK(tw_device_blocks(&frame, bytes.data(), tails.data(), tails.size(), nullptr, nullptr, &error) ==
            TW_INVALID_ARGUMENT);
      continue;
    }
    const Bytes header(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(frame.header_nbytes));
    const uint8_t* const data = bytes.data() + frame.header_nbytes;
    const OnDevice found(frame, header.data(), data);
    CHECK(found.status == TW_OK);
    CHECK(found.offsets.back() == frame.header_nbytes + frame.data_nbytes);
    const std::vector<tw_block_info> infos = tests::infos_of(frame, bytes);
    for (size_t i = 0; i < infos.size(); ++i) {
      CHECK(found.offsets[i] == infos[i].offset);
      check_block(frame, &found.tails[i * TW_TAIL_NBYTES], infos[i], i, found.rows[i], found.blocks[i]);
    }
    for (const uint64_t size : {found.tails.size() + TW_TAIL_NBYTES, found.tails.size() + 1}) {
      CHECK(tw_device_blocks(&frame, header.data(), found.tails.data(), size, nullptr, nullptr, &error) ==
            TW_INVALID_ARGUMENT);
    }
  }
  CHECK(seen ==
        std::set<int>({TW_DEVICE_STORED, TW_DEVICE_HOST, TW_DEVICE_CONSTANT, TW_DEVICE_CASCADE, TW_DEVICE_ENEC}));
}

// Five blocks of BF16 in tier shape (4), two of them damaged alike: the first one is named.
void test_the_first_wrong_block() {
  constexpr uint64_t kNumWords = 5 * 512;
  Bytes content;
  for (uint64_t i = 0; i < kNumWords; ++i) {
    content.push_back(static_cast<uint8_t>(i * 37));
    content.push_back(static_cast<uint8_t>(0x3f - i % 5));
  }
  tw_frame frame = tests::new_frame("BF16", 0, {kNumWords}, TW_RESIDENT, tests::BlockWords(512));
  const Bytes bytes = tests::compress(&frame, content);
  const OnDevice right(frame, bytes.data(), bytes.data() + frame.header_nbytes);
  CHECK(right.status == TW_OK && right.blocks[2].coding == 0x84);
  struct Damage {
    size_t back;  // from the end of a block
    uint8_t byte;
    int status;
    const char* message;
  };
  // Tag, extended kind, then from n_6 back to lo.
  const Damage all[] = {
      {1, 0xe7, TW_CORRUPT, "expected a variant of cascade that has tiers"},
      {1, 0x0f, TW_CORRUPT, "expected a kind, rest and variant that the profile and the dtype allow"},
      {1, 0x00, TW_UNSUPPORTED_VERSION, "expected a kind and rest that this version knows"},
      {1, 0x01, TW_CORRUPT, "expected less padding than a block is aligned to"},
      {2, 0x07, TW_UNSUPPORTED_VERSION, "expected a kind and rest that this version knows"},
      {3, 0x01, TW_CORRUPT, "expected count 0 for a tier that the variant lacks"},
      {11, 0x02, TW_CORRUPT, "expected streams that end within the block"},
      {11, 0x03, TW_CORRUPT, "expected tiers no larger than the one before"},
      {13, 0x01, TW_CORRUPT, "expected a_k of at most the digits of its tier"},
      {15, 0xf9, TW_CORRUPT, "expected tiers that name exponents of the dtype alone"},
  };
  for (const Damage& damage : all) {
    OnDevice found = right;
    for (const size_t block : {2, 3}) found.tails[TW_TAIL_NBYTES * (block + 1) - damage.back] = damage.byte;
    found.describe(frame, bytes.data());
    CHECK(found.status == damage.status && found.error.block == 2 && found.error.byte == right.offsets[2]);
    CHECK(std::strncmp(found.error.message, damage.message, std::strlen(damage.message)) == 0);
  }
}

// Blocks that begin 128 GiB behind the start of a frame and further have no place of 32 bits. There are no such bytes:
// the header and the tails suffice.
void test_places_beyond_32_bits() {
  constexpr uint64_t kBlockNbytes = 8 * uint64_t{tw::kMaxBlockWords}, kBlocks = (uint64_t{1} << 37) / kBlockNbytes + 2;
  tw_error error;
  tw_form form = {};
  form.block_words = tw::kMaxBlockWords;
  form.block_alignment = tw::kMaxBlockAlignment;
  tw_frame frame = tests::new_frame("F64", 0, {kBlocks * tw::kMaxBlockWords}, TW_FAST, &form);
  CHECK(frame.num_blocks == kBlocks);
  Bytes index, tails(TW_TAIL_NBYTES * kBlocks), header(frame.header_nbytes);
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const uint32_t place = static_cast<uint32_t>(block * kBlockNbytes >> form.block_alignment);
    const uint32_t entry[2] = {place | tw::kStoredBit, 0};
    index.insert(index.end(), reinterpret_cast<const uint8_t*>(entry), reinterpret_cast<const uint8_t*>(entry + 2));
  }
  const Bytes leaves(kBlocks * kBlockNbytes / TW_LEAF_NBYTES * 16);
  CHECK(tw_encode_header(&frame, kBlocks * kBlockNbytes, index.data(), leaves.data(), nullptr, header.data(), &error) ==
        TW_OK);
  CHECK(tw_decode_header(header.data(), header.size(), &frame, &error) == TW_OK);
  std::vector<tw_device_row> rows(kBlocks);
  std::vector<tw_device_block> blocks(kBlocks);
  CHECK(tw_device_blocks(&frame, header.data(), tails.data(), tails.size(), rows.data(), blocks.data(), &error) ==
        TW_OK);
  const auto is_near = [](const tw_device_block& block) { return block.kind == TW_DEVICE_STORED; };
  const auto near = std::count_if(blocks.begin(), blocks.end(), is_near);
  CHECK(near == kBlocks - 2 && blocks[kBlocks - 3].kind == TW_DEVICE_STORED);
  CHECK(blocks[kBlocks - 2].kind == TW_DEVICE_HOST && blocks[kBlocks - 1].kind == TW_DEVICE_HOST);
  CHECK(uint64_t{rows[kBlocks - 3].place} * 32 == frame.header_nbytes + (kBlocks - 3) * kBlockNbytes);
}

}  // namespace

int main() {
  test_every_source();
  test_the_first_wrong_block();
  test_places_beyond_32_bits();
}
