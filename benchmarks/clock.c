// The clock of the core that runs this: a chain of additions that each wait for the one before takes a cycle each.
#include <stdint.h>
#include <time.h>

#define ADD_4(x) __asm__ volatile(ADD ADD ADD ADD : "+r"(x))
#if defined(__x86_64__)
#define ADD "add %0, %0\n"
#elif defined(__aarch64__)
#define ADD "add %0, %0, %0\n"
#else
#error "no chain of additions for this architecture"
#endif

// Cycles per second, measured over 16 * `rounds` cycles.
double clock_hz(uint64_t rounds) {
  struct timespec start, stop;
  uint64_t x = 1;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (uint64_t i = 0; i < rounds; i++) {
    ADD_4(x);
    ADD_4(x);
    ADD_4(x);
    ADD_4(x);
  }
  clock_gettime(CLOCK_MONOTONIC, &stop);
  const double seconds = (double)(stop.tv_sec - start.tv_sec) + 1e-9 * (double)(stop.tv_nsec - start.tv_nsec);
  return 16.0 * (double)rounds / seconds;
}
