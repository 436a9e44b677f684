// The scheduler of a block's fibers, and the checks of what they touch: see shim.h. Compiled without checks itself.
#include <link.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define SHIM_SCHEDULER
#include "shim.h"

namespace {

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

// Who touched a byte of shared memory last. An epoch ends at a barrier of the block, a short one at one of the warp.
constexpr u16 kSeveral = 0xffff;
struct Touched {
  u32 write_epoch, write_short, read_epoch, read_short;
  u16 writer, reader, readers_warp;
  bool atomic;
};

Fiber fibers[kMostThreads];
Fiber* current;
void* scheduler;
u8* stacks;
u32 slots[2][kMostThreads][8];
u32 lanes_order[32];
u32 epoch;
u32 short_epochs[kMostThreads / 32];
Launch launch;
bool failed;
char message[1024];
std::vector<u8> arena;
std::vector<Touched> touched;
u32 shared_end;
struct Static {
  const void* key;
  u32 at, nbytes;
};
std::vector<Static> statics;
u64 random_state;
u64 module_begin, module_end;

u32 drawn(u32 below) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (u32)((random_state >> 33) % below);
}

void shuffle(u32* order, u32 count) {
  for (u32 i = count; launch.seed && i > 1; i--) {
    u32 j = drawn(i), other = order[j];
    order[j] = order[i - 1];
    order[i - 1] = other;
  }
}

}  // namespace

ShimPlace shim_place;

// Context -----------------------------------------------------------------------------------------------------------

