// Counts over the words of a block.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "common/format.h"

namespace tw {

struct HistogramKernels {
  void (*bytes)(const uint8_t* bytes, size_t n, uint32_t histogram[256]);
};

// Fast where a few neighbouring values are nearly all of the bytes, as among exponents.
extern const HistogramKernels& histogram_kernels;

// Equally fast for any bytes.
void byte_histogram(const uint8_t* bytes, size_t n, uint32_t histogram[256]);

// Counts x = exponent and top k bits of the rest together, k = max_extra_bits(), of what WordKernels::split gives.
constexpr size_t kMaxWideValues = 256u << kMaxExtraBits;
void wide_histogram(const Layout& dtype, const uint8_t* exponents, const uint8_t* sign_mantissas, size_t n,
                    uint32_t histogram[kMaxWideValues]);

}  // namespace tw
