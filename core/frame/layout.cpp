#include "frame/layout.h"

#include <cstring>

namespace tw {

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

int check_bits(const tw_frame& frame, tw_error* error) {
  const NamedDtype* const dtype = find_dtype(frame.dtype);
  if (dtype == nullptr) {
    if (frame.bits >= 1 && frame.bits <= kMaxBits) return TW_OK;
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtBits, "expected 1 to %u bits per element, got %u", kMaxBits,
                frame.bits);
  }
  if (frame.bits == dtype->bits) return TW_OK;
  return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtBits, "expected %u bits per element for dtype %s, got %u", dtype->bits,
              dtype->name, frame.bits);
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
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtShape, "expected a shape of at most 2^62 bytes, got more");
  }
  const Dtype dtype = layout_of(*frame);
  frame->uncompressed_nbytes = static_cast<uint64_t>((bits + 7) / 8);
  frame->word_nbytes = dtype.word_nbytes;
  frame->num_words = frame->uncompressed_nbytes / dtype.word_nbytes;
  frame->num_blocks = ceil_div(frame->num_words, frame->block_words);
  return TW_OK;
}

uint64_t header_checksum(const uint8_t* header, uint64_t header_nbytes) {
  const uint8_t zeros[8] = {};
  Hasher hasher;
  hasher.update(header, kAtChecksum);
  hasher.update(zeros, sizeof zeros);
  hasher.update(header + kAtShape, header_nbytes - kAtShape);
  return hasher.finish().low;
}

Dtype layout_of(const tw_frame& frame) {
  const NamedDtype* const dtype = find_dtype(frame.dtype);
  return dtype == nullptr ? kOpaque : dtype->layout;
}

BlockSpec spec_of(const tw_frame& frame, const uint8_t* base) {
  return {layout_of(frame), static_cast<uint8_t>(frame.profile), is_relative(frame), base};
}

void store_hash(const Hash128& hash, uint8_t* dst) {
  store(dst, hash.low);
  store(dst + 8, hash.high);
}

}  // namespace tw
