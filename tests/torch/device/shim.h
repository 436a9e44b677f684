// CUDA for g++: takes the place of dev.h, so that kernels run on a CPU. The threads of a block are fibers that switch
// at warp operations, barriers and waits; shim.cpp is their scheduler, and checks what they touch. For tests.
#ifndef TENSORWIRE_DEV_H
#define TENSORWIRE_DEV_H

#include <stddef.h>

#ifndef SHIM_SCHEDULER
// The compiler's own calls go there too, whose addresses are then checked as those of other loads and stores.
extern "C" void* memcpy(void* to, const void* from, size_t nbytes) asm("shim_memcpy");
extern "C" void* memmove(void* to, const void* from, size_t nbytes) asm("shim_memmove");
extern "C" void* memset(void* to, int value, size_t nbytes) asm("shim_memset");
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(8) uint2 {
  u32 x, y;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};

struct Index {
  u32 x, y, z;
};

#define SHIM(result) extern "C" __attribute__((visibility("hidden"))) result
#define UNCHECKED __attribute__((noinline, no_sanitize("thread", "alignment")))

struct ShimPlace {
  Index thread, block, threads, blocks;
  u8* shared;  // all of it, with the guards: addresses count from here
};
extern "C" __attribute__((visibility("hidden"))) ShimPlace shim_place;
#define threadIdx shim_place.thread
#define blockIdx shim_place.block
#define blockDim shim_place.threads
#define gridDim shim_place.blocks

enum ShimOperation {
  SHUFFLE = 1,
  SHUFFLE_UP,
  BALLOT,
  MMA_BF16,
  MMA_F16,
  SYNC_WARP,
  LOAD_MATRICES,
  STORE_MATRICES,
  WGMMA
};

SHIM(u32) shim_shuffle(u32 operation, u32 mask, u32 value, u32 lane, u32 width);
SHIM(u32) shim_ballot(u32 mask, bool value);
SHIM(void) shim_mma(u32 operation, float* c, const u32* a, const u32* b);
SHIM(void) shim_sync_warp();
SHIM(void) shim_sync_threads();
SHIM(void) shim_sync_some(u32 barrier, u32 threads);
SHIM(void) shim_matrices(u32 operation, u32* words);
SHIM(void) shim_fence_for_wgmma();
SHIM(void) shim_wgmma_fence();
SHIM(void) shim_wgmma(u32 nb, float* c, const u32* a, u64 b);
SHIM(void) shim_wgmma_commit();
SHIM(void) shim_wgmma_wait(u32 newest);
SHIM(void*) shim_dynamic_shared();
SHIM(void*) shim_static_shared(const void* key, size_t nbytes);
SHIM(void) shim_copy(u32 to, const void* from, u32 nbytes);
SHIM(void) shim_commit();
SHIM(void) shim_wait(u32 newest);
SHIM(void) shim_atomic(const void* at, u32 nbytes);
SHIM(void) shim_kept(const void* at);
SHIM(u32) shim_f16_of(float value);
SHIM(float) shim_float_of_f16(u32 bits);

