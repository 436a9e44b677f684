// What the two parts of the shim share: shim.cpp runs fibers, shim_checks.cpp looks at what they touch.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#define SHIM_SCHEDULER
#include "shim.h"
#pragma GCC visibility push(hidden)

constexpr u32 kStack = 64 << 10;
constexpr u32 kMostThreads = 1024;
constexpr u32 kGuard = 256;
constexpr u32 kStatic = 232 << 10;  // of both kinds of shared memory, the most that a block may have
constexpr u32 kAll = 0xffffffffu;

enum Wait : u8 { RUNS, AT_WARP, AT_BLOCK, LEFT };

struct Copy {
  u32 to;
  const void* from;
  u32 nbytes, copied, group;
};

struct Fiber {
  void* stack_pointer;
  u32 thread;
  Wait wait;
  u32 operation;  // that it waits in, with all that lanes must agree on
  u32 parity;
  u32 group;  // of copies, that is not committed
  std::vector<Copy> copies;
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
extern Launch launch;
extern u8* stacks;
extern bool failed;
extern std::vector<u8> arena;  // all shared memory, with its guards
extern u32 epoch, short_epochs[kMostThreads / 32];
extern u32 shared_end;
struct Static {
  const void* key;
  u32 at, nbytes;
};
extern std::vector<Static> statics;
extern u64 module_begin, module_end;

void say(const char* format, ...);
void to_scheduler();
void prepare_checks();

// The launch ends here: no fiber runs again.
#define FAIL(...)                \
  do {                           \
    say(__VA_ARGS__);            \
    if (current) to_scheduler(); \
  } while (0)

#pragma GCC visibility pop
