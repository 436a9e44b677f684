#if defined(__x86_64__)
#include <immintrin.h>

#include "transforms/words_impl.h"

namespace tw {
namespace {

void stream_copy(uint8_t* dst, const uint8_t* src, size_t nbytes) {
  size_t i = 0;
  for (; i + 64 <= nbytes; i += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i), _mm512_loadu_si512(src + i));
  std::memcpy(dst + i, src + i, nbytes - i);
}

}  // namespace

extern const WordKernels kWordAvx512;
const WordKernels kWordAvx512 = {split,          or_runs,  assemble,     weave,   join, narrow,
                                 unpack_numbers, or_bytes, pack_numbers, unweave, fits, stream_copy};
}  // namespace tw
#endif
