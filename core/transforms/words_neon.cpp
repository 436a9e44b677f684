#if defined(__aarch64__)
#include "transforms/words_impl.h"

namespace tw {
namespace {

void stream_copy(uint8_t* dst, const uint8_t* src, size_t nbytes) { std::memcpy(dst, src, nbytes); }

}  // namespace

extern const WordKernels kWordNeon;
const WordKernels kWordNeon = {split,          or_runs,  assemble,     weave,   join, narrow,
                               unpack_numbers, or_bytes, pack_numbers, unweave, fits, stream_copy};
}  // namespace tw
#endif
