// Where things of unlike sizes lie one behind the other that blocks of threads make at the same time. A block of
// threads takes a ticket, and with it the next thing to make. When it knows the thing's size, it tells it (kOwn), looks
// back over the things before it until one tells where it ends (kEnd), and tells where its own ends. It waits for
// earlier tickets alone, whose blocks run or ran: so none waits for ever.
//
// What is told is one number of 64 bits, zero before the launch: it is stored and read at once, so no fence is needed.
#pragma once
#include "dev.h"

constexpr u64 kOwn = 1, kEnd = 2;
constexpr u64 kNumbered = 4;  // of an end: a fact that all have from the first one on
constexpr u64 kLeft = 8;      // of an end: the thing itself is not there yet
constexpr int kToldBits = 4;

FOLDED u64 told(u64 nbytes, u64 what) { return nbytes << kToldBits | what; }
FOLDED u64 nbytes_of(u64 told) { return told >> kToldBits; }

DEV void tell(u64* place, u64 what) { *(volatile u64*)place = what; }

// Where the thing before number `thing` ends, with the facts of that, by one warp. ends[0] is never kOwn, `thing` never
// 0.
DEV u64 end_before(const u64* ends, u32 thing) {
  u32 lane = threadIdx.x & 31;
  u64 sum = 0;
  for (u32 behind = thing;; behind -= 32) {
    bool exists = lane < behind;
    u64 state;
    do state = exists ? *(const volatile u64*)(ends + behind - 1 - lane) : kOwn;
    while (__any_sync(0xffffffffu, state == 0));
    u32 known = __ballot_sync(0xffffffffu, (state & kEnd) != 0), nearest = known ? __ffs(known) - 1 : 31;
    u64 facts = __shfl_sync(0xffffffffu, state, nearest) & kNumbered;
    state = lane <= nearest ? nbytes_of(state) : 0;
#pragma unroll
    for (u32 lanes = 16; lanes; lanes /= 2) state += __shfl_xor_sync(0xffffffffu, state, lanes);
    sum += state;
    if (known) return told(sum, kEnd | facts);
  }
}
