#include "frame/content_hash.h"

#include <algorithm>

#include "frame/layout.h"

namespace tw {

void hash_leaves(const uint8_t* src, uint64_t nbytes, uint8_t* leaves) {
  for (uint64_t first = 0; first < nbytes; first += TW_LEAF_NBYTES, leaves += sizeof(Hash128)) {
    store_hash(hash128(src + first, std::min<uint64_t>(TW_LEAF_NBYTES, nbytes - first)), leaves);
  }
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
