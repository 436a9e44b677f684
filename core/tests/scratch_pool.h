// Keeps the scratch of encoder and decoder from call to call, in the program whose one source includes this.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace tests {

// The decoder's scratch is megabytes, which a sanitizer takes longer to map than a small frame to decode. So it is
// kept, with what the calls before have left in it; results that depend on that differ from run to run.
class ScratchPool {
 public:
  ~ScratchPool() {
    for (auto& [nbytes, kept] : free_) {
      for (void* memory : kept) std::free(memory);
    }
  }
  void* take(size_t nbytes, size_t align) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& kept = free_[nbytes];
    if (kept.empty()) {
      void* const memory = std::aligned_alloc(align, nbytes);  // the size of a type: a multiple of its alignment
      sizes_[memory] = nbytes;
      return memory;
    }
    void* const memory = kept.back();
    kept.pop_back();
    return memory;
  }
  void give(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (memory != nullptr) free_[sizes_[memory]].push_back(memory);
  }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
  std::map<size_t, std::vector<void*>> free_;
};
inline ScratchPool scratch_pool;

}  // namespace tests

void* operator new(size_t nbytes, std::align_val_t align) {
  return tests::scratch_pool.take(nbytes, static_cast<size_t>(align));
}
void* operator new(size_t nbytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return tests::scratch_pool.take(nbytes, static_cast<size_t>(align));
}
void operator delete(void* memory, std::align_val_t) noexcept { tests::scratch_pool.give(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { tests::scratch_pool.give(memory); }
