// Calls of the C ABI that must succeed, as most tests make them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "include/tensorwire.h"
#include "tests/check.h"

namespace tests {

using Bytes = std::vector<uint8_t>;

// The form of a frame, as an argument of tw_frame_init().
class BlockWords {
 public:
  explicit BlockWords(uint32_t block_words) { form_.block_words = block_words; }
  operator const tw_form*() const { return &form_; }

 private:
  tw_form form_ = {};
};

inline tw_frame new_frame(const char* dtype, uint32_t bits, const std::vector<uint64_t>& shape, uint32_t profile,
                          const tw_form* form, const uint8_t* base_hash = nullptr) {
  tw_frame frame;
  tw_error error;
  CHECK(tw_frame_init(&frame, dtype, bits, shape.data(), static_cast<uint32_t>(shape.size()), profile, form, base_hash,
                      &error) == TW_OK);
  return frame;
}

// Completes the frame.
inline Bytes compress(tw_frame* frame, const Bytes& content, const uint8_t* base = nullptr, uint32_t threads = 1) {
  tw_error error;
  Bytes bytes(tw_frame_bound(frame));
  CHECK(tw_compress(frame, content.data(), content.size(), base, bytes.data(), bytes.size(), threads, 0, &error) ==
        TW_OK);
  bytes.resize(frame->frame_nbytes);
  return bytes;
}

inline tw_frame frame_of(const Bytes& bytes) {
  tw_frame frame;
  tw_error error;
  CHECK(tw_decode_header(bytes.data(), bytes.size(), &frame, &error) == TW_OK);
  return frame;
}

inline std::vector<tw_block_info> infos_of(const tw_frame& frame, const Bytes& bytes) {
  tw_error error;
  std::vector<tw_block_info> infos(frame.num_blocks);
  CHECK(tw_block_infos(&frame, bytes.data(), bytes.data() + frame.header_nbytes, 0, frame.data_nbytes, 0, infos.size(),
                       infos.data(), &error) == TW_OK);
  return infos;
}

inline Bytes hash_of(const Bytes& content) {
  Bytes leaves(16 * (content.size() / TW_LEAF_NBYTES + 1)), hash(16);
  tw_hash_leaves(content.data(), content.size(), leaves.data(), 1);
  tw_hash_root(content.size(), leaves.data(), hash.data());
  return hash;
}

// A call failed: with one of these statuses, and words for a person.
inline void check_refusal(int status, const tw_error& error) {
  CHECK(status == TW_CORRUPT || status == TW_TRUNCATED || status == TW_UNSUPPORTED_VERSION ||
        status == TW_LIMIT_EXCEEDED);
  CHECK(error.message[0] != '\0' && std::memchr(error.message, '\0', sizeof error.message) != nullptr);
}

// Header and blocks of a frame in memory of their exact sizes, so that a sanitizer sees a step past them.
struct Opened {
  tw_frame frame;
  tw_error error;
  int status;
  Bytes header, data;

  explicit Opened(const Bytes& bytes) : status(tw_decode_header(bytes.data(), bytes.size(), &frame, &error)) {
    if (status != TW_OK) return;
    const auto blocks = bytes.begin() + static_cast<ptrdiff_t>(frame.header_nbytes);
    header.assign(bytes.begin(), blocks);
    data.assign(blocks, bytes.end());
  }
};

}  // namespace tests