#ifdef __x86_64__
// Keeps what a called function must keep on the stack of one fiber, and takes it up from another's. swapcontext would
// ask the system for the mask of signals each time.
extern "C" __attribute__((visibility("hidden"))) void shim_switch(void** from, void* to);
asm(R"(
  .text
  .globl shim_switch
  .hidden shim_switch
  .type shim_switch, @function
shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size shim_switch, .-shim_switch
)");
static void* prepared(u8* stack, void (*entry)()) {
  void** top = (void**)(stack + kStack);
  *--top = nullptr;  // where `entry` would return to: it never does
  *--top = (void*)entry;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  return top;
}
#else
#include <ucontext.h>
static ucontext_t contexts[kMostThreads + 1];
static void shim_switch(void** from, void* to) {
  u32 own = current ? current->thread : kMostThreads;
  ucontext_t* mine = *from ? (ucontext_t*)*from : &contexts[own];
  *from = mine;
  swapcontext(mine, (ucontext_t*)to);
}
static void* prepared(u8* stack, void (*entry)()) {
  ucontext_t* context = &contexts[(stack - stacks) / kStack];
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#endif

static void to_scheduler() { shim_switch(&current->stack_pointer, scheduler); }

static void say(const char* format, ...) {
  if (failed) return;
  failed = true;
  int n = snprintf(message, sizeof message, "block (%u, %u, %u), ", shim_place.block.x, shim_place.block.y,
                   shim_place.block.z);
  if (current) n += snprintf(message + n, sizeof message - n, "thread %u: ", current->thread);
  va_list values;
  va_start(values, format);
  vsnprintf(message + n, sizeof message - n, format, values);
  va_end(values);
}

// The launch ends here: no fiber runs again.
#define FAIL(...)                \
  do {                           \
    say(__VA_ARGS__);            \
    if (current) to_scheduler(); \
  } while (0)

static void run_kernel() {
  launch.kernel(launch.arguments);
  current->wait = LEFT;
  to_scheduler();
}

static void run_fiber(Fiber& fiber) {
  current = &fiber;
  shim_place.thread = {fiber.thread, 0, 0};
  shim_switch(&scheduler, fiber.stack_pointer);
  current = nullptr;
}

// Blocks ------------------------------------------------------------------------------------------------------------

// Run the lanes of a warp until each waits; whether any did anything.
static bool run_warp(u32 warp) {
  Fiber* lanes = fibers + 32 * warp;
  bool any = false;
  shuffle(lanes_order, 32);
  for (u32 i : lanes_order)
    if (lanes[i].wait == RUNS) {
      any = true;
      run_fiber(lanes[i]);
      if (failed) return false;
    }
  u32 at_warp = 0, at_block = 0, left = 0;
  const Fiber* waiting = nullptr;
  for (u32 i = 0; i < 32; i++) {
    at_warp += lanes[i].wait == AT_WARP;
    at_block += lanes[i].wait == AT_BLOCK;
    left += lanes[i].wait == LEFT;
    if (lanes[i].wait == AT_WARP) {
      if (waiting && waiting->operation != lanes[i].operation)
        say("lanes of warp %u wait in different warp operations", warp);
      waiting = lanes + i;
    }
  }
  if (at_warp && left) say("warp operation after some lanes left: %u of warp %u", left, warp);
  if (at_warp && at_block) say("warp operation while %u lanes of warp %u wait at __syncthreads", at_block, warp);
  if (failed) return false;
  if (!at_warp) return any;
  if ((waiting->operation & 255) == SYNC_WARP) short_epochs[warp]++;
  for (u32 i = 0; i < 32; i++) lanes[i].wait = RUNS;
  return true;
}

static void run_block() {
  u32 warps = launch.threads / 32, order[kMostThreads / 32];
  memset(arena.data(), 0xA5, arena.size());
  statics.clear();
  shared_end = kGuard + ((launch.shared_nbytes + 15) & ~15u) + kGuard;
  epoch++;
  for (u32 w = 0; w < warps; w++) order[w] = w;
  for (u32 t = 0; t < launch.threads; t++) {
    Fiber& fiber = fibers[t];
    fiber.thread = t;
    fiber.wait = RUNS;
    fiber.parity = fiber.group = 0;
    fiber.copies.clear();
    fiber.stack_pointer = prepared(stacks + (size_t)t * kStack, run_kernel);
  }
  for (;;) {
    bool any = false;
    shuffle(order, warps);
    for (u32 w = 0; w < warps; w++) {
      while (run_warp(order[w])) {
        any = true;
        if (launch.seed) break;  // the warps take turns
      }
      if (failed) return;
    }
    u32 at_block = 0, left = 0;
    for (u32 t = 0; t < launch.threads; t++) {
      at_block += fibers[t].wait == AT_BLOCK;
      left += fibers[t].wait == LEFT;
    }
    if (left == launch.threads) return;
    if (at_block && at_block + left == launch.threads) {
      epoch++;
      for (u32 t = 0; t < launch.threads; t++)
        if (fibers[t].wait == AT_BLOCK) fibers[t].wait = RUNS;
    } else if (!any) {
      say("deadlock");
      return;
    }
  }
}

static int find_module(dl_phdr_info* info, size_t, void*) {
  u64 own = (u64)(void*)&run_block, begin = ~0ull, end = 0;
  bool has = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    u64 at = info->dlpi_addr + part.p_vaddr;
    has |= at <= own && own < at + part.p_memsz;
    begin = at < begin ? at : begin;
    end = at + part.p_memsz > end ? at + part.p_memsz : end;
  }
  if (!has) return 0;
  module_begin = begin;
  module_end = end;
  return 1;
}

