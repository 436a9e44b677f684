// A sequence lock over memory that other processes map. The number is odd while the rest is written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tw::probe {

// Accesses to shared memory are atomic in words of 4 bytes, so that a reader who is to throw a torn copy
// away has read no torn number.
template <class T>
inline void store_shared(T* to, T value) {
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

inline void copy_to_shared(void* to, const void* from, size_t nbytes) {
  for (size_t i = 0; i < nbytes; i += 4) {
    uint32_t word;
    std::memcpy(&word, static_cast<const char*>(from) + i, 4);
    store_shared(reinterpret_cast<uint32_t*>(static_cast<char*>(to) + i), word);
  }
}

inline void copy_from_shared(void* to, const void* from, size_t nbytes) {
  for (size_t i = 0; i < nbytes; i += 4) {
    const uint32_t word =
        __atomic_load_n(reinterpret_cast<const uint32_t*>(static_cast<const char*>(from) + i), __ATOMIC_RELAXED);
    std::memcpy(static_cast<char*>(to) + i, &word, 4);
  }
}

// Writers exclude each other by other means. A number that is odd already is that of one who died, or was scribbled.
class WriteLock {
 public:
  explicit WriteLock(uint32_t* lock) : lock_(lock) {
    store_shared(lock_, *lock_ | 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
  }
  ~WriteLock() { __atomic_store_n(lock_, *lock_ + 1, __ATOMIC_RELEASE); }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

 private:
  uint32_t* lock_;
};

// `copy()` copies what `lock` protects, over and again until none wrote meanwhile. Gives the lock's last number, odd
// after too many attempts.
template <class Copy>
inline uint32_t read_consistent(const uint32_t* lock, Copy&& copy) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint32_t before = __atomic_load_n(lock, __ATOMIC_ACQUIRE);
    copy();
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if ((before & 1) == 0 && __atomic_load_n(lock, __ATOMIC_RELAXED) == before) return before;
  }
  return 1;
}

}  // namespace tw::probe