#define DEV static inline
#define METHOD inline
#define FOLDED constexpr
#define COLD static __attribute__((noinline))
#define GLOBAL static
#define BOUNDS(threads, blocks)
#define CONSTANT static const
#define __restrict__
#define SHARED(type, name) type* const name = (type*)shim_dynamic_shared()
#define SHARED_ARRAY(type, name, count) \
  static char name##_key;               \
  type(&name)[count] = *(type(*)[count])shim_static_shared(&name##_key, sizeof(type) * (count))

// Bytes and bits ----------------------------------------------------------------------------------------------------

DEV u32 prmt(u32 a, u32 b, u32 selector) {
  u64 both = a | (u64)b << 32;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 nibble = selector >> 4 * i & 15, octet = both >> 8 * (nibble & 7) & 255;
    r |= (nibble & 8 ? (octet & 128 ? 255u : 0u) : octet) << 8 * i;
  }
  return r;
}
DEV u32 sign_bytes(u32 octets) { return prmt(octets, 0, 0xba98); }
DEV u32 bits_of(u32 mask, u32 a, u32 b) { return (mask & a) | (~mask & b); }
DEV u32 unlike_and(u32 a, u32 b, u32 c) { return (a ^ b) & c; }
DEV u32 unlike_or(u32 a, u32 b, u32 c) { return (a ^ b) | c; }
DEV u32 __funnelshift_r(u32 low, u32 high, u32 shift) { return (u32)((low | (u64)high << 32) >> (shift & 31)); }
DEV u32 __funnelshift_l(u32 low, u32 high, u32 shift) { return (u32)((low | (u64)high << 32) << (shift & 31) >> 32); }
DEV int __popc(u32 v) { return __builtin_popcount(v); }
DEV int __ffs(u32 v) { return __builtin_ffs(v); }
DEV int __clz(u32 v) { return v ? __builtin_clz(v) : 32; }
DEV u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEV u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
template <class T>
DEV T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
DEV T max(T a, T b) {
  return a < b ? b : a;
}
DEV u32 __float_as_uint(float v) { return __builtin_bit_cast(u32, v); }
DEV float __uint_as_float(u32 v) { return __builtin_bit_cast(float, v); }
DEV u32 f16_of(float value) { return shim_f16_of(value); }
DEV float float_of_f16(u32 bits) { return shim_float_of_f16(bits); }
DEV u64 add_product(u32 a, u32 b, u64 sum) { return sum + (u64)a * b; }
DEV u32 add_scaled(u32 a, u32 factor, u32 b) { return a * factor + b; }
DEV u32 add_byte(u32 octets, int k, u32 sum) { return sum + (octets >> 8 * k & 255); }
DEV u32 add_bytes(u32 octets, u32 sum) {
  for (int k = 0; k < 4; k++) sum = add_byte(octets, k, sum);
  return sum;
}
DEV u32 add_products(u32 a, u32 b, u32 sum) {
  for (int k = 0; k < 4; k++) sum += (signed char)(a >> 8 * k) * (signed char)(b >> 8 * k);
  return sum;
}
template <class T>
DEV T __ldg(const T* at) {
  return *at;
}
DEV u32 kept(u32 number) { return number; }
template <class T>
DEV T* kept(T* address) {
  shim_kept(address);
  return address;
}
template <class T>
DEV T* kept_anywhere(T* address) {
  return address;
}

// Threads -----------------------------------------------------------------------------------------------------------

