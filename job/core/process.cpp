#include "process.h"

#include <pthread.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "page.h"

namespace tw::probe {

std::atomic<uint32_t> num_forks{0};

namespace {

void count_fork() { ++num_forks; }

// Reads a small file as a string.
bool read_text(const char* path, char* text, size_t room) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  const size_t nbytes = std::fread(text, 1, room - 1, file);
  std::fclose(file);
  text[nbytes] = 0;
  return nbytes != 0;
}

}  // namespace

int watch_forks() {
  static const int error = pthread_atfork(nullptr, nullptr, count_fork);
  return error;
}

uint64_t start_time(uint32_t pid) {
  char path[32], text[1024];
  std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  if (!read_text(path, text, sizeof(text))) return 0;
  // The second field is the command's name in parentheses and may hold anything; the start is field 22.
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

bool read_boot_id(uint8_t boot_id[16]) {
  char text[64];
  if (!read_text("/proc/sys/kernel/random/boot_id", text, sizeof(text))) return false;
  size_t digits = 0;
  for (const char* c = text; *c != 0 && digits < 32; ++c) {
    if (*c == '-') continue;
    unsigned digit;
    if (std::sscanf(c, "%1x", &digit) != 1) return false;
    uint8_t& byte = boot_id[digits++ / 2];
    byte = static_cast<uint8_t>(byte << 4 | digit);
  }
  return digits == 32;
}

}  // namespace tw::probe

uint64_t tw_probe_now(void) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}
