#if defined(__x86_64__)
#include <immintrin.h>

#include "transforms/words_impl.h"

namespace tw {
namespace {

void stream_copy(uint8_t* dst, const uint8_t* src, size_t nbytes) {
  size_t i = 0;
  for (; i + 64 <= nbytes; i += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + i + 32), b);
  }
  std::memcpy(dst + i, src + i, nbytes - i);
}

}  // namespace

extern const WordKernels kWordAvx2;
const WordKernels kWordAvx2 = {split,          or_runs,  assemble,     weave,   join, narrow,
                               unpack_numbers, or_bytes, pack_numbers, unweave, fits, stream_copy};
}  // namespace tw
#endif
