// Threads under a memory that runs out: whichever allocation fails, every tile is done once, and no thread's scratch
// is taken away from it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "frame/workers.h"
#include "tests/allocations.h"
#include "tests/check.h"

namespace {

constexpr uint64_t kNumTiles = 200;
constexpr uint32_t kThreads = 6;

std::atomic<bool> alive[1024];
std::atomic<size_t> next_scratch{0};

struct Scratch {
  size_t number = next_scratch++;
  Scratch() { alive[number] = true; }
  ~Scratch() { alive[number] = false; }
};

// Returns how many allocations were made.
int run_with(int allocations) {
  std::atomic<int> done[kNumTiles] = {};
  std::atomic<bool> dead{false};
  next_scratch = 0;
  tests::allocations_left = allocations;
  const bool ran = tw::run_tiles<Scratch>(kNumTiles, kThreads, [&](Scratch& scratch, uint64_t tile) {
    const size_t number = scratch.number;
    ++done[tile];
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (!alive[number]) dead = true;
    return true;
  });
  const int left = tests::allocations_left.exchange(-1);
  CHECK(ran == (allocations > 0));
  CHECK(!dead);
  for (const std::atomic<int>& times : done) CHECK(times == (ran ? 1 : 0));
  return allocations - left;
}

std::atomic<size_t> num_large{0};

struct LargeScratch {
  uint8_t memory[1 << 16];
  bool used = false;
  static void* operator new(size_t nbytes, const std::nothrow_t&) noexcept {
    ++num_large;
    return std::malloc(nbytes);
  }
  static void operator delete(void* memory) { std::free(memory); }
};

// Calls that follow each other use the memory of the first, and nothing that it has left there.
void check_large_scratch_is_kept() {
  for (int call = 0; call < 10; ++call) {
    std::atomic<size_t> num_new{0};
    CHECK(tw::run_tiles<LargeScratch>(kNumTiles, kThreads, [&](LargeScratch& scratch, uint64_t) {
      if (!scratch.used) ++num_new;
      scratch.used = true;
      return true;
    }));
    CHECK(num_new > 0 && num_large == kThreads);
  }
}

// The one function of the C ABI that starts threads and has no way to fail.
void check_hash_leaves() {
  const std::vector<uint8_t> content(3 * TW_LEAF_NBYTES + 5, 7);
  uint8_t expected[4 * 16], leaves[4 * 16] = {};
  tw_hash_leaves(content.data(), content.size(), expected, 2);
  tests::allocations_left = 0;
  tw_hash_leaves(content.data(), content.size(), leaves, 2);
  tests::allocations_left = -1;
  CHECK(std::memcmp(leaves, expected, sizeof leaves) == 0);
}

}  // namespace

int main() {
  const int all = run_with(1000);
  CHECK(all > 2 * static_cast<int>(kThreads));
  for (int allocations = 0; allocations <= all; ++allocations) run_with(allocations);
  check_large_scratch_is_kept();
  check_hash_leaves();
  std::printf("ok\n");
  return 0;
}
