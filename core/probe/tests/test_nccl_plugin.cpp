// The NCCL profiler plugin as NCCL uses it: loaded by name, fed with sequences of events, judged by the frame it
// leaves. No NCCL and no GPU is involved. Every case is a process of its own, since a process has one frame.
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "probe/frame.h"
#include "probe/nccl_profiler.h"
#include "tests/check.h"

using namespace tw::nccl;
using tw::probe::Frame;
using tw::probe::Slot;

namespace {

// Offsets that NVIDIA's structures have on LP64 machines, counted by hand.
template <class Descr, size_t kLaunch>
constexpr bool has_layout() {
  return offsetof(Descr, parentObj) == 8 && offsetof(Descr, rank) == 16 && offsetof(Descr, coll) == 24 &&
         offsetof(Descr, p2p) == 24 && offsetof(Descr, proxyOp) == 24 && offsetof(Descr, kernelCh) == 24 &&
         sizeof(Descr::coll) == kLaunch + 56;
}
static_assert(has_layout<EventDescrV3, 16>() && has_layout<EventDescrV4, 0>() && has_layout<EventDescrV5, 0>());
static_assert(sizeof(EventDescrV3::type) == 1 && sizeof(EventDescrV4::type) == 1 && sizeof(EventDescrV5::type) == 8);
static_assert(offsetof(CollLaunchV3, commHash) == 8 && offsetof(CollLaunchV3, launch) == 16);
static_assert(offsetof(P2pLaunchV3, commHash) == 8 && offsetof(P2pLaunchV3, launch) == 16);
static_assert(offsetof(CollLaunch, func) == 8 && offsetof(CollLaunch, count) == 32 &&
              offsetof(CollLaunch, root) == 40 && offsetof(CollLaunch, datatype) == 48);
static_assert(offsetof(P2pLaunch, datatype) == 16 && offsetof(P2pLaunch, count) == 24 &&
              offsetof(P2pLaunch, peer) == 32);
static_assert(offsetof(ProxyOp, peer) == 8 && offsetof(ProxyOp, chunkSize) == 16 && offsetof(ProxyOp, isSend) == 20);
static_assert(offsetof(KernelCh, pTimer) == 8 && sizeof(EventStateArgs) == 8);
static_assert(offsetof(ProfilerV6, startEvent) == 16 && offsetof(ProfilerV6, finalize) == 40);

constexpr uint64_t kHash = 0x0b5a64a1f36c1fd2;
constexpr int kRank = 3;

char directory[] = "/tmp/tensorwire-nccl-XXXXXX";
std::string frame_path;

Frame read_frame() {
  Frame frame;
  CHECK(tw_probe_read_frame(frame_path.c_str(), &frame) == 0);
  return frame;
}

const Slot* find_slot(const Frame& frame, uint64_t id) {
  for (const Slot& slot : frame.slots) {
    if (slot.id == id) return &slot;
  }
  return nullptr;
}

Slot read_slot(uint64_t id = kHash) {
  const Frame frame = read_frame();
  const Slot* slot = find_slot(frame, id);
  CHECK(slot != nullptr && slot->lock % 2 == 0);
  return *slot;
}

void* load() {
  void* library = dlopen(TW_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(library != nullptr);
  return library;
}

void ignore_log(int, unsigned long, const char*, int, const char*, ...) {}

int call_init(ProfilerV3& profiler, void** context, int* mask, uint64_t, int) { return profiler.init(context, mask); }

int call_init(ProfilerV4& profiler, void** context, int* mask, uint64_t hash, int size) {
  return profiler.init(context, mask, "tensor_parallel", hash, 2, size, kRank, ignore_log);
}

int call_init(ProfilerV5& profiler, void** context, int* mask, uint64_t hash, int size) {
  return profiler.init(context, hash, mask, "tensor_parallel", 2, size, kRank, ignore_log);
}

CollLaunch& launch_in(CollLaunch& coll, uint64_t) { return coll; }
P2pLaunch& launch_in(P2pLaunch& p2p, uint64_t) { return p2p; }

template <class Named>
auto& launch_in(Named& named, uint64_t hash) {
  named.name = "tensor_parallel";
  named.commHash = hash;
  return named.launch;
}

void set_timer(KernelChV3&, uint64_t) {}
void set_timer(KernelCh& channel, uint64_t timer) { channel.pTimer = timer; }

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

bool is_open(const Slot& slot) { return (slot.flags & tw::probe::kOpen) != 0; }

void check_counts(const Slot& slot, uint64_t enqueued, uint32_t completed) {
  CHECK(slot.enqueued == enqueued && slot.completed == completed && is_open(slot) == (enqueued > completed));
}

void only_the_interface_is_exported() {
  void* library = load();
  for (const char* name : {"ncclProfiler_v3", "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"}) {
    CHECK(dlsym(library, name) != nullptr);
  }
  for (const char* name : {"ncclProfiler_v1", "ncclProfiler_v2", "ncclProfiler_v7", "tw_probe_create"}) {
    CHECK(dlsym(library, name) == nullptr);
  }
  CHECK(dlclose(library) == 0);
  load();
}

template <class Driver>
void check_healthy(Driver nccl, bool knows_size, bool knows_nbytes) {
  void* task = nccl.coll();
  nccl.stop(task);  // launched, no more
  const Slot launched = read_slot();
  check_counts(launched, 0, 0);

  void* channels[] = {nccl.channel(task, 5000), nccl.channel(task, 5010)};
  void* send = nccl.proxy_op(task, true);
  void* receive = nccl.proxy_op(task, false);
  for (int number = 0; number < 3; ++number) nccl.transfer(send, 1000);
  nccl.transfer(receive, 500);
  const Slot inside = read_slot();
  check_counts(inside, 1, 0);
  CHECK(inside.enter_ns != 0 && inside.sequence == 1);
  nccl.stop(send);
  nccl.stop(receive);
  nccl.end(channels[0], 9000);
  check_counts(read_slot(), 1, 0);
  nccl.end(channels[1], 9010);

  const Slot slot = read_slot();
  check_counts(slot, 1, 1);
  CHECK(slot.operation == tw::probe::kAllReduce);
  CHECK(std::strcmp(tw_probe_dtype_name(slot.dtype), "float32") == 0);
  CHECK(slot.numel == 1000 && slot.root == tw::probe::kNoRoot && slot.signature != 0);
  CHECK(slot.completed_ns >= inside.enter_ns && slot.completed_ns <= tw_probe_now());
  CHECK(slot.size == (knows_size ? 8 : 0));
  CHECK(slot.sent_nbytes == (knows_nbytes ? 3000 : 3 * 4096));
  CHECK(slot.received_nbytes == (knows_nbytes ? 500 : 4096));
  const Frame frame = read_frame();
  CHECK(slot.name != tw::probe::kNoName && std::strcmp(frame.header.names + slot.name, "tensor_parallel") == 0);
  CHECK(frame.header.rank == kRank && frame.header.world_size == 16 && frame.header.restart_count == 1);
  CHECK(frame.header.pid == static_cast<uint32_t>(getpid()) && frame.header.flags == tw::probe::kArmed);
  nccl.finalize();
}

void a_healthy_all_reduce_v3() { check_healthy(Nccl3("ncclProfiler_v3"), false, false); }
void a_healthy_all_reduce_v4() { check_healthy(Nccl4("ncclProfiler_v4"), true, true); }
void a_healthy_all_reduce_v5() { check_healthy(Nccl5("ncclProfiler_v5"), true, true); }
void a_healthy_all_reduce_v6() { check_healthy(Nccl6(), true, true); }

void the_frame_is_private() {
  Nccl6 nccl;
  struct stat status;
  CHECK(stat(frame_path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
  CHECK(status.st_size == static_cast<off_t>(tw::probe::kPageNbytes));
  CHECK(stat(directory, &status) == 0 && (status.st_mode & 0777) == 0700);
}

void a_rank_stuck_inside_without_progress() {
  Nccl6 nccl;
  nccl.run(nccl.coll());
  void* task = nccl.coll("Broadcast", 77, "ncclInt8", 2);
  void* open = nccl.channel(task, 10);
  void* send = nccl.proxy_op(task, true);
  nccl.transfer(send, 123);
  nccl.step(send);  // posted, never done
  const Slot slot = read_slot();
  check_counts(slot, 2, 1);
  CHECK(slot.operation == tw::probe::kBroadcast && slot.root == 2 && slot.numel == 77 && slot.sequence == 2);
  CHECK(slot.sent_nbytes == 123 && slot.received_nbytes == 0);

  // The watchdog destroys the communicator: what was open stays in evidence, until the process goes on.
  nccl.finalize();
  check_counts(read_slot(), 2, 1);
  nccl.stop(open);
  check_counts(read_slot(), 2, 1);
  Nccl6 next(kHash + 1);
  check_counts(read_slot(), 2, 2);
}

void what_the_host_launches_ahead_is_not_entered() {
  Nccl6 nccl;
  std::vector<void*> tasks;
  for (int number = 0; number < 50; ++number) tasks.push_back(nccl.coll());
  check_counts(read_slot(), 0, 0);
  for (void* task : tasks) nccl.run(task);
  check_counts(read_slot(), 50, 50);
}

void more_launched_ahead_than_there_is_room_for() {
  Nccl6 nccl;
  std::vector<void*> tasks;
  for (int number = 0; number < 3000; ++number) tasks.push_back(nccl.coll());
  for (void* task : tasks) nccl.run(task);
  check_counts(read_slot(), 3000, 3000);
}

// The slot of the messages from one rank of a communicator to another.
uint64_t pair_id(uint64_t hash, uint64_t from, uint64_t to) {
  const uint64_t parts[] = {hash, from, to};
  return tw_probe_hash(parts, sizeof(parts));
}

void send_and_receive() {
  Nccl6 nccl(kHash, 16);  // all ranks of the job
  nccl.run(nccl.coll());
  const uint64_t sent = pair_id(kHash, kRank, 5), received = pair_id(kHash, 1, kRank);
  void* send = nccl.p2p("Send", 5);
  void* receive = nccl.p2p("Recv", 1);
  void* channels[] = {nccl.channel(send), nccl.channel(receive)};
  check_counts(read_slot(), 1, 1);
  Slot slot = read_slot(sent);
  check_counts(slot, 1, 0);
  CHECK(slot.operation == tw::probe::kSend && slot.root == 5 && slot.numel == 64 && slot.size == 2);
  CHECK((slot.flags & tw::probe::kPair) != 0 && (read_slot().flags & tw::probe::kPair) == 0);
  CHECK(read_slot(received).operation == tw::probe::kRecv && read_slot(received).root == 1);
  CHECK(read_slot(received).signature == slot.signature);
  nccl.stop(channels[0]);
  check_counts(read_slot(sent), 1, 1);
  check_counts(read_slot(received), 1, 0);
  nccl.stop(channels[1]);
  check_counts(read_slot(received), 1, 1);
  nccl.run(nccl.p2p("Send", 5));
  check_counts(read_slot(sent), 2, 2);
  check_counts(read_slot(), 1, 1);
}

void more_peers_than_slots() {
  Nccl6 nccl;  // half of the job: ranks within it say nothing of global ranks
  for (int peer = 0; peer < 8; ++peer) nccl.run(nccl.p2p("Send", peer));
  const Frame frame = read_frame();
  CHECK((frame.header.flags & tw::probe::kOverflow) != 0);
  const Slot* first = find_slot(frame, pair_id(kHash, kRank, 0));
  CHECK(first != nullptr && first->completed == 1 && first->root == tw::probe::kNoRoot);
  CHECK(find_slot(frame, pair_id(kHash, kRank, 7)) == nullptr);
  nccl.run(nccl.coll());
  check_counts(read_slot(), 1, 1);
}

void operations_and_their_inputs() {
  Nccl6 nccl;
  const struct {
    const char* function;
    const char* dtype;
    tw::probe::Operation operation;
    const char* torch_dtype;
    int64_t numel;
    uint16_t root;
  } cases[] = {
      {"AllGather", "ncclInt8", tw::probe::kAllGatherIntoTensor, "int8", 10, tw::probe::kNoRoot},
      {"ReduceScatter", "ncclBfloat16", tw::probe::kReduceScatterTensor, "bfloat16", 80, tw::probe::kNoRoot},
      {"AlltoAll", "ncclFloat16", tw::probe::kAllToAllSingle, "float16", 80, tw::probe::kNoRoot},
      {"Reduce", "ncclFloat64", tw::probe::kReduce, "float64", 10, 4},
      {"Gather", "ncclInt64", tw::probe::kGather, "int64", 10, 4},
      {"Scatter", "ncclInt32", tw::probe::kScatter, "int32", 10, 4},
      {"AllReduce", "ncclFloat8e4m3", tw::probe::kAllReduce, "float8_e4m3fn", 10, tw::probe::kNoRoot},
      {"SomethingNew", "Unknown", tw::probe::kUnknown, nullptr, 10, tw::probe::kNoRoot},
  };
  uint64_t last_signature = 0;
  for (const auto& one : cases) {
    nccl.run(nccl.coll(one.function, 10, one.dtype, 4));
    const Slot slot = read_slot();
    CHECK(slot.operation == one.operation && slot.numel == one.numel && slot.root == one.root);
    if (one.torch_dtype == nullptr) {
      CHECK(slot.dtype == 0);
    } else {
      CHECK(std::strcmp(tw_probe_dtype_name(slot.dtype), one.torch_dtype) == 0);
    }
    CHECK(slot.signature != last_signature);
    last_signature = slot.signature;
  }
  nccl.run(nccl.coll("AllReduce", 10, nullptr));
  nccl.run(nccl.coll(nullptr, 10));
  CHECK(read_slot().enqueued == 10);
}

void what_ranks_disagree_on_changes_the_signature() {
  Nccl6 nccl;
  std::vector<uint64_t> signatures;
  const auto run = [&](const char* function, size_t count, const char* dtype, int root) {
    nccl.run(nccl.coll(function, count, dtype, root));
    signatures.push_back(read_slot().signature);
  };
  run("Broadcast", 10, "ncclFloat32", 0);
  run("Reduce", 10, "ncclFloat32", 0);
  run("Broadcast", 11, "ncclFloat32", 0);
  run("Broadcast", 10, "ncclFloat16", 0);
  run("Broadcast", 10, "ncclFloat32", 1);
  for (size_t one = 0; one < signatures.size(); ++one) {
    for (size_t other = 0; other < one; ++other) CHECK(signatures[one] != signatures[other]);
  }
  run("Broadcast", 10, "ncclFloat32", 0);
  CHECK(signatures.front() == signatures.back());
}

void more_communicators_than_slots() {
  std::vector<Nccl6> all;
  for (uint64_t number = 0; number < 40; ++number) all.emplace_back(1000 + number);
  const Frame frame = read_frame();
  CHECK((frame.header.flags & tw::probe::kOverflow) != 0);
  for (Nccl6& nccl : all) {
    void* task = nccl.coll();
    nccl.channel(task);
    nccl.transfer(nccl.proxy_op(task, true), 1);
    nccl.stop(task);
  }
  for (uint64_t number = 0; number < 40; ++number) {
    const Frame now = read_frame();
    const Slot* slot = find_slot(now, 1000 + number);
    CHECK((slot != nullptr) == (number < tw::probe::kNumSlots));
    if (slot != nullptr) CHECK(slot->enqueued == 1 && slot->sent_nbytes == 1);
  }
  for (Nccl6& nccl : all) nccl.finalize();
}

void stops_out_of_order() {
  Nccl6 nccl;
  void* tasks[] = {nccl.coll(), nccl.coll(), nccl.coll()};
  void* channels[] = {nccl.channel(tasks[0]), nccl.channel(tasks[1]), nccl.channel(tasks[2])};
  nccl.stop(channels[1]);
  Slot slot = read_slot();
  CHECK(slot.enqueued == 3 && slot.sequence == 1 && is_open(slot));
  nccl.stop(channels[0]);
  CHECK(read_slot().sequence == 3);
  nccl.stop(channels[2]);
  check_counts(read_slot(), 3, 3);
  for (int again = 0; again < 3; ++again) {
    for (void* event : channels) nccl.end(event, 1);
    for (void* event : tasks) nccl.stop(event);
  }
  check_counts(read_slot(), 3, 3);

  // A second stop of a step counts nothing twice.
  void* op = nccl.proxy_op(tasks[2], true);
  void* event = nccl.step(op);
  nccl.stop(op);
  nccl.stop(event);
  nccl.stop(event);
  CHECK(read_slot().sent_nbytes == 4096);
}

void handles_that_name_nothing() {
  Nccl6 nccl;
  nccl.run(nccl.coll());
  const Slot before = read_slot();
  EventStateArgs args = {};
  int local = 0;
  uint64_t bits = 0x9e3779b97f4a7c15;
  for (int number = 0; number < 2000; ++number) {
    bits = bits * 6364136223846793005 + 1442695040888963407;
    const uint64_t kind = static_cast<uint64_t>(number % 16) << 60;
    void* handle = reinterpret_cast<void*>(number < 2 ? (number == 0 ? uint64_t{0} : uint64_t{1})
                                                      : kind | (bits >> 4 & ~(uint64_t{3} << 42)) | uint64_t{1} << 43);
    nccl.stop(handle);
    nccl.record(handle, kKernelChStop, &args);
    nccl.record(handle, kStepSendWait, nullptr);
    nccl.stop(nccl.channel(handle));
    nccl.stop(nccl.step(handle));
  }
  nccl.stop(&local);
  CHECK(nccl.step(nullptr) == nullptr && nccl.channel(nullptr) == nullptr);
  CHECK(nccl.other(kEventProxyCtrl, nullptr) == nullptr && nccl.other(uint64_t{1} << 40, nullptr) == nullptr);
  const Slot after = read_slot();
  CHECK(std::memcmp(&before, &after, sizeof(before)) == 0);
}

void nested_groups() {
  Nccl6 nccl;
  void* outer = nccl.other(kEventGroupApi, nullptr);
  void* inner = nccl.other(kEventGroupApi, outer);
  void* call = nccl.other(kEventCollApi, inner);
  void* group = nccl.group();
  CHECK(outer != nullptr && inner != nullptr && call != nullptr && group != nullptr);
  void* first = nccl.coll();
  void* second = nccl.coll("AllGather");
  nccl.stop(first);
  nccl.stop(second);
  nccl.stop(group);
  nccl.stop(call);
  nccl.stop(inner);
  nccl.stop(outer);
  void* channels[] = {nccl.channel(first), nccl.channel(first), nccl.channel(second)};
  nccl.stop(channels[2]);
  nccl.stop(channels[0]);
  CHECK(read_slot().sequence == 1 && is_open(read_slot()));
  nccl.stop(channels[1]);
  check_counts(read_slot(), 2, 2);
}

void events_after_finalize() {
  Nccl6 nccl;
  void* task = nccl.coll();
  void* op = nccl.proxy_op(task, true);
  void* step = nccl.step(op);
  nccl.finalize();
  const Slot before = read_slot();
  const auto use = [&] {
    nccl.run(task);
    nccl.transfer(op, 10);
    nccl.stop(step);
    nccl.run(nccl.coll());
    nccl.finalize();
  };
  use();
  Slot after = read_slot();
  CHECK(std::memcmp(&before, &after, sizeof(before)) == 0);

  // Another communicator in the place of the first: old handles do not reach it.
  Nccl6 next(kHash + 1);
  void* open = next.channel(next.coll());
  use();
  check_counts(read_slot(kHash + 1), 1, 0);
  next.stop(open);
  check_counts(read_slot(kHash + 1), 1, 1);
}

void a_forked_child_writes_nothing() {
  Nccl6 nccl;
  void* task = nccl.coll();
  void* channel = nccl.channel(task);
  void* op = nccl.proxy_op(task, true);
  const Frame before = read_frame();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    nccl.end(channel, 5);
    nccl.transfer(op, 10);
    nccl.run(nccl.coll());
    nccl.finalize();
    auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
    void* context = nullptr;
    int mask = 0;
    CHECK(call_init(*profiler, &context, &mask, 5, 2) != 0 && mask == 0);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  const Frame after = read_frame();
  CHECK(std::memcmp(&before, &after, sizeof(before)) == 0);
  nccl.end(channel, 5);
  check_counts(read_slot(), 1, 1);
}

void proxy_operations_of_another_process() {
  Nccl6 nccl;
  CHECK(nccl.proxy_op(reinterpret_cast<void*>(0x7fff12345678), true, getpid() + 1) == nullptr);
  CHECK(read_slot().sent_nbytes == ~uint64_t{0});
}

void threads() {
  constexpr int kNumThreads = 4;
  constexpr int kNumRounds = 2000;
  Nccl6 nccl;
  Nccl6 shared(kHash + 1);
  std::atomic<void*> tasks[kNumRounds] = {};
  std::atomic<bool> is_over{false};
  std::vector<std::thread> running;
  running.emplace_back([&] {  // the launching thread, and the proxy thread that follows it
    for (auto& task : tasks) task = nccl.coll();
  });
  running.emplace_back([&] {
    for (auto& task : tasks) {
      while (task == nullptr) std::this_thread::yield();
      nccl.run(task);
    }
  });
  for (int number = 0; number < kNumThreads; ++number) {
    running.emplace_back([&] {
      void* op = shared.proxy_op(nullptr, true);
      for (int round = 0; round < kNumRounds; ++round) shared.transfer(op, 3);
    });
  }
  std::thread reader([&] {
    uint64_t last = 0;
    while (!is_over) {
      const Frame frame = read_frame();
      const Slot* slot = find_slot(frame, kHash);
      if (slot == nullptr || slot->lock % 2 != 0) continue;
      CHECK(slot->enqueued >= last && slot->completed <= slot->enqueued);
      last = slot->enqueued;
    }
  });
  for (std::thread& thread : running) thread.join();
  is_over = true;
  reader.join();
  check_counts(read_slot(), kNumRounds, kNumRounds);
  CHECK(read_slot(kHash + 1).sent_nbytes == uint64_t{kNumThreads} * kNumRounds * 3);
}

void time_by_the_clock_of_the_gpu() {
  constexpr useconds_t kSeenUs = 20'000;  // when the proxy thread sees that a kernel of 0.1 ms is over
  const std::string control = std::string(directory) + "/control";
  const tw::probe::ControlEntry entry = {kHash, 2};
  uint32_t number = 0;
  CHECK(tw_probe_write_control(control.c_str(), &entry, 1, 2, 0, &number) == 0 && number == 1);
  Nccl6 nccl;
  for (const uint64_t begin : {1'000'000, 2'000'000, 3'000'000, 4'000'000}) {
    void* task = nccl.coll();
    void* channels[] = {nccl.channel(task, begin), nccl.channel(task, begin - 10'000)};
    usleep(kSeenUs);
    nccl.end(channels[0], begin + 20'000);
    nccl.end(channels[1], begin + 90'000);
  }
  const Slot slot = read_slot();
  CHECK((slot.flags & tw::probe::kTimed) != 0 && slot.first_sequence == 2 && slot.num_rounds == 2);
  CHECK(slot.sum_ns >= 200'000 && slot.sum_ns < 2000 * kSeenUs);
  CHECK(slot.num_nbytes == 8000 && slot.rooted_or_pairwise == 0);
  CHECK(read_frame().header.control == 1);
}

void windows_without_end_reach_new_communicators_and_pairs() {
  const std::string control = std::string(directory) + "/control";
  uint32_t number = 0;
  CHECK(tw_probe_write_control(control.c_str(), nullptr, 0, 3, tw::probe::kForever, &number) == 0);
  Nccl6 nccl;
  nccl.run(nccl.coll());  // reads the request
  Nccl6 next(kHash + 1);
  for (int round = 0; round < 3; ++round) {
    next.run(next.coll());
    next.run(next.p2p("Recv", 1));
  }
  for (const uint64_t id : {kHash + 1, pair_id(kHash + 1, 1, kRank)}) {
    const Slot slot = read_slot(id);
    CHECK((slot.flags & tw::probe::kTimed) != 0 && slot.first_sequence == 1 && slot.num_rounds == 3);
  }
}

void a_communicator_without_a_name() {
  auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
  void* context = nullptr;
  int mask = 0;
  CHECK(profiler->init(&context, kHash, &mask, nullptr, 1, 2, 0, nullptr) == 0);
  CHECK(read_slot().name == tw::probe::kNoName && read_slot().size == 2);
}

void a_frame_left_behind_is_replaced() {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    Nccl6 nccl;
    nccl.run(nccl.coll());
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(read_slot().enqueued == 1);
  Nccl6 nccl;
  CHECK(read_slot().enqueued == 0);
}

void a_frame_of_a_process_that_lives_is_not() {
  int go[2];
  CHECK(pipe(go) == 0);
  const pid_t rival = fork();  // before the plugin is loaded: it loads its own
  CHECK(rival >= 0);
  if (rival == 0) {
    char byte;
    CHECK(read(go[0], &byte, 1) == 1);
    auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
    void* context = nullptr;
    int mask = 0;
    CHECK(call_init(*profiler, &context, &mask, kHash, 8) != 0 && mask == 0);
    _exit(0);
  }
  Nccl6 nccl;
  nccl.run(nccl.coll());
  CHECK(write(go[1], "", 1) == 1);
  int status = 0;
  CHECK(waitpid(rival, &status, 0) == rival && status == 0);
  CHECK(read_slot().enqueued == 1);
}

void a_directory_for_the_run() {
  char user[64];
  std::snprintf(user, sizeof(user), "/dev/shm/tensorwire-%u", geteuid());
  unsetenv("TENSORWIRE_PROBE_DIR");
  const std::string run = "../job:" + std::to_string(getpid());
  setenv("TORCHELASTIC_RUN_ID", run.c_str(), 1);
  Nccl6 nccl;
  const std::string expected = std::string(user) + "/___job_" + std::to_string(getpid());
  frame_path = expected + "/rank-3-1.nccl.frame";
  const Frame frame = read_frame();
  CHECK(frame.header.run == tw_probe_hash(run.data(), run.size()));
  CHECK(unlink(frame_path.c_str()) == 0 && rmdir(expected.c_str()) == 0);
  rmdir(user);
}

void without_a_launcher_the_communicator_names_the_rank() {
  for (const char* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"}) unsetenv(variable);
  setenv("LOCAL_RANK", "many", 1);
  Nccl6 nccl;
  frame_path = std::string(directory) + "/rank-3-0.nccl.frame";
  const Frame frame = read_frame();
  CHECK(frame.header.rank == kRank && frame.header.world_size == 8 && frame.header.local_rank == -1);
  unlink(frame_path.c_str());
}

void no_frame_no_plugin() {
  setenv("TENSORWIRE_PROBE_DIR", "/proc/nowhere", 1);
  auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
  void* context = nullptr;
  int mask = 0;
  CHECK(call_init(*profiler, &context, &mask, kHash, 8) != 0 && mask == 0);
  CHECK(call_init(*profiler, &context, &mask, kHash, 8) != 0);
  profiler->stopEvent(nullptr);
  profiler->finalize(context);
}

void a_directory_that_others_may_enter() {
  CHECK(chmod(directory, 0755) == 0);
  auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
  void* context = nullptr;
  int mask = 0;
  CHECK(call_init(*profiler, &context, &mask, kHash, 8) != 0);
  CHECK(access(frame_path.c_str(), F_OK) != 0);
}

struct Case {
  const char* name;
  void (*run)();
};

#define CASE(function) {#function, function}
constexpr Case kCases[] = {
    CASE(only_the_interface_is_exported),
    CASE(a_healthy_all_reduce_v3),
    CASE(a_healthy_all_reduce_v4),
    CASE(a_healthy_all_reduce_v5),
    CASE(a_healthy_all_reduce_v6),
    CASE(the_frame_is_private),
    CASE(a_rank_stuck_inside_without_progress),
    CASE(what_the_host_launches_ahead_is_not_entered),
    CASE(more_launched_ahead_than_there_is_room_for),
    CASE(send_and_receive),
    CASE(more_peers_than_slots),
    CASE(operations_and_their_inputs),
    CASE(what_ranks_disagree_on_changes_the_signature),
    CASE(more_communicators_than_slots),
    CASE(stops_out_of_order),
    CASE(handles_that_name_nothing),
    CASE(nested_groups),
    CASE(events_after_finalize),
    CASE(a_forked_child_writes_nothing),
    CASE(proxy_operations_of_another_process),
    CASE(threads),
    CASE(time_by_the_clock_of_the_gpu),
    CASE(windows_without_end_reach_new_communicators_and_pairs),
    CASE(a_communicator_without_a_name),
    CASE(a_frame_left_behind_is_replaced),
    CASE(a_frame_of_a_process_that_lives_is_not),
    CASE(a_directory_for_the_run),
    CASE(without_a_launcher_the_communicator_names_the_rank),
    CASE(no_frame_no_plugin),
    CASE(a_directory_that_others_may_enter),
};

}  // namespace

int main() {
  CHECK(mkdtemp(directory) != nullptr);
  frame_path = std::string(directory) + "/rank-3-1.nccl.frame";
  setenv("TENSORWIRE_PROBE_DIR", directory, 1);
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "16", 1);
  setenv("LOCAL_RANK", "3", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  int failed = 0;
  for (const Case& one : kCases) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      one.run();
      std::exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) std::fprintf(stderr, "failed: %s\n", one.name), ++failed;
    unlink(frame_path.c_str());
    unlink((std::string(directory) + "/control").c_str());
    chmod(directory, 0700);
  }
  rmdir(directory);
  return failed == 0 ? 0 : 1;
}
