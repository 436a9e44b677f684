// NCCL's side of the profiler interface, for tests: loads the plugin by name and feeds it with events. No NCCL and no
// GPU is involved. Every case is a process of its own, since a process has one page.
#pragma once
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "nccl_profiler.h"
#include "page.h"
#include "tests/check.h"

namespace tw::nccl {

using probe::Page;
using probe::Slot;

constexpr uint64_t kHash = 0x0b5a64a1f36c1fd2;
constexpr int kRank = 3;

inline char directory[] = P_tmpdir "/tensorwire-nccl-XXXXXX";
inline std::string page_path;

inline Page read_page() {
  Page page;
  CHECK(tw_probe_read_page(page_path.c_str(), &page) == 0);
  return page;
}

inline const Slot* find_slot(const Page& page, uint64_t id) {
  for (const Slot& slot : page.slots) {
    if (slot.id == id) return &slot;
  }
  return nullptr;
}

inline Slot read_slot(uint64_t id = kHash) {
  const Page page = read_page();
  const Slot* slot = find_slot(page, id);
  CHECK(slot != nullptr && slot->lock % 2 == 0);
  return *slot;
}

inline void* load() {
  void* library = dlopen(TW_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(library != nullptr);
  return library;
}

inline void ignore_log(int, unsigned long, const char*, int, const char*, ...) {}

inline int call_init(ProfilerV3& profiler, void** context, int* mask, uint64_t, int) {
  return profiler.init(context, mask);
}

inline int call_init(ProfilerV4& profiler, void** context, int* mask, uint64_t hash, int size) {
  return profiler.init(context, mask, "tensor_parallel", hash, 2, size, kRank, ignore_log);
}

inline int call_init(ProfilerV5& profiler, void** context, int* mask, uint64_t hash, int size) {
  return profiler.init(context, hash, mask, "tensor_parallel", 2, size, kRank, ignore_log);
}

// Whether the plugin refuses a communicator.
inline bool is_refused(uint64_t hash = kHash, int size = 8) {
  auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
  void* context = nullptr;
  int mask = 0;
  return call_init(*profiler, &context, &mask, hash, size) != 0 && mask == 0;
}

// Runs in a child, which has to end well.
template <class Body>
void in_child(Body&& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

inline CollLaunch& launch_in(CollLaunch& coll, uint64_t) { return coll; }
inline P2pLaunch& launch_in(P2pLaunch& p2p, uint64_t) { return p2p; }

template <class Named>
auto& launch_in(Named& named, uint64_t hash) {
  named.name = "tensor_parallel";
  named.commHash = hash;
  return named.launch;
}

inline void set_timer(KernelChV3&, uint64_t) {}
inline void set_timer(KernelCh& channel, uint64_t timer) { channel.pTimer = timer; }

// NCCL's side of one communicator. Descriptors are filled with garbage wherever NCCL leaves them alone.
template <class Profiler, class Descr>
class Nccl {
 public:
  explicit Nccl(const char* symbol, uint64_t hash = kHash, int size = 8) : hash_(hash) {
    profiler_ = static_cast<Profiler*>(dlsym(load(), symbol));
    CHECK(profiler_ != nullptr && std::strcmp(profiler_->name, "tensorwire") == 0);
    int mask = 0;
    CHECK(call_init(*profiler_, &context_, &mask, hash, size) == 0 && context_ != nullptr);
    CHECK(mask == (kEventColl | kEventP2p | kEventProxyOp | kEventProxyStep | kEventKernelCh));
  }

  void* coll(const char* function = "AllReduce", size_t count = 1000, const char* dtype = "ncclFloat32", int root = 0) {
    Descr descr = blank(kEventColl, group());
    launch_in(descr.coll, hash_) = {7, function, nullptr, nullptr, count, root, dtype};
    return start(descr);
  }

  void* p2p(const char* function, int peer) {
    Descr descr = blank(kEventP2p, group());
    launch_in(descr.p2p, hash_) = {function, nullptr, "ncclBfloat16", 64, peer};
    return start(descr);
  }

  void* channel(void* task, uint64_t timer = 0) {
    Descr descr = blank(kEventKernelCh, task);
    set_timer(descr.kernelCh, timer);
    return start(descr);
  }

  void* proxy_op(void* task, bool is_send, int pid = getpid()) {
    Descr descr = blank(kEventProxyOp, task);
    descr.proxyOp = {pid, 1, 2, 10, 4096, is_send};
    return start(descr);
  }

  void* step(void* op) {
    Descr descr = blank(kEventProxyStep, op);
    return start(descr);
  }

  void* group() {
    Descr descr = blank(kEventGroup, nullptr);
    return start(descr);
  }

  void* other(uint64_t type, void* parent_handle) {
    Descr descr = blank(type, parent_handle);
    return start(descr);
  }

  void stop(void* event) { CHECK(profiler_->stopEvent(event) == 0); }

  void transfer(void* op, size_t nbytes) {
    void* event = step(op);
    EventStateArgs args = {};
    record(event, 8, &args);
    args.proxyStep.transSize = nbytes;
    record(event, kStepSendWait, &args);
    stop(event);
  }

  void end(void* channel_event, uint64_t timer) {
    EventStateArgs args = {};
    args.kernelCh.pTimer = timer;
    record(channel_event, kKernelChStop, &args);
    stop(channel_event);
  }

  void run(void* task) { end(channel(task, 100), 200); }

  void record(void* event, int state, EventStateArgs* args) {
    CHECK(profiler_->recordEventState(event, state, args) == 0);
  }

  void finalize() { CHECK(profiler_->finalize(context_) == 0); }

 private:
  static Descr blank(uint64_t type, void* parent_handle) {
    Descr descr;
    std::memset(static_cast<void*>(&descr), 0xa5, sizeof(descr));
    descr.type = static_cast<decltype(descr.type)>(type);
    descr.parentObj = parent_handle;
    descr.rank = kRank;
    return descr;
  }

  void* start(Descr& descr) {
    void* handle = &descr;
    CHECK(profiler_->startEvent(context_, &handle, &descr) == 0 && handle != &descr);
    return handle;
  }

  Profiler* profiler_;
  void* context_ = nullptr;
  uint64_t hash_;
};

using Nccl3 = Nccl<ProfilerV3, EventDescrV3>;
using Nccl4 = Nccl<ProfilerV4, EventDescrV4>;
using Nccl5 = Nccl<ProfilerV5, EventDescrV5>;

struct Nccl6 : Nccl5 {
  explicit Nccl6(uint64_t hash = kHash, int size = 8) : Nccl5("ncclProfiler_v6", hash, size) {}
};

inline bool is_open(const Slot& slot) { return (slot.flags & probe::kOpen) != 0; }

inline void check_counts(const Slot& slot, uint64_t enqueued, uint32_t completed) {
  CHECK(slot.enqueued == enqueued && slot.completed == completed && is_open(slot) == (enqueued > completed));
}

struct Case {
  const char* name;
  void (*run)();
};

// The exit status of a test program.
template <size_t kNum>
int run_cases(const Case (&cases)[kNum]) {
  CHECK(mkdtemp(directory) != nullptr);
  page_path = std::string(directory) + "/rank-3-1.nccl.page";
  setenv("TENSORWIRE_PROBE_DIR", directory, 1);
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "16", 1);
  setenv("LOCAL_RANK", "3", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  int failed = 0;
  for (const Case& one : cases) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      one.run();
      std::exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) std::fprintf(stderr, "failed: %s\n", one.name), ++failed;
    unlink(page_path.c_str());
    unlink((std::string(directory) + "/control").c_str());
    chmod(directory, 0700);
  }
  rmdir(directory);
  return failed == 0 ? 0 : 1;
}

}  // namespace tw::nccl

#define TW_CASE(function) {#function, function}
