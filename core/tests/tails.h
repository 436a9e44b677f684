// The ends of blocks, as a host fetches them from a device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/frames.h"

namespace tests {

// What tw_device_blocks says of a frame, given memory of exact sizes.
struct OnDevice {
  std::vector<uint64_t> offsets;
  std::vector<uint8_t> tails;
  std::vector<tw_device_row> rows;
  std::vector<tw_device_block> blocks;
  tw_error error{};
  int status = TW_OK;

  // A plain frame; `data` are its blocks.
  OnDevice(const tw_frame& frame, const uint8_t* header, const uint8_t* data)
      : offsets(frame.num_blocks + 1), rows(frame.num_blocks), blocks(frame.num_blocks) {
    tw_block_offsets(&frame, header, offsets.data());
    for (size_t block = 0; block < frame.num_blocks; ++block) {
      CHECK(offsets[block] + TW_TAIL_NBYTES <= offsets[block + 1]);
      const uint8_t* const end = data + (offsets[block + 1] - frame.header_nbytes);
      tails.insert(tails.end(), end - TW_TAIL_NBYTES, end);
    }
    tails.shrink_to_fit();
    describe(frame, header);
  }
  void describe(const tw_frame& frame, const uint8_t* header) {
    status = tw_device_blocks(&frame, header, tails.data(), tails.size(), rows.data(), blocks.data(), &error);
  }
};

}  // namespace tests
