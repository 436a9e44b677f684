#include "nccl_launch.h"

#include <algorithm>
#include <cstring>

namespace tw::nccl {
namespace {

struct Function {
  const char* nccl;
  probe::Operation operation;
  bool is_rooted;
  bool counts_output;  // NCCL's count is that of one rank's share: the input has as many for each rank
};

constexpr Function kFunctions[] = {
    {"AllReduce", probe::kAllReduce, false, false},
    {"AllGather", probe::kAllGatherIntoTensor, false, false},
    {"ReduceScatter", probe::kReduceScatterTensor, false, true},
    {"Broadcast", probe::kBroadcast, true, false},
    {"Reduce", probe::kReduce, true, false},
    {"AlltoAll", probe::kAllToAllSingle, false, true},
    {"Gather", probe::kGather, true, false},
    {"Scatter", probe::kScatter, true, false},
    {"Send", probe::kSend, true, false},
    {"Recv", probe::kRecv, true, false},
};
constexpr Function kOtherFunction = {"", probe::kUnknown, false, false};

struct Layout {
  const char* nccl;
  const char* name;  // torch's
  uint64_t nbytes;
};

constexpr Layout kDtypes[] = {
    {"ncclBfloat16", "bfloat16", 2},
    {"ncclFloat32", "float32", 4},
    {"ncclFloat16", "float16", 2},
    {"ncclInt8", "int8", 1},
    {"ncclUint8", "uint8", 1},
    {"ncclInt32", "int32", 4},
    {"ncclUint32", "uint32", 4},
    {"ncclInt64", "int64", 8},
    {"ncclUint64", "uint64", 8},
    {"ncclFloat64", "float64", 8},
    {"ncclFloat8e4m3", "float8_e4m3fn", 1},
    {"ncclFloat8e5m2", "float8_e5m2", 1},
};
constexpr Layout kOtherDtype = {"", "", 0};

// The entry of that name, else the other.
template <class Entry, size_t kNum>
const Entry& find(const Entry (&entries)[kNum], const Entry& other, const char* name) {
  if (name != nullptr) {
    for (const Entry& entry : entries) {
      if (std::strcmp(entry.nccl, name) == 0) return entry;
    }
  }
  return other;
}

uint8_t dtype_code(const Layout& dtype) {
  for (uint32_t code = 1; const char* name = tw_probe_dtype_name(code); ++code) {
    if (std::strcmp(name, dtype.name) == 0) return static_cast<uint8_t>(code);
  }
  return 0;
}

}  // namespace

probe::OperationInfo describe(const Launch& launch, uint64_t size) {
  const Function& function = find(kFunctions, kOtherFunction, launch.function);
  const Layout& dtype = find(kDtypes, kOtherDtype, launch.dtype);
  const uint64_t factor = function.counts_output ? std::max<uint64_t>(size, 1) : 1;
  probe::OperationInfo info = {};
  info.numel = static_cast<int64_t>(launch.count * factor);
  info.nbytes = launch.count * factor * dtype.nbytes;
  info.operation = function.operation;
  info.dtype = dtype_code(dtype);
  info.root = probe::kNoRoot;
  info.pairwise = function.is_rooted;
  if (launch.is_p2p) {
    const uint64_t agreed[] = {info.dtype, launch.count};
    info.signature = tw_probe_hash(agreed, sizeof(agreed));
  } else {
    if (function.is_rooted && launch.root >= 0 && launch.root < probe::kNoRoot) {
      info.root = static_cast<uint16_t>(launch.root);
    }
    const uint64_t agreed[] = {info.operation, info.dtype, launch.count, info.root};
    info.signature = tw_probe_hash(agreed, sizeof(agreed));
  }
  return info;
}

}  // namespace tw::nccl
