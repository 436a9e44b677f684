// BF16 words that are products of a scale and codes of 8 bits.
#pragma once
#include <cfenv>
#include <cstddef>
#include <cstdint>

namespace tw {

enum class Codes : uint8_t { kF8E4M3, kI8 };  // the variant of kind scaled

// While it lives, floats of this thread are as the language has them at first: rounded to the nearest, without traps.
// What the thread had set comes back then. multiply() needs one around it.
class RoundingToNearest {
 public:
  RoundingToNearest() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~RoundingToNearest() { std::fesetenv(&before_); }
  RoundingToNearest(const RoundingToNearest&) = delete;
  RoundingToNearest& operator=(const RoundingToNearest&) = delete;

 private:
  std::fenv_t before_;
};

// Kernels, one set per target.
struct ScaledKernels {
  // words[i] = scale * code i, rounded to float and then to BF16, both to the nearest, ties to even. No product may be
  // subnormal or infinite. False if a code is no number; words are any then. No pointer needs alignment.
  bool (*multiply)(Codes codes, const uint8_t* numbers, size_t n, float scale, uint8_t* words);
};

extern const ScaledKernels& scaled_kernels;

}  // namespace tw
