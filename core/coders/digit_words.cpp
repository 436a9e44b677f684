#include "coders/digit_words.h"

#include "common/cpu.h"

namespace tw {

extern const DigitWordKernels kDigitWordScalar, kDigitWordAvx2, kDigitWordAvx512;

namespace {

constexpr DigitWordKernels kNone = {nullptr};

}  // namespace

const DigitWordKernels& digit_word_kernels = pick<kDigitWordScalar, kDigitWordAvx2, kDigitWordAvx512, kNone>();

}  // namespace tw
