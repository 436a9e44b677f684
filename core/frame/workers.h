// Threads over numbered tiles of work: short-lived ones of our own, or those of a pool that the caller has.
#pragma once
#include <atomic>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "include/tensorwire.h"

namespace tw {

// How many threads, and of whose pool; without one they live as long as the call.
struct Workers {
  uint32_t threads;
  tw_parallel parallel;

  Workers(uint32_t count, tw_parallel pool = nullptr) : threads(count), parallel(pool) {}
};

// A Scratch for one thread of a call; null where there is no memory. The memory of large ones outlives the call,
// kMostKept of each type: glibc 2.36 seldom finds freed aligned memory again, so a process that makes many frames would
// grow without end, until it could not fork. No lock: a child may be forked at any moment.
template <class Scratch>
class Lent {
 public:
  Lent() : scratch_(take()) {}
  Lent(Lent&& other) noexcept : scratch_(std::exchange(other.scratch_, nullptr)) {}
  Lent& operator=(Lent&&) = delete;
  ~Lent() {
    if (kIsKept && scratch_ != nullptr) {
      for (std::atomic<Scratch*>& place : kept_) {
        Scratch* empty = nullptr;
        if (place.compare_exchange_strong(empty, scratch_)) return;
      }
    }
    delete scratch_;
  }

  Scratch* get() const { return scratch_; }

 private:
  static constexpr bool kIsKept = sizeof(Scratch) >= 4096;
  static constexpr size_t kMostKept = 16;

  static Scratch* take() {
    if (kIsKept) {
      for (std::atomic<Scratch*>& place : kept_) {
        if (Scratch* scratch = place.exchange(nullptr)) {
          scratch->~Scratch();
          return ::new (scratch) Scratch;
        }
      }
    }
    return new (std::nothrow) Scratch;
  }

  static inline std::atomic<Scratch*> kept_[kMostKept];
  Scratch* scratch_;
};

// Runs `work(scratch, tile)` for tiles 0 .. num_tiles - 1 on up to `threads` threads, the caller's among them, each
// with a Scratch of its own; tiles are handed out in order. work returns false to stop everybody. No thread of ours
// outlives the call. Returns false if there is not even one scratch; fewer threads than asked for are no failure.
// A pool is always asked for all threads: GNU's OpenMP ends those that it is not asked for, and what it starts later is
// like the caller, also in what becomes of denormals.
template <class Scratch, class Work>
bool run_tiles(uint64_t num_tiles, Workers crew, Work&& work) {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  auto loop = [&](Scratch* scratch) {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t tile = next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= num_tiles) return;
      if (!work(*scratch, tile)) stop.store(true, std::memory_order_relaxed);
    }
  };
  const uint64_t wanted = crew.threads < num_tiles ? crew.threads : num_tiles;
  if (crew.parallel != nullptr && wanted > 1) {
    std::atomic<bool> ran{false};
    auto run = [&] {
      if (next.load(std::memory_order_relaxed) >= num_tiles) return;  // others have run
      const Lent<Scratch> scratch;
      if (scratch.get() == nullptr) return;
      ran.store(true, std::memory_order_relaxed);
      loop(scratch.get());
    };
    crew.parallel([](void* body) { (*static_cast<decltype(run)*>(body))(); }, &run, crew.threads, 0);
    return ran.load(std::memory_order_relaxed);
  }
  const Lent<Scratch> own;
  if (own.get() == nullptr) return false;
  std::vector<Lent<Scratch>> scratches;
  std::vector<std::thread> workers;
  try {
    for (uint64_t t = 1; t < wanted; ++t) {
      scratches.emplace_back();  // before its thread starts, so that it outlives the thread whatever fails
      if (scratches.back().get() == nullptr) break;
      workers.emplace_back(loop, scratches.back().get());
    }
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error&) {
  }
  loop(own.get());
  for (std::thread& worker : workers) worker.join();
  return true;
}

}  // namespace tw
