#include "common/cpu.h"

#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tw {
namespace {

constexpr Target kTargets[] = {Target::kScalar, Target::kAvx2, Target::kAvx512, Target::kNeon};

bool supported(Target target) {
  switch (target) {
    case Target::kScalar:
      return true;
#if defined(__x86_64__)
    case Target::kAvx2:
      // Clang 14 cannot ask for LZCNT and F16C, which every CPU with BMI2 has.
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    case Target::kAvx512:
      return supported(Target::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
             __builtin_cpu_supports("avx512bitalg");
#elif defined(__aarch64__)
    case Target::kNeon:
      return true;
#endif
    default:
      return false;
  }
}

Target choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // this runs while the library is loaded
#endif
  const char* forced = std::getenv("TENSORWIRE_CPU");
  Target best = Target::kScalar;
  for (Target target : kTargets) {
    if (!supported(target)) continue;
    if (forced != nullptr && std::strcmp(forced, target_name(target)) == 0) return target;
    best = target;
  }
  return best;
}

}  // namespace

Target cpu_target() {
  static const Target target = choose();
  return target;
}

bool cpu_flushes_denormals() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZeros = 0x0040;
  return (_mm_getcsr() & (kFlushToZero | kDenormalsAreZeros)) != 0;
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return (control >> 24 & 1) != 0;
#else
  return false;
#endif
}

bool cpu_gathers_fast() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

bool cpu_deposits_fast() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return !__builtin_cpu_is("amdfam15h") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
#else
  return false;
#endif
}

const char* target_name(Target target) {
  switch (target) {
    case Target::kAvx2:
      return "avx2";
    case Target::kAvx512:
      return "avx512";
    case Target::kNeon:
      return "neon";
    default:
      return "scalar";
  }
}

}  // namespace tw
