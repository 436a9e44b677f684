// What everybody shares who reads the blocks of a frame: where their bytes are, whether they are sound, and which
// failure is reported.
#pragma once
#include <cstring>
#include <mutex>

#include "frame/decode_block.h"
#include "frame/header.h"
#include "frame/open_block.h"

namespace tw {

// Bytes [offset, offset + nbytes) of something longer, which a caller has.
struct Data {
  const uint8_t* bytes;
  uint64_t offset, nbytes;

  const uint8_t* at(uint64_t position) const { return bytes + (position - offset); }
  bool covers(uint64_t start, uint64_t stop) const { return start >= offset && stop <= offset + nbytes; }
};

// Which checksums are compared: none, all, or, with a bit for each block, those of blocks that were not checked before.
// The bits may be other threads' too.
struct Checks {
  bool any;
  uint8_t* checked = nullptr;

  bool needed(uint64_t block) const {
    return any && (checked == nullptr || (__atomic_load_n(checked + block / 8, __ATOMIC_RELAXED) & bit(block)) == 0);
  }
  void note(uint64_t block) const {
    if (checked != nullptr) __atomic_fetch_or(checked + block / 8, bit(block), __ATOMIC_RELAXED);
  }

 private:
  static uint8_t bit(uint64_t block) { return static_cast<uint8_t>(1u << block % 8); }
};

// The blocks of a frame. The ones that are asked for lie in the data.
struct Blocks {
  const tw_frame& frame;
  const Index& index;
  const Data& data;
  Checks checks;

  uint64_t start_of(uint64_t block) const { return index.start(block); }
  uint64_t end_of(uint64_t block) const { return index.start(block + 1); }

  // The block with kSlack readable behind its bytes: where the data end, a copy of them.
  BlockBytes bytes(uint64_t block, uint8_t* copy) const {
    const uint64_t nbytes = end_of(block) - start_of(block);
    const bool copied = end_of(block) + kSlack > data.offset + data.nbytes;
    if (copied && nbytes != 0) std::memcpy(copy, data.at(start_of(block)), nbytes);
    return {copied ? copy : data.at(start_of(block)), nbytes, num_block_words(frame, block), index.stored(block)};
  }

  // Compares the block's checksum, if that is to be.
  int check(uint64_t block, tw_error* error) const {
    const uint64_t nbytes = end_of(block) - start_of(block);
    if (nbytes == 0 || !checks.needed(block)) return TW_OK;  // a block that is same has no bytes
    const uint32_t checksum = static_cast<uint32_t>(hash128(data.at(start_of(block)), nbytes).low);
    if (checksum == index.entry(block).checksum) return checks.note(block), TW_OK;
    return fail(error, TW_CORRUPT, block, position(block), "expected checksum %08x of the block, got %08x",
                index.entry(block).checksum, checksum);
  }

  // A fault of the block as the status of a call.
  int report(const Fault& fault, uint64_t block, tw_error* error) const {
    return fail(error, static_cast<tw_status>(fault.status), block, position(block), "%s", fault.message);
  }

 private:
  uint64_t position(uint64_t block) const { return frame.header_nbytes + start_of(block); }
};

// The first failure by block among those that several threads meet.
class FirstFailure {
 public:
  void note(int status, const tw_error& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_ == TW_OK || error.block < error_.block) status_ = status, error_ = error;
  }
  int report(tw_error* error) const {
    if (status_ != TW_OK && error != nullptr) *error = error_;
    return status_;
  }

 private:
  std::mutex mutex_;
  int status_ = TW_OK;
  tw_error error_{};
};

}  // namespace tw