// Run a kernel. 0: all went well; else `text` says what did not.
extern "C" __attribute__((visibility("default"))) int shim_launch(const Launch* what, char* text, u32 text_nbytes) {
  launch = *what;
  failed = false;
  current = nullptr;
  random_state = launch.seed;
  if (!stacks) {
    stacks =
        (u8*)mmap(nullptr, (size_t)kMostThreads * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dl_iterate_phdr(find_module, nullptr);
    for (u32 i = 0; i < 32; i++) lanes_order[i] = i;
  }
  arena.resize(kGuard + launch.shared_nbytes + 16 + kGuard + kStatic + kGuard + 16);
  touched.resize(arena.size());
  shim_place.shared = (u8*)(((u64)arena.data() + 15) & ~15ull);
  shim_place.threads = {launch.threads, 1, 1};
  shim_place.blocks = launch.grid;
  const Index& grid = launch.grid;
  u64 blocks = (u64)grid.x * grid.y * grid.z;
  std::vector<u32> order(blocks);
  for (u64 i = 0; i < blocks; i++) order[i] = (u32)i;
  shuffle(order.data(), (u32)blocks);
  for (u32 i : order) {
    shim_place.block = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    run_block();
    if (failed) {
      snprintf(text, text_nbytes, "%s", message);
      return 1;
    }
  }
  return 0;
}

// Warp operations and barriers --------------------------------------------------------------------------------------

static void wait_for(Wait wait) {
  current->wait = wait;
  to_scheduler();
}

// Give the warp `count` numbers; what all its lanes gave. Two sets by turns: when a lane gives to a set again, all have
// read what was in it, since they have met in between.
static const u32 (*exchanged(u32 operation, const u32* values, u32 count))[8] {
  u32 parity = current->parity ^= 1;
  for (u32 i = 0; i < count; i++) slots[parity][current->thread][i] = values[i];
  current->operation = operation;
  wait_for(AT_WARP);
  return slots[parity] + (current->thread & ~31u);
}

static void check_mask(u32 mask) {
  if (mask != kAll) FAIL("warp operation with the mask %#x: all 32 lanes take part in each", mask);
}

u32 shim_shuffle(u32 operation, u32 mask, u32 value, u32 other, u32 width) {
  check_mask(mask);
  if (!width || width > 32 || width & (width - 1)) FAIL("shuffle of width %u", width);
  u32 same = operation == SHUFFLE ? 0 : other;  // lanes choose whom they read, and agree on distances
  auto given = exchanged(operation | width << 8 | same << 16, &value, 1);
  u32 lane = current->thread & 31, in = lane % width, from = in;
  if (operation == SHUFFLE) from = other % width;
  if (operation == SHUFFLE_UP && in >= other) from = in - other;
  if (operation == SHUFFLE_DOWN && in + other < width) from = in + other;
  if (operation == SHUFFLE_XOR && (in ^ other) < width) from = in ^ other;
  return given[lane - in + from][0];
}

u32 shim_ballot(u32 mask, bool value) {
  check_mask(mask);
  u32 own = value, votes = 0;
  auto given = exchanged(BALLOT, &own, 1);
  for (u32 i = 0; i < 32; i++) votes |= given[i][0] << i;
  return votes;
}

void shim_sync_warp() {
  current->operation = SYNC_WARP;
  wait_for(AT_WARP);
}

void shim_sync_threads() { wait_for(AT_BLOCK); }

void shim_trap(const char* text) { FAIL("%s", text); }

u32 shim_f16_of(float value) {
  _Float16 half = (_Float16)value;
  u16 bits;
  memcpy(&bits, &half, 2);
  return bits;
}

float shim_float_of_f16(u32 bits) {
  u16 low = (u16)bits;
  _Float16 half;
  memcpy(&half, &low, 2);
  return (float)half;
}

static double factor(u32 operation, u32 bits) {
  if (operation == MMA_F16) return shim_float_of_f16(bits);
  float value;
  bits <<= 16;
  memcpy(&value, &bits, 4);
  return value;
}

// One sum of 17 terms in double, rounded once: a model, as tensor cores may cut bits off instead.
void shim_mma(u32 operation, float* c, const u32* a, const u32* b) {
  u32 own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  auto given = exchanged(operation, own, 6);
  u32 lane = current->thread & 31;
  for (u32 i = 0; i < 4; i++) {
    u32 row = lane / 4, column = 2 * (lane % 4) + i % 2, lower = i / 2;  // of the upper or the lower eight rows
    double sum = c[i];
    for (u32 k = 0; k < 16; k++) {
      u32 in_group = k % 8 / 2, right = k / 8, shift = 16 * (k & 1);
      u32 left = given[row * 4 + in_group][lower + 2 * right] >> shift & 0xffff;
      sum += factor(operation, left) * factor(operation, given[column * 4 + in_group][4 + right] >> shift & 0xffff);
    }
    c[i] = (float)sum;
  }
}

// Shared memory -----------------------------------------------------------------------------------------------------

void* shim_dynamic_shared() { return shim_place.shared + kGuard; }

void* shim_static_shared(const void* key, size_t nbytes) {
  for (const Static& known : statics)
    if (known.key == key) return shim_place.shared + known.at;
  u32 at = shared_end;
  shared_end += (u32)((nbytes + 15) & ~15ull) + kGuard;
  if (shared_end > arena.size() - 16) FAIL("more than %u bytes of shared arrays", kStatic);
  statics.push_back({key, at, (u32)nbytes});
  return shim_place.shared + at;
}

// Whether the bytes are those of an array, and not of a guard.
static bool is_shared(u32 at, u64 nbytes) {
  if (at >= kGuard && at + nbytes <= kGuard + launch.shared_nbytes) return true;
  for (const Static& known : statics)
    if (at >= known.at && at + nbytes <= known.at + known.nbytes) return true;
  return false;
}

enum Access { READ, WRITE, ATOMIC };
static const char* const kVerbs[] = {"reads", "writes", "changes"};

static bool in_order(u32 other, u32 its_short) {
  return other == current->thread || (other / 32 == current->thread / 32 && its_short < short_epochs[other / 32]);
}

static void race(Access access, u32 at, u32 nbytes, const char* verb, u32 other) {
  u32 from = at - kGuard;
  if (other == kSeveral)
    FAIL("race: %s %u bytes of shared memory, from byte %u on, that other threads %s since the last barrier",
         kVerbs[access], nbytes, from, verb);
  else
    FAIL("race: %s %u bytes of shared memory, from byte %u on, that thread %u %s since the last barrier",
         kVerbs[access], nbytes, from, other, verb);
}

static void check_races(u32 at, u32 nbytes, Access access) {
  u32 own = current->thread, warp = own / 32, now = short_epochs[warp];
  for (u32 i = at; i < at + nbytes; i++) {
    Touched& byte = touched[i];
    bool both_atomic = access == ATOMIC && byte.atomic;
    if (byte.write_epoch == epoch && !both_atomic && !in_order(byte.writer, byte.write_short))
      return race(access, at, nbytes, "wrote", byte.writer);
    if (access == READ) {
      bool first = byte.read_epoch != epoch;
      if (first || (byte.readers_warp == warp && byte.read_short < now)) {
        byte.reader = (u16)own;
        byte.readers_warp = (u16)warp;
      } else {
        if (byte.reader != own) byte.reader = kSeveral;
        if (byte.readers_warp != warp) byte.readers_warp = kSeveral;
      }
      byte.read_epoch = epoch;
      byte.read_short = now;
      continue;
    }
    bool read_before = byte.readers_warp == warp && byte.read_short < now;
    if (byte.read_epoch == epoch && byte.reader != own && !read_before)
      return race(access, at, nbytes, "read", byte.reader);
    byte.write_epoch = epoch;
    byte.write_short = now;
    byte.writer = (u16)own;
    byte.atomic = access == ATOMIC;
  }
}

// Accesses ----------------------------------------------------------------------------------------------------------

static void stray(u64 at, u64 nbytes, Access access) {
  u64 nearest = ~0ull, which = 0;
  for (u32 i = 0; i < launch.num_buffers; i++) {
    const Buffer& buffer = launch.buffers[i];
    u64 end = buffer.begin + buffer.nbytes, away = at < buffer.begin ? buffer.begin - at : at >= end ? at - end : 0;
    if (away < nearest) nearest = away, which = i;
  }
  if (!launch.num_buffers || nearest > 1ull << 32) {
    FAIL("%s %llu bytes at %#llx, far from all buffers", kVerbs[access], (u64)nbytes, at);
    return;
  }
  const Buffer& buffer = launch.buffers[which];
  FAIL("%s %llu bytes at byte %lld of buffer %llu, which has %llu%s", kVerbs[access], (u64)nbytes,
       (long long)(at - buffer.begin), which, buffer.nbytes, buffer.writable ? "" : " and is only read");
}

static void check(const void* place, u64 nbytes, Access access) {
  if (!launch.checked || !current || failed || !nbytes) return;
  u64 at = (u64)place, stack = (u64)(stacks + (size_t)current->thread * kStack);
  if (at >= stack && at + nbytes <= stack + kStack) return;
  u64 shared = (u64)shim_place.shared;
  if (at >= shared && at + nbytes <= shared + arena.size()) {
    u32 from = (u32)(at - shared);
    if (!is_shared(from, nbytes)) {
      FAIL("%s %llu bytes of shared memory outside its arrays, from byte %lld on (the launch asked for %u bytes)",
           kVerbs[access], nbytes, (long long)from - kGuard, launch.shared_nbytes);
      return;
    }
    return check_races(from, (u32)nbytes, access);
  }
  for (u32 i = 0; i < launch.num_buffers; i++) {
    const Buffer& buffer = launch.buffers[i];
    if (at >= buffer.begin && at + nbytes <= buffer.begin + buffer.nbytes && (buffer.writable || access == READ))
      return;
  }
  if (access == READ && at >= module_begin && at + nbytes <= module_end) return;  // constants, and the thread's number
  stray(at, nbytes, access);
}

void shim_atomic(const void* at, u32 nbytes) {
  if ((u64)at % nbytes) FAIL("an atomic operation at an address that is no multiple of %u", nbytes);
  check(at, nbytes, ATOMIC);
}

// Copies: carried out when they are waited for, so that a wait that is missing is seen ------------------------------

void shim_copy(u32 to, const void* from, u32 nbytes, u32 copied) {
  if (to % nbytes || (u64)from % nbytes) FAIL("a copy at an address that is no multiple of %u", nbytes);
  if (copied > nbytes) FAIL("a copy of %u bytes of %u", copied, nbytes);
  if (!is_shared(to, nbytes)) FAIL("a copy to shared memory outside its arrays, to byte %lld", (long long)to - kGuard);
  check(from, copied, READ);
  current->copies.push_back({to, from, nbytes, copied, current->group});
}

void shim_commit() { current->group++; }

void shim_wait(u32 newest) {
  std::vector<Copy> later;
  for (const Copy& copy : current->copies) {
    if (copy.group + newest >= current->group) {
      later.push_back(copy);
      continue;
    }
    u8* to = shim_place.shared + copy.to;
    check(to, copy.nbytes, WRITE);
    memset(to, 0, copy.nbytes);
    memcpy(to, copy.from, copy.copied);
  }
  current->copies.swap(later);
}

// Calls of the checked build ----------------------------------------------------------------------------------------

extern "C" {
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void __tsan_init() {}
HIDDEN void __tsan_func_entry(void*) {}
HIDDEN void __tsan_func_exit() {}
#define CHECKS(name, access)                                                   \
  HIDDEN void __tsan_##name##1(void* at) { check(at, 1, access); }             \
  HIDDEN void __tsan_##name##2(void* at) { check(at, 2, access); }             \
  HIDDEN void __tsan_##name##4(void* at) { check(at, 4, access); }             \
  HIDDEN void __tsan_##name##8(void* at) { check(at, 8, access); }             \
  HIDDEN void __tsan_##name##16(void* at) { check(at, 16, access); }           \
  HIDDEN void __tsan_unaligned_##name##2(void* at) { check(at, 2, access); }   \
  HIDDEN void __tsan_unaligned_##name##4(void* at) { check(at, 4, access); }   \
  HIDDEN void __tsan_unaligned_##name##8(void* at) { check(at, 8, access); }   \
  HIDDEN void __tsan_unaligned_##name##16(void* at) { check(at, 16, access); } \
  HIDDEN void __tsan_##name##_range(void* at, unsigned long nbytes) { check(at, nbytes, access); }
CHECKS(read, READ)
CHECKS(write, WRITE)

HIDDEN void* shim_memcpy(void* to, const void* from, size_t nbytes) {
  check(from, nbytes, READ);
  check(to, nbytes, WRITE);
  return memcpy(to, from, nbytes);
}
HIDDEN void* shim_memmove(void* to, const void* from, size_t nbytes) {
  check(from, nbytes, READ);
  check(to, nbytes, WRITE);
  return memmove(to, from, nbytes);
}
HIDDEN void* shim_memset(void* to, int value, size_t nbytes) {
  check(to, nbytes, WRITE);
  return memset(to, value, nbytes);
}

// The compiler's check of alignment.
struct Misaligned {
  const void* file;
  u32 line, column;
  const void* type;
  u8 alignment_log2, kind;
};
HIDDEN void __ubsan_handle_type_mismatch_v1(Misaligned* what, u64 at) {
  if (current)
    FAIL("%s:%u uses an address that is no multiple of %u", (const char*)what->file, what->line,
         1u << what->alignment_log2);
  (void)at;
}
}
