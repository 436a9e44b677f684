// BF16 words that are products of a scale and codes of 8 bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw {

enum class Codes : uint8_t { kF8E4M3, kI8 };  // the variant of kind scaled

// Kernels, one set per target.
struct ScaledKernels {
  // words[i] = scale * code i, rounded to float and then to BF16, both to the nearest, ties to even. No product may be
  // subnormal or infinite. False if a code is no number; words are any then. No pointer needs alignment.
  bool (*multiply)(Codes codes, const uint8_t* numbers, size_t n, float scale, uint8_t* words);
};

extern const ScaledKernels& scaled_kernels;

}  // namespace tw