DEV u32 __shfl_sync(u32 mask, u32 value, u32 lane, u32 width = 32) {
  return shim_shuffle(SHUFFLE, mask, value, lane, width);
}
DEV u32 __shfl_up_sync(u32 mask, u32 value, u32 delta, u32 width = 32) {
  return shim_shuffle(SHUFFLE_UP, mask, value, delta, width);
}
DEV u64 __shfl_sync(u32 mask, u64 value, u32 lane, u32 width = 32) {
  u32 low = __shfl_sync(mask, (u32)value, lane, width);
  return low | (u64)__shfl_sync(mask, (u32)(value >> 32), lane, width) << 32;
}
template <class T>
DEV T __shfl_xor_sync(u32 mask, T value, u32 lanes) {
  return __shfl_sync(mask, value, (threadIdx.x & 31) ^ lanes);
}
template <int LANES>
DEV u32 add_before(u32 sum, int distance) {
  u32 other = __shfl_up_sync(0xffffffffu, sum, distance, LANES);
  return threadIdx.x % LANES >= (u32)distance ? sum + other : sum;
}
DEV u32 __ballot_sync(u32 mask, bool value) { return shim_ballot(mask, value); }
DEV bool __any_sync(u32 mask, bool value) { return shim_ballot(mask, value) != 0; }
DEV u32 __reduce_max_sync(u32 mask, u32 value) {
  for (u32 lanes = 1; lanes < 32; lanes *= 2) {
    u32 other = __shfl_xor_sync(mask, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}
DEV u32 __reduce_add_sync(u32 mask, u32 value) {
  for (u32 lanes = 1; lanes < 32; lanes *= 2) value += __shfl_xor_sync(mask, value, lanes);
  return value;
}
DEV void __syncwarp(u32 = 0xffffffffu) { shim_sync_warp(); }
DEV void __syncthreads() { shim_sync_threads(); }
DEV void mma_bf16(float* c, const u32* a, const u32* b) { shim_mma(MMA_BF16, c, a, b); }
DEV void mma_f16(float* c, const u32* a, const u32* b) { shim_mma(MMA_F16, c, a, b); }
DEV void sync_some(u32 barrier, u32 threads) { shim_sync_some(barrier, threads); }
DEV void fence_for_wgmma() { shim_fence_for_wgmma(); }
DEV void wgmma_fence() { shim_wgmma_fence(); }
DEV void wgmma_commit() { shim_wgmma_commit(); }
template <int N>
DEV void wgmma_wait() {
  shim_wgmma_wait(N);
}
DEV void wgmma_done(float*) {}
template <u32 NB>
DEV void wgmma_bf16(float (*c)[4], const u32* a, u64 b) {
  shim_wgmma(NB, c[0], a, b);
}

// Fibers run one at a time, so that these need no more than the right address.
#define SHIM_ATOMIC(name, new_value)          \
  template <class T, class V>                 \
  UNCHECKED static T name(T* at, V operand) { \
    shim_atomic(at, sizeof(T));               \
    T old = *at, value = (T)operand;          \
    *at = (new_value);                        \
    return old;                               \
  }
SHIM_ATOMIC(atomicAdd, (T)(old + value))
SHIM_ATOMIC(atomicMin, value < old ? value : old)
SHIM_ATOMIC(atomicMax, value > old ? value : old)
SHIM_ATOMIC(atomicOr, (T)(old | value))
SHIM_ATOMIC(atomicExch, value)
DEV void __threadfence() {}

// Shared memory by 32-bit addresses -------------------------------------------------------------------------------

typedef u32 shared_at;

DEV shared_at shared_address(const void* place) { return (u32)((const u8*)place - shim_place.shared); }
DEV u32 lds32(shared_at at) { return *(const u32*)(shim_place.shared + at); }
DEV u32 lds32_next(shared_at at) { return lds32(at + 4); }
template <int OFFSET>
DEV void or_shared(shared_at at, u32 bits) {
  atomicOr((u32*)(shim_place.shared + at + OFFSET), bits);
}
DEV void lds_matrices(u32* words, shared_at at) {
  uint4 row = *(const uint4*)(shim_place.shared + at);
  words[0] = row.x, words[1] = row.y, words[2] = row.z, words[3] = row.w;
  shim_matrices(LOAD_MATRICES, words);
}
DEV void sts_matrices(shared_at at, u32 a, u32 b, u32 c, u32 d) {
  u32 words[4] = {a, b, c, d};
  shim_matrices(STORE_MATRICES, words);
  *(uint4*)(shim_place.shared + at) = {words[0], words[1], words[2], words[3]};
}
DEV void copy16(shared_at to, const void* from) { shim_copy(to, from, 16); }
DEV void copy4(shared_at to, const void* from) { shim_copy(to, from, 4); }
DEV void copies_commit() { shim_commit(); }
template <int N>
DEV void copies_wait() {
  shim_wait(N);
}

// Launches ----------------------------------------------------------------------------------------------------------

// A kernel as the host sees it: a letter for each parameter ("r" an address that it reads, "w" one that it writes too,
// "v" a value), and a function that takes addresses of the arguments.
template <class T>
struct ShimLetter {
  static constexpr char value = 'v';
};
template <class T>
struct ShimLetter<T*> {
  static constexpr char value = 'w';
};
template <class T>
struct ShimLetter<const T*> {
  static constexpr char value = 'r';
};
template <size_t... I>
struct ShimNumbers {};
template <auto kernel>
struct ShimKernel;
template <class... P, void (*kernel)(P...)>
struct ShimKernel<kernel> {
  static constexpr char parameters[] = {ShimLetter<P>::value..., 0};
  template <size_t... I>
  UNCHECKED static void call_with(void** arguments, ShimNumbers<I...>) {
    void (*volatile unknown)(P...) = kernel;  // else it would become part of this function, and not be checked
    unknown(*(P*)arguments[I]...);
  }
  UNCHECKED static void call(void** arguments) { call_with(arguments, ShimNumbers<__integer_pack(sizeof...(P))...>()); }
};

#endif
