#include "frame/encode_parts.h"

#include <cstring>

namespace tw {

void Written::push(uint64_t value, size_t nbytes) {
  std::memcpy(descriptor + descriptor_nbytes, &value, nbytes);
  descriptor_nbytes += nbytes;
}

bool write_rests(const Block& block, const RestPlan& plan, const Rests& rests, const uint64_t* runs, Written* written) {
  written->descriptor_nbytes = plan.params_nbytes;
  if (!encode_rests(plan, rests, runs, block.dst, block.stored, &written->streams, written->descriptor,
                    &block.scratch->rest)) {
    return false;
  }
  block.scratch->rests_nbytes = written->streams;
  return true;
}

size_t finish(const Block& block, size_t streams, const uint8_t* descriptor, size_t descriptor_nbytes) {
  const size_t length = ceil_to(streams + descriptor_nbytes, kBlockAlign);
  if (length >= block.stored) return 0;
  std::memset(block.dst + streams, 0, length - streams - descriptor_nbytes);
  std::memcpy(block.dst + length - descriptor_nbytes, descriptor, descriptor_nbytes);
  return length;
}

size_t store_block(const Block& block) {
  const size_t nbytes = block.n * block.dtype().word_nbytes;
  std::memcpy(block.dst, block.words, nbytes);
  std::memset(block.dst + nbytes, 0, block.stored - nbytes);
  block.scratch->rests_nbytes = nbytes;
  return block.stored;
}

}  // namespace tw
