// What the two parts of the shim share: shim.cpp runs fibers, shim_checks.cpp looks at what they touch.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#define SHIM_SCHEDULER
#include "shim.h"
#pragma GCC visibility push(hidden)

constexpr u32 kStack = 64 << 10;
constexpr size_t kApart = 64 << 20;
constexpr u32 kMostThreads = 1024;
constexpr u32 kGuard = 256;
constexpr u32 kStatic = 232 << 10;  // of both kinds of shared memory, the most that a block may have
constexpr u32 kAll = 0xffffffffu;

enum Wait : u8 { RUNS, AT_WARP, AT_SOME, AT_BLOCK, LEFT };

struct Copy {
  u32 to;
  const void* from;
  u32 nbytes, group;
};

// A product by a warpgroup, as one of its threads sees it: its two rows and the other factor when it was issued.
struct Wgmma {
  float* c;
  const u32* a;
  u32 own[4], rows[4][4], nb, group;
  u64 b;
  std::vector<u8> inputs;
};

// Sums that belong to products under way: what they are, while the thread sees something else.
struct Sums {
  float* c;
  std::vector<float> values;
};

struct Span {
  u64 begin, nbytes;
};

struct Fiber {
  void* stack_pointer;
  u32 thread;
  Wait wait;
  u32 operation;  // that it waits in, with all that lanes must agree on
  u32 parity;
  u32 group;  // of copies, that is not committed
  std::vector<Copy> copies;
  u32 barrier, meeting;  // that it waits at, and for how many threads
  u32 fences;            // for wgmma
  u32 wgmma_group, issued;
  bool fenced;                // registers, for the next group
  std::vector<Span> written;  // on its stack, behind that fence
  std::vector<Wgmma> products;
  std::vector<Sums> sums;
};

struct Buffer {
  u64 begin, nbytes;
  bool writable;
};

struct Launch {
  void (*kernel)(void**);
  void** arguments;
  Index grid;
  u32 threads, shared_nbytes;
  const Buffer* buffers;
  u32 num_buffers;
  u32 checked;
  u64 seed;
};

extern Fiber* current;  // null while none runs
extern Fiber fibers[kMostThreads];
extern Launch launch;
extern u8* stacks;
extern bool failed;
// All shared memory, with its guards, from shim_place.shared on. It is far from the buffers of launches: a thread
// without work may compute an address that lies behind its buffer.
extern u32 arena_nbytes;
extern u32 epoch, short_epochs[kMostThreads / 32], group_epochs[kMostThreads / 128];
extern u32 shared_end;
struct Static {
  const void* key;
  u32 at, nbytes;
};
extern std::vector<Static> statics;
extern u64 module_begin, module_end;

void say(const char* format, ...);
void to_scheduler();
void prepare_products();
void prepare_block();
double factor(u32 operation, u32 bits);

// Give the warp `count` numbers, up to 8; what all its lanes gave.
const u32 (*exchanged(u32 operation, const u32* values, u32 count))[8];

// For reads of wgmma: whether the bytes are in a shared array, are in order, written, and fenced.
void check_wgmma(u32 at, u32 nbytes);
void prepare_checks();

// The launch ends here: no fiber runs again.
#define FAIL(...)                \
  do {                           \
    say(__VA_ARGS__);            \
    if (current) to_scheduler(); \
  } while (0)

#pragma GCC visibility pop
