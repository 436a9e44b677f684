// What fibers touch, and whether they may: shared memory, races, buffers, copies. Compiled without checks itself.
#include "shim_block.h"

namespace {

// Who touched a byte of shared memory last. An epoch ends at a barrier of the block, a short one at one of the warp,
// and that of a group at one of the warpgroup.
constexpr u16 kSeveral = 0xffff;
struct Touched {
  u32 write_epoch, write_short, write_group, read_epoch, read_short, read_group;
  u32 fences;  // of the writer, when it wrote
  u16 writer, reader, readers_warp, readers_group;
  bool atomic;
};

std::vector<Touched> touched;
u32 first_epoch;  // of the block

}  // namespace

void prepare_checks() { touched.resize(arena_nbytes); }

void prepare_block() { first_epoch = epoch; }

// Shared memory -----------------------------------------------------------------------------------------------------

void* shim_dynamic_shared() { return shim_place.shared + kGuard; }

void* shim_static_shared(const void* key, size_t nbytes) {
  for (const Static& known : statics)
    if (known.key == key) return shim_place.shared + known.at;
  u32 at = shared_end;
  shared_end += (u32)((nbytes + 15) & ~15ull) + kGuard;
  if (shared_end > arena_nbytes) FAIL("more than %u bytes of shared arrays", kStatic);
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

static bool in_order(u32 other, u32 its_short, u32 its_group) {
  u32 own = current->thread;
  return other == own || (other / 32 == own / 32 && its_short < short_epochs[other / 32]) ||
         (other / 128 == own / 128 && its_group < group_epochs[other / 128]);
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
  u32 own = current->thread, warp = own / 32, now = short_epochs[warp], group = own / 128, its = group_epochs[group];
  for (u32 i = at; i < at + nbytes; i++) {
    Touched& byte = touched[i];
    bool both_atomic = access == ATOMIC && byte.atomic;
    if (byte.write_epoch == epoch && !both_atomic && !in_order(byte.writer, byte.write_short, byte.write_group))
      return race(access, at, nbytes, "wrote", byte.writer);
    bool read_before =
        (byte.readers_warp == warp && byte.read_short < now) || (byte.readers_group == group && byte.read_group < its);
    if (access == READ) {
      if (byte.read_epoch != epoch || read_before) {
        byte.reader = (u16)own;
        byte.readers_warp = (u16)warp;
        byte.readers_group = (u16)group;
      } else {
        if (byte.reader != own) byte.reader = kSeveral;
        if (byte.readers_warp != warp) byte.readers_warp = kSeveral;
        if (byte.readers_group != group) byte.readers_group = kSeveral;
      }
      byte.read_epoch = epoch;
      byte.read_short = now;
      byte.read_group = its;
      continue;
    }
    if (byte.read_epoch == epoch && byte.reader != own && !read_before)
      return race(access, at, nbytes, "read", byte.reader);
    byte.write_epoch = epoch;
    byte.write_short = now;
    byte.write_group = its;
    byte.fences = current->fences;
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
  if (at >= stack && at + nbytes <= stack + kStack) {
    if (access == WRITE && current->fenced) current->written.push_back({at, nbytes});
    return;
  }
  u64 shared = (u64)shim_place.shared;
  if (at >= shared && at + nbytes <= shared + arena_nbytes) {
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

void check_wgmma(u32 at, u32 nbytes) {
  if (!is_shared(at, nbytes)) FAIL("wgmma reads shared memory outside its arrays, byte %lld", (long long)at - kGuard);
  if (!launch.checked) return;
  check(shim_place.shared + at, nbytes, READ);
  for (u32 i = at; i < at + nbytes; i++) {
    const Touched& byte = touched[i];
    if (byte.write_epoch < first_epoch) FAIL("wgmma reads byte %u of shared memory, which nobody wrote", at - kGuard);
    if (fibers[byte.writer].fences == byte.fences)
      FAIL("wgmma reads byte %u of shared memory, which thread %u wrote without a fence behind", at - kGuard,
           byte.writer);
  }
}

void shim_kept(const void* at) {
  if ((const u8*)at >= shim_place.shared && (const u8*)at < shim_place.shared + arena_nbytes)
    FAIL("an address in shared memory is taken for one in global memory");
}

void shim_atomic(const void* at, u32 nbytes) {
  if ((u64)at % nbytes) FAIL("an atomic operation at an address that is no multiple of %u", nbytes);
  check(at, nbytes, ATOMIC);
}

// Copies: carried out when they are waited for, so that a wait that is missing is seen ------------------------------

void shim_copy(u32 to, const void* from, u32 nbytes) {
  if (to % nbytes || (u64)from % nbytes) FAIL("a copy at an address that is no multiple of %u", nbytes);
  if (!is_shared(to, nbytes)) FAIL("a copy to shared memory outside its arrays, to byte %lld", (long long)to - kGuard);
  check(from, nbytes, READ);
  current->copies.push_back({to, from, nbytes, current->group});
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
    memcpy(to, copy.from, copy.nbytes);
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
