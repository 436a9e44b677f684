// The vocabulary of pages.
#include <cstring>

#include "page.h"

namespace {

constexpr const char* kOperations[] = {
    "",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "all_reduce_coalesced",
    "all_gather_coalesced",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
};
constexpr size_t kNumOperations = sizeof(kOperations) / sizeof(*kOperations);
static_assert(kNumOperations == tw::probe::kNumOperations);

// The names of torch.
constexpr const char* kDtypes[] = {"",
                                   "bool",
                                   "uint8",
                                   "int8",
                                   "uint16",
                                   "int16",
                                   "uint32",
                                   "int32",
                                   "uint64",
                                   "int64",
                                   "float16",
                                   "bfloat16",
                                   "float32",
                                   "float64",
                                   "complex32",
                                   "complex64",
                                   "complex128",
                                   "float8_e4m3fn",
                                   "float8_e5m2",
                                   "float8_e4m3fnuz",
                                   "float8_e5m2fnuz",
                                   "float8_e8m0fnu"};
constexpr size_t kNumDtypes = sizeof(kDtypes) / sizeof(*kDtypes);

}  // namespace

const char* tw_probe_operation_name(uint32_t code) { return code < kNumOperations ? kOperations[code] : nullptr; }

const char* tw_probe_dtype_name(uint32_t code) { return code < kNumDtypes ? kDtypes[code] : nullptr; }

uint64_t tw_probe_hash(const void* data, size_t nbytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < nbytes; ++i) {
    hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
  }
  return hash;
}
