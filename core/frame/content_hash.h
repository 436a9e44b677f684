// The content hash of docs/format.md: leaves of 128 KiB under one root.
#pragma once
#include <cstdint>

#include "common/hash.h"

namespace tw {

void hash_leaves(const uint8_t* src, uint64_t nbytes, uint8_t* leaves);
Hash128 hash_root(uint64_t nbytes, const uint8_t* leaves);

}  // namespace tw
