// NCCL's profiler plugin, as NCCL sees it. What goes wrong stays here: the plugin turns itself off, and training goes
// on.
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "nccl_events.h"
#include "nccl_page.h"
#include "nccl_profiler.h"

namespace tw::nccl {
namespace {

constexpr int kWanted = kEventColl | kEventP2p | kEventProxyOp | kEventProxyStep | kEventKernelCh;
constexpr int kSuccess = 0;
constexpr int kSystemError = 2;  // ncclSystemError
constexpr int kLogInfo = 3;
constexpr unsigned long kLogInit = 1;

std::mutex page_mutex;
probe::Probe* page = nullptr;
pid_t page_pid = 0;

// The page is made with the first communicator and kept until the process ends: the last communicator may not be the
// last for good.
int open_page(int rank, int size, LogFunction log) {
  const std::lock_guard lock(page_mutex);
  if (page != nullptr) return page_pid == getpid() ? kSuccess : kSystemError;
  PagePaths paths;
  const probe::Identity identity = identify_process(rank, size);
  const int error = create_page(identity, &paths, &page);
  if (log != nullptr) {
    const char* outcome = error == 0 ? "written" : std::strerror(error);
    log(kLogInfo, kLogInit, __FILE__, __LINE__, "tensorwire-job: page %s: %s", paths.page, outcome);
  }
  if (error != 0) return kSystemError;
  page_pid = getpid();
  begin(page, identity.world_size, paths.control);
  return kSuccess;
}

int init(void** context, int* mask, uint64_t hash, const char* name, int size, int rank, LogFunction log) {
  *context = nullptr;
  const int error = open_page(rank, size, log);
  if (error != kSuccess) return error;
  *mask = kWanted;
  *context = open_communicator(hash, name, size > 0 ? static_cast<uint64_t>(size) : 0);
  return kSuccess;
}

int init_v3(void** context, int* mask) { return init(context, mask, 0, nullptr, 0, 0, nullptr); }

int init_v4(void** context, int* mask, const char* name, uint64_t hash, int, int size, int rank, LogFunction log) {
  return init(context, mask, hash, name, size, rank, log);
}

int init_v5(void** context, uint64_t hash, int* mask, const char* name, int, int size, int rank, LogFunction log) {
  return init(context, mask, hash, name, size, rank, log);
}

int finalize(void* context) {
  close_communicator(context);
  return kSuccess;
}

const CollLaunch& launch_of(void*, const CollLaunch& coll) { return coll; }
const P2pLaunch& launch_of(void*, const P2pLaunch& p2p) { return p2p; }

template <class Named>
auto launch_of(void* context, const Named& named) -> decltype((named.launch)) {
  identify(context, named.commHash, named.name);
  return named.launch;
}

uint64_t timer_of(const KernelCh& channel) { return channel.pTimer; }
uint64_t timer_of(const KernelChV3&) { return 0; }

template <class Descr>
int start_event(void* context, void** handle, Descr* descr) {
  *handle = nullptr;
  switch (uint64_t{descr->type}) {
    case kEventColl: {
      const CollLaunch& coll = launch_of(context, descr->coll);
      *handle = start_task(context, {coll.func, coll.datatype, coll.count, coll.root, descr->rank, false});
      break;
    }
    case kEventP2p: {
      const P2pLaunch& p2p = launch_of(context, descr->p2p);
      *handle = start_task(context, {p2p.func, p2p.datatype, p2p.count, p2p.peer, descr->rank, true});
      break;
    }
    case kEventProxyOp: {
      const ProxyOp& op = descr->proxyOp;
      const bool is_ours = op.pid == page_pid;  // else context and parent are addresses of another process
      if (is_ours) *handle = start_proxy_op(context, op.isSend != 0, op.chunkSize > 0 ? op.chunkSize : 0);
      break;
    }
    case kEventProxyStep:
      *handle = start_step(descr->parentObj);
      break;
    case kEventKernelCh:
      *handle = start_channel(descr->parentObj, timer_of(descr->kernelCh));
      break;
    case kEventGroup:
    case kEventGroupApi:
    case kEventCollApi:
    case kEventP2pApi:
      *handle = unkept();
      break;
    default:
      break;
  }
  return kSuccess;
}

int stop_event(void* handle) {
  stop(handle);
  return kSuccess;
}

int record_event_state_v3(void*, int, EventStateArgs*) { return kSuccess; }

int record_event_state(void* handle, int state, EventStateArgs* args) {
  if (args == nullptr) return kSuccess;
  switch (state) {
    case kStepSendWait:
    case kStepRecvFlushWait:
    case kStepRecvGpuWait:
      record_step_size(handle, args->proxyStep.transSize);
      break;
    case kKernelChStop:
      record_channel_end(handle, args->kernelCh.pTimer);
      break;
    default:
      break;
  }
  return kSuccess;
}

}  // namespace
}  // namespace tw::nccl

#define TW_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

#define TW_NCCL_FUNCTIONS(init, record) \
  {"tensorwire", tw::nccl::init, tw::nccl::start_event, tw::nccl::stop_event, tw::nccl::record, tw::nccl::finalize}

TW_NCCL_EXPORT tw::nccl::ProfilerV3 ncclProfiler_v3;
TW_NCCL_EXPORT tw::nccl::ProfilerV4 ncclProfiler_v4;
TW_NCCL_EXPORT tw::nccl::ProfilerV5 ncclProfiler_v5;
TW_NCCL_EXPORT tw::nccl::ProfilerV6 ncclProfiler_v6;

tw::nccl::ProfilerV3 ncclProfiler_v3 = TW_NCCL_FUNCTIONS(init_v3, record_event_state_v3);
tw::nccl::ProfilerV4 ncclProfiler_v4 = TW_NCCL_FUNCTIONS(init_v4, record_event_state);
tw::nccl::ProfilerV5 ncclProfiler_v5 = TW_NCCL_FUNCTIONS(init_v5, record_event_state);
tw::nccl::ProfilerV6 ncclProfiler_v6 = TW_NCCL_FUNCTIONS(init_v5, record_event_state);
