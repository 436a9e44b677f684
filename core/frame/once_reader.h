// What an encoder reads of memory that others may write to meanwhile: each byte once. It hashes and codes the copy, so
// that a frame holds what its content hash says, whatever the memory did.
#pragma once
#include <cstdint>

#include "frame/content_hash.h"
#include "include/tensorwire.h"

namespace tw {

// Reads the content of a tile. A thread has one for the content and one for the base.
class OnceReader {
 public:
  // The tile begins at byte `position` of the content. `joined` has hashed all bytes before it and goes on; nullptr
  // where a tile before is not done yet: then the tile's bytes up to the first leaf that begins in it are kept.
  void start(const LeafHasher& fresh, uint64_t position, LeafHasher* joined);
  // Copies the next bytes to dst and hashes the copy.
  void read(const uint8_t* src, uint64_t nbytes, uint8_t* dst);
  // Once the tiles before are done: `all` has hashed what they have, and then also what this one has.
  void finish(LeafHasher* all);

 private:
  LeafHasher own_;
  LeafHasher* hasher_ = nullptr;
  uint64_t num_kept_ = 0, to_keep_ = 0, num_hashed_ = 0;
  uint8_t kept_[TW_LEAF_NBYTES];
};

// The bytes of a block on their way to where they are coded. By default they are there.
struct Arrival {
  OnceReader* reader = nullptr;
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;
  uint64_t nbytes = 0, arrived = 0;

  // Bytes up to `end` are there afterwards, and a few more: what comes at once is still in the first-level cache when
  // it is coded.
  void reach(uint64_t end);
  void all() { reach(nbytes); }
};

}  // namespace tw
