// Counts over the words of a block.
#pragma once
#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace tw {

struct HistogramKernels {
  void (*bytes)(const uint8_t* bytes, size_t n, uint32_t histogram[256]);
};

// For bytes of which a few neighbouring values are nearly all, as exponents are.
const HistogramKernels& histogram_kernels();

// For any bytes.
void byte_histogram(const uint8_t* bytes, size_t n, uint32_t histogram[256]);

// Of x = exponent and top k mantissa bits together; histogram has 2^(E + k) places. Rests hold M + 1 bits.
void wide_histogram(const Dtype& dtype, const uint8_t* exponents, const uint8_t* rests, size_t n, unsigned k,
                    uint32_t* histogram);

// flags[i] = 1 if word i is not zero, else 0. Returns the number of ones.
size_t nonzero_flags(size_t word_nbytes, const uint8_t* words, size_t n, uint8_t* flags);

}  // namespace tw
