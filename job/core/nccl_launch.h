// What NCCL says of an operation when the host launches it, in the words of a page.
#pragma once
#include <cstddef>
#include <cstdint>

#include "page.h"

namespace tw::nccl {

struct Launch {
  const char* function;  // as NCCL names it: "AllReduce"
  const char* dtype;     // "ncclFloat32"
  size_t count;
  int root;  // of send and receive the peer
  int rank;  // of this process, within the communicator as root is
  bool is_p2p;
};

// All but the sequence number and, of send and receive, the root. `size`: ranks of the communicator, 0 unknown.
probe::OperationInfo describe(const Launch& launch, uint64_t size);

}  // namespace tw::nccl
