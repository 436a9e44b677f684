// Fibers run the threads of a block: see shim.h. Compiled without checks itself.
#include <link.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>

#include "shim_block.h"

Fiber* current;
Launch launch;
u8* stacks;
bool failed;
u32 arena_nbytes;
u32 epoch, short_epochs[kMostThreads / 32], group_epochs[kMostThreads / 128];
Fiber fibers[kMostThreads];
u32 shared_end;
std::vector<Static> statics;
u64 module_begin, module_end;

namespace {

void* scheduler;
u32 slots[2][kMostThreads][8];
u32 lanes_order[32];
char message[1024];
u64 random_state;

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

#if defined(__x86_64__) && !defined(SHIM_UCONTEXT)
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
static ucontext_t contexts[kMostThreads + 1];  // the last one is the scheduler's
static void shim_switch(void** from, void* to) { swapcontext((ucontext_t*)*from, (ucontext_t*)to); }
static void* prepared(u8* stack, void (*entry)()) {
  ucontext_t* context = &contexts[(stack - stacks) / kStack];
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  scheduler = &contexts[kMostThreads];
  return context;
}
#endif

void to_scheduler() { shim_switch(&current->stack_pointer, scheduler); }

void say(const char* format, ...) {
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

static void run_kernel() {
  launch.kernel(launch.arguments);
  if (!current->products.empty()) say("the kernel ends while wgmma is under way");
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
    at_block += lanes[i].wait == AT_BLOCK || lanes[i].wait == AT_SOME;
    left += lanes[i].wait == LEFT;
    if (lanes[i].wait == AT_WARP) {
      if (waiting && waiting->operation != lanes[i].operation)
        say("lanes of warp %u wait in different warp operations", warp);
      waiting = lanes + i;
    }
  }
  if (at_warp && left) say("warp operation after some lanes left: %u of warp %u", left, warp);
  if (at_warp && at_block) say("warp operation while %u lanes of warp %u wait at a barrier", at_block, warp);
  if (failed) return false;
  if (!at_warp) return any;
  if ((waiting->operation & 255) == SYNC_WARP) short_epochs[warp]++;
  for (u32 i = 0; i < 32; i++) lanes[i].wait = RUNS;
  return true;
}

// Let threads go on whose barrier of some threads is complete; whether there are any.
static bool release_some() {
  for (u32 t = 0; t < launch.threads; t++) {
    if (fibers[t].wait != AT_SOME) continue;
    u32 barrier = fibers[t].barrier, meeting = fibers[t].meeting, group = t / 128, there = 0;
    for (u32 other = t; other < launch.threads; other++) {
      const Fiber& fiber = fibers[other];
      if (fiber.wait != AT_SOME || fiber.barrier != barrier) continue;
      there++;
      if (meeting != 128 || fiber.meeting != 128 || other / 128 != group) say("a barrier of other than a warpgroup");
    }
    if (there < meeting || failed) continue;
    group_epochs[group]++;
    for (u32 other = t; other < launch.threads; other++)
      if (fibers[other].wait == AT_SOME && fibers[other].barrier == barrier) fibers[other].wait = RUNS;
    return true;
  }
  return false;
}

static void run_block() {
  u32 warps = launch.threads / 32, order[kMostThreads / 32];
  memset(shim_place.shared, 0xA5, arena_nbytes);
  statics.clear();
  shared_end = kGuard + ((launch.shared_nbytes + 15) & ~15u) + kGuard;
  epoch++;
  prepare_block();
  prepare_products();
  for (u32 w = 0; w < warps; w++) order[w] = w;
  for (u32 t = 0; t < launch.threads; t++) {
    Fiber& fiber = fibers[t];
    fiber.thread = t;
    fiber.wait = RUNS;
    fiber.parity = fiber.group = 0;
    fiber.copies.clear();
    fiber.fences = fiber.wgmma_group = fiber.issued = 0;
    fiber.fenced = false;
    fiber.written.clear();
    fiber.products.clear();
    fiber.sums.clear();
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
    if (release_some()) continue;
    if (failed) return;
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
    shim_place.shared =
        (u8*)mmap(nullptr, 2 * kApart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) +
        kApart;
    dl_iterate_phdr(find_module, nullptr);
    for (u32 i = 0; i < 32; i++) lanes_order[i] = i;
  }
  arena_nbytes = kGuard + launch.shared_nbytes + 16 + kGuard + kStatic + kGuard;
  prepare_checks();
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

// Two sets by turns: when a lane gives to a set again, all have
// read what was in it, since they have met in between.
const u32 (*exchanged(u32 operation, const u32* values, u32 count))[8] {
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

void shim_sync_some(u32 barrier, u32 threads) {
  if (!barrier || barrier > 15) FAIL("a barrier of number %u", barrier);
  current->barrier = barrier;
  current->meeting = threads;
  wait_for(AT_SOME);
}

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

double factor(u32 operation, u32 bits) {
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
