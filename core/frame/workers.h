// Short-lived threads over numbered tiles of work.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "include/tensorwire.h"

namespace tw {

// Runs `work(scratch, tile)` for tiles 0 .. num_tiles - 1 on up to `threads` threads, the caller's among them, each
// with a Scratch of its own; tiles are handed out in order. work returns false to stop everybody. No thread outlives
// the call. Returns false if there is not even one scratch; fewer threads than asked for are no failure.
template <class Scratch, class Work>
bool run_tiles(uint64_t num_tiles, uint32_t threads, Work&& work) {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  auto loop = [&](Scratch* scratch) {
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t tile = next.fetch_add(1, std::memory_order_relaxed);
      if (tile >= num_tiles) return;
      if (!work(*scratch, tile)) stop.store(true, std::memory_order_relaxed);
    }
  };
  std::unique_ptr<Scratch> own(new (std::nothrow) Scratch);
  if (own == nullptr) return false;
  std::vector<std::unique_ptr<Scratch>> scratches;
  std::vector<std::thread> workers;
  const uint64_t wanted = threads < num_tiles ? threads : num_tiles;
  try {
    for (uint64_t t = 1; t < wanted; ++t) {
      // Kept before its thread starts, so that it outlives the thread whatever fails.
      scratches.push_back(std::unique_ptr<Scratch>(new Scratch));
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
