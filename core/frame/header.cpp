#include "frame/header.h"

#include <algorithm>
#include <cstring>

#include "frame/block_words.h"

namespace tw {

bool all_zero(const uint8_t* src, size_t nbytes) {
  uint8_t any = 0;
  for (size_t i = 0; i < nbytes; ++i) any |= src[i];
  return any == 0;
}

bool valid_dtype_name(const char* name) {
  const size_t length = std::strlen(name);
  if (length < 1 || length > kMaxDtypeName) return false;
  for (size_t i = 0; i < length; ++i) {
    const char c = name[i];
    if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return true;
}

bool valid_block_words(uint32_t block_words) {
  return block_words != 0 && block_words % kMinBlockWords == 0 && block_words <= kMaxBlockWords;
}

Layout layout_of(const tw_frame& frame) {
  const tw_layout& layout = frame.layout;
  return {layout.word_nbytes, layout.exponent_bits, layout.rest_bits, static_cast<Split>(layout.split),
          layout.ordered != 0};
}

tw_layout numbers_of(const Layout& layout) {
  return {layout.word_nbytes, layout.exponent_bits, layout.rest_bits, static_cast<uint8_t>(layout.split),
          static_cast<uint8_t>(layout.ordered)};
}

int check_layout(const tw_frame& frame, tw_error* error) {
  const tw_layout& layout = frame.layout;
  const char* const rule = layout.ordered > 1 ? "ordered 0 or 1" : broken_rule(layout_of(frame));
  if (rule != nullptr) {
    const char* const splits[] = {"none", "float", "unsigned", "signed", "unknown"};
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtLayout,
                "expected a layout of %s, got %u bytes a word, %u exponent bits, %u rest bits, split %s, ordered %u",
                rule, layout.word_nbytes, layout.exponent_bits, layout.rest_bits,
                splits[std::min<int>(layout.split, 4)], layout.ordered);
  }
  const unsigned unit = layout.word_nbytes == 1 ? 1 : 8u * layout.word_nbytes;
  if (frame.bits >= 1 && frame.bits <= kMaxBits && frame.bits % unit == 0) return TW_OK;
  return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtBits,
              "expected 1 to %u bits per element, a multiple of %u for words of %u bytes, got %u", kMaxBits, unit,
              layout.word_nbytes, frame.bits);
}

int complete_frame(tw_frame* frame, tw_error* error) {
  using Wide = unsigned __int128;
  const Wide most = Wide{kMaxUncompressed} * 8;
  Wide bits = frame->bits;
  bool beyond = false;
  for (uint32_t d = 0; d < frame->ndim; ++d) {
    const uint64_t size = frame->shape[d];
    if (size == 0) {  // whatever the other sizes are
      bits = 0, beyond = false;
      break;
    }
    if (bits > most / size) beyond = true;
    if (!beyond) bits *= size;
  }
  if (beyond) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtShape, "expected a shape of at most 2^53 bytes, got more");
  }
  frame->uncompressed_nbytes = static_cast<uint64_t>((bits + 7) / 8);
  frame->num_words = frame->uncompressed_nbytes / frame->layout.word_nbytes;
  frame->num_blocks = ceil_div(frame->num_words, frame->block_words);
  return TW_OK;
}

uint64_t header_checksum(const uint8_t* header, const tw_frame& frame) {
  const uint8_t zeros[8] = {};
  Hasher hasher;
  hasher.update(header, kAtChecksum);
  hasher.update(zeros, sizeof zeros);
  hasher.update(header + kAtShape, index_offset(frame) - kAtShape);
  return hasher.finish().low;
}

uint64_t index_checksum(const uint8_t* header, const tw_frame& frame) {
  const uint64_t start = index_offset(frame);
  return hash128(header + start, frame.header_nbytes - start).low;
}

int check_extensions(const uint8_t* records, uint64_t nbytes, uint64_t position, tw_error* error) {
  const auto corrupt = [&](uint64_t at, const char* expected) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, position + at, "expected %s", expected);
  };
  constexpr uint32_t kEncoder = 1, kEncoderNbytes = 4;
  uint32_t before = 0;
  for (uint64_t at = 0; at < nbytes;) {
    const uint32_t tag = load<uint32_t>(records + at), length = load<uint32_t>(records + at + 4);
    if (tag == 0) return all_zero(records + at, nbytes - at) ? TW_OK : corrupt(at, "zeros behind the extensions");
    if (tag <= before) return corrupt(at, "tags of extensions that ascend");
    const uint64_t begin = at + 8, end = ceil_to(begin + length, 8);
    if (end > nbytes) return corrupt(at + 4, "an extension that ends before the blocks");
    if (tag == kEncoder && length != kEncoderNbytes) return corrupt(at + 4, "4 bytes in the extension encoder");
    if (!all_zero(records + begin + length, end - begin - length)) {
      return corrupt(begin + length, "zeros in the padding of an extension");
    }
    before = tag;
    at = end;
  }
  return TW_OK;
}

BlockSpec spec_of(const tw_frame& frame, const uint8_t* base) {
  return {layout_of(frame),   static_cast<uint8_t>(frame.profile),
          is_relative(frame), base,
          block_align(frame), part_words(frame),
          row_words(frame)};
}

void store_hash(const Hash128& hash, uint8_t* dst) {
  store(dst, hash.low);
  store(dst + 8, hash.high);
}

}  // namespace tw
