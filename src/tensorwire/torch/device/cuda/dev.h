// What kernels need of the device, for nvcc and NVRTC. Tests compile kernels with g++ and a header that takes its
// place.
#ifndef TENSORWIRE_DEV_H
#define TENSORWIRE_DEV_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEV static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define FOLDED __host__ __device__ constexpr  // functions that are called when a kernel is compiled
#define COLD static __device__ __noinline__   // rare code, which would only push the common code apart
#define GLOBAL __global__
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)  // of a block; blocks at once on a processor
#define CONSTANT static __device__ __constant__ const

// Memory that the threads of a block share: as much as the launch asks for, or an array of fixed size.
#define SHARED(type, name) extern __shared__ __align__(16) type name[]
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]

// Bytes -------------------------------------------------------------------------------------------------------------

// Byte i is byte `selector >> 4 * i & 7` of the eight of low and high. __byte_perm masks the selector once more.
DEV u32 prmt(u32 low, u32 high, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
  return r;
}

// Bits of a where the mask has ones, else of b. The compiler makes two instructions of the expression.
DEV u32 bits_of(u32 mask, u32 a, u32 b) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
  return r;
}

// Bits in which a and b differ, and what they share with c, or have together with c.
DEV u32 unlike_and(u32 a, u32 b, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEV u32 unlike_or(u32 a, u32 b, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xBE;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// a * factor + b. The compiler makes two instructions of the expression if it sees that no bits meet.
DEV u32 add_scaled(u32 a, u32 factor, u32 b) {
  u32 r;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(factor), "r"(b));
  return r;
}

// Byte k of `octets`, added to `sum`.
DEV u32 add_byte(u32 octets, int k, u32 sum) { return __dp4a(octets, 1u << 8 * k, sum); }

// The products of the signed bytes of a and b, added to `sum`.
DEV u32 add_products(u32 a, u32 b, u32 sum) { return (u32)__dp4a((int)a, (int)b, (int)sum); }

// sum + a * b, all bits of the product.
DEV u64 add_product(u32 a, u32 b, u64 sum) {
  u64 r;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(r) : "r"(a), "r"(b), "l"(sum));
  return r;
}

// All four bytes, added to `sum`.
DEV u32 add_bytes(u32 octets, u32 sum) { return __dp4a(octets, 0x01010101u, sum); }

// 255 in each byte whose highest bit is set, else 0.
DEV u32 sign_bytes(u32 octets) { return prmt(octets, 0, 0xba98); }

// Plus the sum of the lane `distance` before this one, if it is one of the same LANES. All lanes of a warp take part.
template <int LANES>
DEV u32 add_before(u32 sum, int distance) {
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      ".reg .u32 other;\n"
      "shfl.sync.up.b32 other|exists, %0, %1, %2, 0xffffffff;\n"
      "@exists add.u32 %0, %0, other;\n"
      "}"
      : "+r"(sum)
      : "r"(distance), "n"((32 - LANES) << 8));
  return sum;
}

// The same address in global memory, which a loop then keeps: else the compiler may add up its parts anew each time.
template <class T>
DEV T* kept(T* address) {
  size_t global = __cvta_generic_to_global(address);
  asm("" : "+l"(global));
  return (T*)__cvta_global_to_generic(global);
}

// The same of an address in any memory.
template <class T>
DEV T* kept_anywhere(T* address) {
  asm("" : "+l"(address));
  return address;
}

// A number that a loop then keeps, for the same reason.
DEV u32 kept(u32 number) {
  asm("" : "+r"(number));
  return number;
}

// Shared memory by 32-bit addresses -------------------------------------------------------------------------------

typedef u32 shared_at;

DEV shared_at shared_address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

DEV u32 lds32(shared_at at) {
  u32 r;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(at));
  return r;
}

// The word behind the one at `at`: the sum stands in the instruction.
DEV u32 lds32_next(shared_at at) {
  u32 r;
  asm volatile("ld.shared.u32 %0, [%1+4];" : "=r"(r) : "r"(at));
  return r;
}

// Set bits of the word OFFSET bytes behind `at`, at once with others that do.
template <int OFFSET>
DEV void or_shared(shared_at at, u32 bits) {
  asm volatile("red.shared.or.b32 [%0+%2], %1;" ::"r"(at), "r"(bits), "n"(OFFSET) : "memory");
}

// Four matrices of 8 rows by 16 bytes: lane 8 * i + r has the address of row r of the i-th, and lane 4 * r + t gets the
// t-th word of row r of each.
DEV void lds_matrices(u32* words, shared_at at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}

// The same words back.
DEV void sts_matrices(shared_at at, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Copies to shared memory that this thread does not wait for at once. What it copied itself is there after
// copies_wait, what others copied after a barrier behind it.

DEV void copy16(shared_at to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

DEV void copy4(shared_at to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

DEV void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most the newest N groups are under way.
template <int N>
DEV void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Numbers -----------------------------------------------------------------------------------------------------------

// c += a * b for tiles of 16 by 16 and 16 by 8 numbers, spread over a warp as PTX says (m16n8k16, row.col).
DEV void mma_bf16(float* c, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV void mma_f16(float* c, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A barrier of some threads of a block, of whole warps; `barrier` is 1 to 15.
DEV void sync_some(u32 barrier, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Products by warpgroups: sm_90a only. See wgmma.cuh.

// What this thread stored in shared memory is there for wgmma, after a barrier behind this.
DEV void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers that were written are there for wgmma.
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most the newest N groups are under way.
template <int N>
DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Four sums that were waited for: the compiler reads them no earlier.
DEV void wgmma_done(float* c) { asm volatile("" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory"); }

#define FOUR(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])

// c += a * b for tiles of 64 by 16 and 16 by 8 * NB numbers, of which each warp has 16 rows, as in mma_bf16.
template <u32 NB>
DEV void wgmma_bf16(float (*c)[4], const u32* a, u64 b) {
  static_assert(NB == 4 || NB == 6 || NB == 8, "32, 48 or 64 inputs");
  if constexpr (NB == 4)
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
        : FOUR(0), FOUR(1), FOUR(2), FOUR(3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  if constexpr (NB == 6)
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, "
        "{%24,%25,%26,%27}, %28, p, 1, 1, 0;\n}"
        : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  if constexpr (NB == 8)
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
        : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef FOUR

// The nearest number of 16 bits, even on a tie, and back. Not for NaN, whose bits differ from torch's.
DEV u32 f16_of(float value) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(value));
  return r;
}

DEV float float_of_f16(u32 bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((u16)bits));
  return r;
}

#endif
