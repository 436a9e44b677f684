#include "frame/content_hash.h"

#include <algorithm>

#include "frame/header.h"

namespace tw {

void hash_leaves(const uint8_t* src, uint64_t nbytes, uint8_t* leaves) {
  for (uint64_t first = 0; first < nbytes; first += TW_LEAF_NBYTES, leaves += sizeof(Hash128)) {
    store_hash(hash128(src + first, std::min<uint64_t>(TW_LEAF_NBYTES, nbytes - first)), leaves);
  }
}

void hash_leaves_ending(const uint8_t* src, uint64_t at, uint64_t total, uint64_t start, uint64_t stop,
                        uint8_t* leaves) {
  const uint64_t first = start / TW_LEAF_NBYTES * TW_LEAF_NBYTES;
  const uint64_t last = stop == total ? stop : stop / TW_LEAF_NBYTES * TW_LEAF_NBYTES;
  if (last > first) hash_leaves(src - (at - first), last - first, leaves + first / TW_LEAF_NBYTES * sizeof(Hash128));
}

void LeavesAhead::reach(uint64_t stop) {
  const uint64_t to = std::min(ceil_to(stop, TW_LEAF_NBYTES), end_);
  if (to <= hashed_) return;
  hash_leaves_ending(src_, at_, total_, hashed_, to, leaves_);
  hashed_ = to;
}

void LeafHasher::start(uint64_t position) {
  if (position == position_) return;
  position_ = position;
  complete_ = position % TW_LEAF_NBYTES == 0;
  hasher_ = Hasher();
}

// take(nbytes) hashes the next bytes, which end with a leaf or before.
template <class Take>
void LeafHasher::take(uint64_t nbytes, Take&& take) {
  while (nbytes != 0) {
    const uint64_t more = std::min(nbytes, TW_LEAF_NBYTES - position_ % TW_LEAF_NBYTES);
    take(more);
    position_ += more;
    nbytes -= more;
    if (position_ % TW_LEAF_NBYTES != 0 && position_ != total_) continue;
    if (complete_) store_hash(hasher_.finish(), leaves_ + (position_ - 1) / TW_LEAF_NBYTES * sizeof(Hash128));
    complete_ = true;
    hasher_ = Hasher();
  }
}

void LeafHasher::update(const uint8_t* data, uint64_t nbytes) {
  if (leaves_ == nullptr) return;
  take(nbytes, [&](uint64_t count) {
    if (complete_) hasher_.update(data, count);
    data += count;
  });
}

void LeafHasher::copy(const uint8_t* data, uint64_t nbytes, uint8_t* copy) {
  if (leaves_ == nullptr) {
    std::memcpy(copy, data, nbytes);
    return;
  }
  take(nbytes, [&](uint64_t count) {
    complete_ ? hasher_.copy(data, count, copy) : static_cast<void>(std::memcpy(copy, data, count));
    data += count;
    copy += count;
  });
}

Hash128 hash_root(uint64_t nbytes, const uint8_t* leaves) {
  uint8_t size[8];
  store(size, nbytes);
  Hasher hasher;
  hasher.update(size, sizeof size);
  hasher.update(leaves, ceil_div(nbytes, TW_LEAF_NBYTES) * sizeof(Hash128));
  return hasher.finish();
}

}  // namespace tw
