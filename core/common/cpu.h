// Which instruction set runs: chosen when the library is loaded, forced by TENSORWIRE_CPU.
#pragma once
#include <cstdint>

namespace tw {

enum class Target : uint8_t { kScalar, kAvx2, kAvx512, kNeon };

// The best target of this CPU, or the one that TENSORWIRE_CPU names if the CPU has it.
// kAvx2 means AVX2, FMA, F16C, BMI1, BMI2, LZCNT, POPCNT; kAvx512 means F, BW, DQ, VL, VBMI, VBMI2, BITALG on top.
Target cpu_target();

const char* target_name(Target target);

// The kernels that a stage has for the target. Each stage calls this once, when the library is loaded, and keeps the
// answer: no block pays for the choice. Kernels of another architecture are declared, but nobody defines them. Where a
// stage has none for NEON, the scalar ones run there: NEON is what compilers make vectors of on its architecture.
template <const auto& scalar, const auto& avx2, const auto& avx512, const auto& neon = scalar>
const auto& pick() {
  switch (cpu_target()) {
#if defined(__x86_64__)
    case Target::kAvx2:
      return avx2;
    case Target::kAvx512:
      return avx512;
#elif defined(__aarch64__)
    case Target::kNeon:
      return neon;
#endif
    default:
      return scalar;
  }
}

// Whether this thread takes denormal numbers for zeros, or makes zeros of them.
bool cpu_flushes_denormals();

// Whether loading 8 numbers by one instruction is faster than by 8: on Intel's processors, not on AMD's.
bool cpu_gathers_fast();

// Whether PDEP and PEXT take a few cycles, not one for each bit: not on AMD's processors before Zen 3.
bool cpu_deposits_fast();

}  // namespace tw
