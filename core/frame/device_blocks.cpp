// The blocks of a frame as kernels of a device take them, by their last bytes.
#include "frame/blocks.h"
#include "transforms/planes.h"

namespace tw {
namespace {

constexpr size_t kTailNbytes = TW_TAIL_NBYTES;
static_assert(kTailNbytes == kBlockAlign);
// The longest descriptor: extended kind cascade, the rest in slices.
static_assert(extended_params_nbytes(kExtendedCascade, 0) + kExtendedNbytes + kTagNbytes + kMaxWordNbytes <=
              kTailNbytes);
constexpr uint32_t kListed = 0x84;  // the coding of tier shape (4)

uint32_t num_runs(size_t count) { return static_cast<uint32_t>(ceil_div(count, kRun)); }

void describe_constant(const uint8_t* word, size_t nbytes, tw_device_row* row, tw_device_block* block) {
  uint8_t words[2 * sizeof(uint32_t)];
  for (size_t i = 0; i < sizeof words; ++i) words[i] = word[i % nbytes];
  block->kind = TW_DEVICE_CONSTANT;
  row->parameters = load<uint32_t>(words);
  row->numbers[0] = load<uint32_t>(words + sizeof(uint32_t));
}

// These two return what is wrong; *nbytes is what the streams of the exponents take.
const char* describe_enec(const Descriptor& descriptor, const Layout& dtype, tw_device_row* row, tw_device_block* block,
                          size_t* nbytes) {
  EnecParams params;
  uint32_t num_high = 0;
  const char* const wrong = read_enec(descriptor, dtype, row->num_words, &params, &num_high);
  if (wrong != nullptr) return wrong;
  *nbytes = enec_stream_nbytes(row->num_words, params, num_high);
  row->parameters = params.b;
  row->numbers[0] = num_high;
  block->kind = TW_DEVICE_ENEC;
  block->coding = params.m | uint32_t{params.nb} << 4 | uint32_t(params.log2_group - 2) << 8;
  block->later_runs = num_runs(num_high);
  return nullptr;
}

const char* describe_cascade(const Descriptor& descriptor, const Layout& dtype, tw_device_row* row,
                             tw_device_block* block, size_t* nbytes) {
  CascadeParams params;
  const char* const wrong = read_cascade(descriptor, dtype, row->num_words, &params);
  if (wrong != nullptr) return wrong;
  *nbytes = cascade_nbytes(params);
  row->parameters = params.lo;
  for (unsigned k = 1; k < kMaxTiers; ++k) row->parameters |= uint32_t{params.below[k]} << (4 * k + 4);
  for (unsigned k = 1; k <= kMaxTiers; ++k) row->numbers[(k - 1) / 2] |= params.counts[k] << (k % 2 == 0 ? 16 : 0);
  block->kind = TW_DEVICE_CASCADE;
  unsigned tiers = 0;
  for (; tiers < kMaxTiers && kTierWidths[params.shape][tiers] != 0; ++tiers) {
    block->coding |= uint32_t{kTierWidths[params.shape][tiers]} << 4 * tiers;
    if (tiers != 0) block->later_runs += num_runs(params.counts[tiers]);
  }
  block->coding |= 8u << 4 * tiers;
  if (block->coding == kListed) block->listed = params.counts[1];
  return nullptr;
}

// A block of `length` bytes that is not stored. Leaves to the host what has no kind of its own.
Fault describe_coded(const BlockSpec& spec, const uint8_t* tail, size_t length, tw_device_row* row,
                     tw_device_block* block) {
  Descriptor descriptor;
  const Fault fault = read_descriptor(spec, tail + kTailNbytes, length, &descriptor);
  if (fault) return fault;
  const Tag& tag = descriptor.tag;
  if (tag.kind == kConstant) {
    describe_constant(descriptor.params, spec.dtype.word_nbytes, row, block);
    return check_streams(descriptor, spec, 0);
  }
  const bool cascade = tag.kind == kCascade || descriptor.extended == kExtendedCascade;
  if ((tag.kind != kEnec && !cascade) || tag.rest == kBytes) return {};
  RestField rest;
  const char* wrong = rest.read(tag.rest, descriptor.rest_layout, descriptor.rest_params);
  if (wrong != nullptr || rest.per_run) return wrong;
  size_t nbytes = 0;
  wrong = (cascade ? describe_cascade : describe_enec)(descriptor, spec.dtype, row, block, &nbytes);
  if (wrong != nullptr) return wrong;
  block->rest_bits = static_cast<uint8_t>(rest.width);
  block->trail = static_cast<uint8_t>(rest.trail);
  block->whole = row->num_words % kRun == 0;
  return check_streams(descriptor, spec, field_nbytes(row->num_words, rest.width) + nbytes);
}

}  // namespace
}  // namespace tw

using namespace tw;

void tw_block_offsets(const tw_frame* frame, const void* header, uint64_t* offsets) {
  const Index index(*frame, header);
  for (uint64_t block = 0; block <= frame->num_blocks; ++block) {
    offsets[block] = frame->header_nbytes + index.start(block);
  }
}

int tw_device_blocks(const tw_frame* frame, const void* header, const void* tails, uint64_t tails_nbytes,
                     tw_device_row* rows, tw_device_block* blocks, tw_error* error) {
  if (is_relative(*frame) || tails_nbytes / kTailNbytes != frame->num_blocks || tails_nbytes % kTailNbytes != 0) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected a plain frame and the last %zu bytes of each of its %llu blocks, got %llu bytes", kTailNbytes,
                as_ull(frame->num_blocks), as_ull(tails_nbytes));
  }
  const Index index(*frame, header);
  const Data none = {nullptr, 0, 0};
  const Blocks places = {*frame, index, none, {false}};
  const BlockSpec spec = spec_of(*frame, nullptr);
  const uint8_t* tail = static_cast<const uint8_t*>(tails);
  for (uint64_t block = 0; block < frame->num_blocks; ++block, tail += kTailNbytes) {
    const uint64_t start = places.start_of(block), place = (frame->header_nbytes + start) / kTailNbytes;
    const uint64_t num_words = num_block_words(*frame, block);
    rows[block] = {
        static_cast<uint32_t>(place), static_cast<uint32_t>(block), static_cast<uint32_t>(num_words), 0, {}, 0};
    blocks[block] = {TW_DEVICE_HOST, 0, 0, 0, 0, 0, 0};
    if (place > UINT32_MAX) continue;
    if (index.stored(block)) {
      blocks[block].kind = TW_DEVICE_STORED;
      continue;
    }
    const Fault fault = describe_coded(spec, tail, places.end_of(block) - start, rows + block, blocks + block);
    if (fault) return places.report(fault, block, error);
  }
  return TW_OK;
}
