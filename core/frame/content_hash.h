// The content hash of docs/format.md: leaves of 128 KiB under one root.
#pragma once
#include <cstdint>

#include "common/hash.h"

namespace tw {

void hash_leaves(const uint8_t* src, uint64_t nbytes, uint8_t* leaves);
Hash128 hash_root(uint64_t nbytes, const uint8_t* leaves);

// The leaves that end among bytes (start, stop] of content of `total` bytes, or at its end. `src` points to byte `at`
// of the content; leaves that begin before that are read from there.
void hash_leaves_ending(const uint8_t* src, uint64_t at, uint64_t total, uint64_t start, uint64_t stop,
                        uint8_t* leaves);

// The same leaf by leaf, each before the first block that needs some of it: a block's bytes come into the cache on the
// way.
class LeavesAhead {
 public:
  // Hashes bytes [start, end) of the content.
  LeavesAhead(const uint8_t* src, uint64_t at, uint64_t total, uint64_t start, uint64_t end, uint8_t* leaves)
      : src_(src), at_(at), total_(total), hashed_(start), end_(end), leaves_(leaves) {}
  // Hash up to the end of the leaf in which a block ends, that ends at `stop`.
  void reach(uint64_t stop);

 private:
  const uint8_t* src_;
  uint64_t at_, total_, hashed_, end_;
  uint8_t* leaves_;
};

// Hashes leaves whose content comes piece by piece, while it is in the cache.
class LeafHasher {
 public:
  // Hashes content of `total` bytes. leaves may be nullptr: then nothing is hashed.
  explicit LeafHasher(uint64_t total = 0, uint8_t* leaves = nullptr) : total_(total), leaves_(leaves) {}
  // The next piece begins at `position`. Unless the last one ended there, no leaf is hashed that began before.
  void start(uint64_t position);
  void update(const uint8_t* data, uint64_t nbytes);
  // update() of a copy, which is made on the way: each byte of data is read once.
  void copy(const uint8_t* data, uint64_t nbytes, uint8_t* copy);
  // Where the leaves to come go.
  void store_to(uint8_t* leaves) { leaves_ = leaves; }
  uint64_t position() const { return position_; }

 private:
  template <class Take>
  void take(uint64_t nbytes, Take&& take);

  uint64_t total_, position_ = 0;
  uint8_t* leaves_;
  bool complete_ = true;  // the pieces of this leaf began with it
  Hasher hasher_;
};

}  // namespace tw
