// Which instruction set runs: found once, forced by TENSORWIRE_CPU.
#pragma once
#include <cstdint>

namespace tw {

enum class Target : uint8_t { kScalar, kAvx2, kAvx512, kNeon };

// The best target of this CPU, or the one that TENSORWIRE_CPU names if the CPU has it.
// kAvx2 means AVX2, BMI1, BMI2, LZCNT, POPCNT; kAvx512 means F, BW, DQ, VL, VBMI, VBMI2, BITALG on top.
Target cpu_target();

const char* target_name(Target target);

// Whether loading 8 numbers by one instruction is faster than by 8: on Intel's processors, not on AMD's.
bool cpu_gathers_fast();

}  // namespace tw
