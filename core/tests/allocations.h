// Memory that runs out: replaces operator new of the program. To be included once.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace tests {

// How many allocations succeed from now on; negative: all.
inline std::atomic<int> allocations_left{-1};

inline void* allocate(size_t nbytes, std::align_val_t align = std::align_val_t(alignof(std::max_align_t))) {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::aligned_alloc(size_t(align), (nbytes + size_t(align) - 1) / size_t(align) * size_t(align));
}

// Not inlined, or the compiler takes it for the wrong partner of operator new.
__attribute__((noinline)) inline void release(void* memory) { std::free(memory); }

template <class... Align>
void* allocate_or_throw(size_t nbytes, Align... align) {
  void* const memory = allocate(nbytes, align...);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace tests

void* operator new(size_t nbytes) { return tests::allocate_or_throw(nbytes); }
void* operator new[](size_t nbytes) { return tests::allocate_or_throw(nbytes); }
void* operator new(size_t nbytes, const std::nothrow_t&) noexcept { return tests::allocate(nbytes); }
void* operator new[](size_t nbytes, const std::nothrow_t&) noexcept { return tests::allocate(nbytes); }
void* operator new(size_t nbytes, std::align_val_t align) { return tests::allocate_or_throw(nbytes, align); }
void* operator new(size_t nbytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return tests::allocate(nbytes, align);
}
void operator delete(void* memory) noexcept { tests::release(memory); }
void operator delete[](void* memory) noexcept { tests::release(memory); }
void operator delete(void* memory, size_t) noexcept { tests::release(memory); }
void operator delete[](void* memory, size_t) noexcept { tests::release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { tests::release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { tests::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { tests::release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { tests::release(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { tests::release(memory); }
