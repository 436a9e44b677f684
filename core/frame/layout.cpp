#include "frame/layout.h"

#include <cstring>

namespace tw {

bool valid_dtype_name(const char* name) {
  const size_t length = std::strlen(name);
  if (length < 1 || length > 16) return false;
  for (size_t i = 0; i < length; ++i) {
    const char c = name[i];
    if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return true;
}

int complete_frame(tw_frame* frame, tw_error* error) {
  const Dtype& dtype = find_dtype(frame->dtype);
  const bool known = &dtype != &kOpaque;
  if (frame->bits < 1 || frame->bits > 1024 || (known && frame->bits != dtype.bits)) {
    return fail(error, TW_CORRUPT, TW_NO_BLOCK, kAtBits, "expected %s bits per element for dtype %s, got %u",
                known ? "the dtype's" : "1 to 1024", frame->dtype, frame->bits);
  }
  unsigned __int128 bits = frame->bits;
  uint64_t numel = 1;
  bool overflow = false, empty = false;
  for (uint32_t d = 0; d < frame->ndim; ++d) {
    empty |= frame->shape[d] == 0;
    overflow |= __builtin_mul_overflow(numel, frame->shape[d], &numel);
  }
  if (empty) numel = 0, overflow = false;
  bits *= numel;
  if (overflow || bits > static_cast<unsigned __int128>(kMaxUncompressed) * 8) {
    return fail(error, TW_LIMIT_EXCEEDED, TW_NO_BLOCK, kAtShape, "the shape's size exceeds 2^62 bytes");
  }
  frame->uncompressed_nbytes = static_cast<uint64_t>((bits + 7) / 8);
  frame->word_nbytes = dtype.word_nbytes;
  frame->num_words = known ? numel : frame->uncompressed_nbytes;
  frame->num_blocks = ceil_div(frame->num_words, frame->block_words);
  frame->header_nbytes = ceil_to(index_offset(*frame) + 8 * frame->num_blocks, kFrameAlign);
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

BlockSpec spec_of(const tw_frame& frame) { return {&find_dtype(frame.dtype), static_cast<uint8_t>(frame.profile)}; }

void store_hash(const Hash128& hash, uint8_t* dst) {
  store(dst, hash.low);
  store(dst + 8, hash.high);
}

}  // namespace tw
