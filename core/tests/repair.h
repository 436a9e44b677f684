// Makes the checksums of a damaged frame right, by what its fields say now: so damage reaches what stands behind them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/hash.h"
#include "frame/header.h"

namespace tests {

// The checksums of the blocks that lie in the frame.
inline void repair_blocks(uint8_t* frame, size_t nbytes, uint64_t index, uint64_t header_nbytes) {
  const uint64_t block_nbytes = uint64_t{tw::load<uint32_t>(frame + tw::kAtBlockWords)} * frame[tw::kAtLayout];
  const unsigned alignment = frame[tw::kAtBlockAlignment];
  if (block_nbytes == 0 || alignment > tw::kMaxBlockAlignment) return;
  const uint64_t data_nbytes = tw::load<uint64_t>(frame + tw::kAtData);
  const uint64_t num_blocks = tw::ceil_div(tw::load<uint64_t>(frame + tw::kAtUncompressed), block_nbytes);
  const auto start_of = [&](uint64_t block) {
    const uint32_t place = tw::load<uint32_t>(frame + index + sizeof(tw::IndexEntry) * block);
    return uint64_t{place & ~tw::kStoredBit} << alignment;
  };
  const uint64_t present = (header_nbytes - index) / sizeof(tw::IndexEntry);
  for (uint64_t block = 0; block < num_blocks && block < present; ++block) {
    const bool last = block + 1 == num_blocks;
    if (!last && block + 1 == present) return;
    const uint64_t start = start_of(block), stop = last ? data_nbytes : start_of(block + 1);
    if (start > stop || stop > nbytes - header_nbytes) continue;
    const uint64_t hash = start == stop ? 0 : tw::hash128(frame + header_nbytes + start, stop - start).low;
    tw::store(frame + index + sizeof(tw::IndexEntry) * block + sizeof(uint32_t), static_cast<uint32_t>(hash));
  }
}

// What has no place for a checksum stays as it is.
inline void repair(std::vector<uint8_t>* bytes) {
  uint8_t* const frame = bytes->data();
  const size_t nbytes = bytes->size();
  if (nbytes < tw::kAtShape || nbytes < tw::kAtShape + 8ull * frame[tw::kAtNdim]) return;
  const uint64_t index = tw::kAtShape + 8ull * frame[tw::kAtNdim];
  const uint64_t header_nbytes = tw::load<uint64_t>(frame + tw::kAtHeader);
  if (header_nbytes >= index && header_nbytes <= nbytes) {
    const bool relative = (tw::load<uint32_t>(frame + tw::kAtFeatures) & TW_BASE_RELATIVE) != 0;
    const bool has_index = !relative || tw::load<uint64_t>(frame + tw::kAtData) != 0;
    if (has_index) repair_blocks(frame, nbytes, index, header_nbytes);
    tw::store(frame + tw::kAtIndexChecksum, tw::hash128(frame + index, header_nbytes - index).low);
  }
  tw::store(frame + tw::kAtChecksum, uint64_t{0});
  tw::store(frame + tw::kAtChecksum, tw::hash128(frame, index).low);
}

}  // namespace tests
