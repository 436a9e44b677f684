// The binary interface of NCCL's profiler plugins, versions 3 to 6, as far as a plugin sees it. Written from the facts
// in NCCL's public headers (src/include/plugin/nccl_profiler.h and profiler/profiler_v3.h to v6.h) and its
// documentation (ext-profiler/README.md).
//
// NCCL loads the library that NCCL_PROFILER_PLUGIN names and takes the symbol ncclProfiler_vN of the highest N that it
// knows itself: v3 since NCCL 2.26, v4 since 2.27, v5 since 2.28, v6 since 2.29. Later releases still take a v6. v1 and
// v2 (2.23 to 2.25) have no event that says when a GPU begins or ends, and are left out.
//
// `init` is called for every communicator, `finalize` when it is destroyed. Between them any thread of NCCL may call
// `startEvent`, which gives the event a handle; `recordEventState` and `stopEvent` take the handle alone. All return 0;
// an `init` that does not turns the plugin off.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace tw::nccl {

enum EventType : uint64_t {
  kEventGroup = 1 << 0,
  kEventColl = 1 << 1,  // host: launch of a collective; it stops when the launch is over, not the collective
  kEventP2p = 1 << 2,
  kEventProxyOp = 1 << 3,    // proxy thread: one operation's transfers with one peer over one channel
  kEventProxyStep = 1 << 4,  // proxy thread: one of those transfers; of sent data until the network has taken it
  kEventProxyCtrl = 1 << 5,
  kEventKernelCh = 1 << 6,  // GPU: one channel of an operation, as the proxy thread sees it begin and end
  kEventNetPlugin = 1 << 7,
  kEventGroupApi = 1 << 8,
  kEventCollApi = 1 << 9,
  kEventP2pApi = 1 << 10,
  kEventKernelLaunch = 1 << 11,
};

// The states of interest; version 3 numbers the states of steps alike, but has no KernelChStop.
enum EventState : int {
  kStepSendWait = 9,        // handed to the network
  kStepRecvFlushWait = 11,  // received
  kStepRecvGpuWait = 12,
  kKernelChStop = 22,
};

struct P2pLaunch {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;  // rank within the communicator
};

struct CollLaunch {
  uint64_t seqNumber;  // counts operations of this kind alone
  const char* func;
  const void* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
};

struct ProxyOp {
  pid_t pid;  // of the process that launched the operation: with PXN, NCCL's proxy threads also work for others
  uint8_t channelId;
  int peer;
  int nSteps;
  int chunkSize;
  int isSend;
};

// Members that end a union of NCCL's and that are not read here are left out: descriptors are NCCL's, never ours.
template <class Type, class Coll, class P2p, class Kernel>
struct EventDescr {
  Type type;
  void* parentObj;  // handle of the event that this one belongs to
  int rank;
  union {
    Coll coll;
    P2p p2p;
    ProxyOp proxyOp;
    Kernel kernelCh;
  };
};

// Version 3 names the communicator with every launch.
struct CollLaunchV3 {
  const char* name;
  uint64_t commHash;
  CollLaunch launch;
};

struct P2pLaunchV3 {
  const char* name;
  uint64_t commHash;
  P2pLaunch launch;
};

struct KernelChV3 {
  uint8_t channelId;
};

struct KernelCh {
  uint8_t channelId;
  uint64_t pTimer;  // the GPU's clock in nanoseconds
};

using EventDescrV3 = EventDescr<uint8_t, CollLaunchV3, P2pLaunchV3, KernelChV3>;
using EventDescrV4 = EventDescr<uint8_t, CollLaunch, P2pLaunch, KernelCh>;
using EventDescrV5 = EventDescr<uint64_t, CollLaunch, P2pLaunch, KernelCh>;  // and V6

union EventStateArgs {
  struct {
    size_t transSize;
  } proxyStep;
  struct {
    uint64_t pTimer;
  } kernelCh;
};

using LogFunction = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

template <class Descr, class... InitArgs>
struct Profiler {
  const char* name;
  int (*init)(void** context, InitArgs...);
  int (*startEvent)(void* context, void** handle, Descr* descr);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, EventStateArgs* args);
  int (*finalize)(void* context);
};

// After the context: the events that the plugin wants, and from version 4 on the communicator.
using ProfilerV3 = Profiler<EventDescrV3, int* /* activation mask */>;
using ProfilerV4 = Profiler<EventDescrV4, int*, const char* /* name */, uint64_t /* hash */, int /* nodes */,
                            int /* ranks */, int /* rank */, LogFunction>;
using ProfilerV5 = Profiler<EventDescrV5, uint64_t, int*, const char*, int, int, int, LogFunction>;
using ProfilerV6 = ProfilerV5;

}  // namespace tw::nccl
