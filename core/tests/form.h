// The form of a frame, as an argument of tw_frame_init().
#pragma once
#include "include/tensorwire.h"

namespace tests {

class BlockWords {
 public:
  explicit BlockWords(uint32_t block_words) { form_.block_words = block_words; }
  operator const tw_form*() const { return &form_; }

 private:
  tw_form form_ = {};
};

}  // namespace tests
