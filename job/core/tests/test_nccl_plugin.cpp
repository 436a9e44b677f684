// The plugin as a library: its interface, its page, forks and threads.
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "process.h"
#include "tests/nccl_driver.h"

using namespace tw::nccl;

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
  const Page page = read_page();
  CHECK(slot.name != tw::probe::kNoName && std::strcmp(page.header.names + slot.name, "tensor_parallel") == 0);
  CHECK(page.header.rank == kRank && page.header.world_size == 16 && page.header.restart_count == 1);
  CHECK(page.header.pid == static_cast<uint32_t>(getpid()) && page.header.flags == tw::probe::kTimingEnabled);
  nccl.finalize();
}

void a_healthy_all_reduce_v3() { check_healthy(Nccl3("ncclProfiler_v3"), false, false); }
void a_healthy_all_reduce_v4() { check_healthy(Nccl4("ncclProfiler_v4"), true, true); }
void a_healthy_all_reduce_v5() { check_healthy(Nccl5("ncclProfiler_v5"), true, true); }
void a_healthy_all_reduce_v6() { check_healthy(Nccl6(), true, true); }

void the_page_is_private() {
  Nccl6 nccl;
  struct stat status;
  CHECK(stat(page_path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
  CHECK(status.st_size == static_cast<off_t>(tw::probe::kPageNbytes));
  CHECK(stat(directory, &status) == 0 && (status.st_mode & 0777) == 0700);
}

void a_forked_child_writes_nothing() {
  Nccl6 nccl;
  void* task = nccl.coll();
  void* channel = nccl.channel(task);
  void* op = nccl.proxy_op(task, true);
  const Page before = read_page();
  in_child([&] {
    nccl.end(channel, 5);
    nccl.transfer(op, 10);
    nccl.run(nccl.coll());
    nccl.finalize();
    CHECK(is_refused(5, 2));
  });
  const Page after = read_page();
  CHECK(std::memcmp(&before, &after, sizeof(before)) == 0);
  nccl.end(channel, 5);
  check_counts(read_slot(), 1, 1);
}

void a_child_forked_while_a_thread_holds_a_lock() {
  constexpr int kNumForks = 50;
  Nccl6 nccl;
  void* op = nccl.proxy_op(nullptr, true);
  std::atomic<bool> is_over{false};
  std::thread proxy([&] {
    while (!is_over) nccl.transfer(op, 1);
  });
  for (int number = 0; number < kNumForks; ++number) {
    in_child([&] {
      alarm(20);  // a lock that no thread is left to release
      nccl.transfer(op, 1);
    });
  }
  is_over = true;
  proxy.join();
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
      const Page page = read_page();
      const Slot* slot = find_slot(page, kHash);
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

void a_communicator_without_a_name() {
  auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
  void* context = nullptr;
  int mask = 0;
  CHECK(profiler->init(&context, kHash, &mask, nullptr, 1, 2, 0, nullptr) == 0);
  CHECK(read_slot().name == tw::probe::kNoName && read_slot().size == 2);
}

void a_page_left_behind_is_replaced() {
  in_child([] {
    Nccl6 nccl;
    nccl.run(nccl.coll());
  });
  CHECK(read_slot().enqueued == 1);
  Nccl6 nccl;
  CHECK(read_slot().enqueued == 0);
}

void a_page_of_a_process_that_lives_is_not() {
  int go[2];
  CHECK(pipe(go) == 0);
  const pid_t rival = fork();  // before the plugin is loaded: it loads its own
  CHECK(rival >= 0);
  if (rival == 0) {
    char byte;
    CHECK(read(go[0], &byte, 1) == 1);
    if (tw::probe::start_time(static_cast<uint32_t>(getppid())) != read_page().header.start_time) {
      std::fprintf(stderr, "skipped: an emulator makes up /proc/self/stat\n");
      _exit(0);
    }
    CHECK(is_refused());
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
  std::snprintf(user, sizeof(user), "/dev/shm/tensorwire-%u", getuid());
  unsetenv("TENSORWIRE_PROBE_DIR");
  const std::string run = "../jöb/" + std::to_string(getpid());
  setenv("TORCHELASTIC_RUN_ID", run.c_str(), 1);
  Nccl6 nccl;
  const std::string expected = std::string(user) + "/___j_b_" + std::to_string(getpid());
  page_path = expected + "/rank-3-1.nccl.page";
  const Page page = read_page();
  CHECK(page.header.run == tw_probe_hash(run.data(), run.size()));
  CHECK(unlink(page_path.c_str()) == 0 && rmdir(expected.c_str()) == 0);
  rmdir(user);
}

using Variables = std::vector<std::pair<const char*, const char*>>;

// The run that this process is of where a launcher has set these variables.
void check_run(const Variables& variables, const std::string& run) {
  for (const char* unset : {"TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"}) unsetenv(unset);
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  Nccl6 nccl;
  CHECK(read_page().header.run == tw_probe_hash(run.data(), run.size()));
}

void several_nodes_without_a_run_id_are_one_run() {
  check_run({{"TORCHELASTIC_RUN_ID", "none"},
             {"MASTER_ADDR", "node0.example"},
             {"MASTER_PORT", "29500"},
             {"LOCAL_WORLD_SIZE", "8"}},
            "node0.example:29500");
}

void a_launcher_that_does_not_count_local_ranks() {
  check_run({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4711"}}, "10.0.0.1:4711");
}

void a_run_id_comes_before_an_address() {
  check_run({{"TORCHELASTIC_RUN_ID", "mine"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4711"}}, "mine");
}

void on_one_node_the_launcher_names_the_run() {
  const auto launcher = static_cast<uint32_t>(getppid());
  const std::string run = "run-" + std::to_string(launcher) + "-" + std::to_string(tw::probe::start_time(launcher));
  check_run({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4711"}, {"LOCAL_WORLD_SIZE", "16"}}, run);  // all there are
}

void without_a_launcher_the_communicator_names_the_rank() {
  for (const char* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"}) unsetenv(variable);
  setenv("LOCAL_RANK", "many", 1);
  Nccl6 nccl;
  page_path = std::string(directory) + "/rank-3-0.nccl.page";
  const Page page = read_page();
  CHECK(page.header.rank == kRank && page.header.world_size == 8);
  unlink(page_path.c_str());
}

void no_page_no_plugin() {
  setenv("TENSORWIRE_PROBE_DIR", "/proc/nowhere", 1);
  CHECK(is_refused() && is_refused());
  auto* profiler = static_cast<ProfilerV6*>(dlsym(load(), "ncclProfiler_v6"));
  profiler->stopEvent(nullptr);
  profiler->finalize(nullptr);
}

void a_directory_that_others_may_enter() {
  CHECK(chmod(directory, 0755) == 0 && is_refused());
  CHECK(access(page_path.c_str(), F_OK) != 0);
}

constexpr Case kCases[] = {
    TW_CASE(only_the_interface_is_exported),
    TW_CASE(a_healthy_all_reduce_v3),
    TW_CASE(a_healthy_all_reduce_v4),
    TW_CASE(a_healthy_all_reduce_v5),
    TW_CASE(a_healthy_all_reduce_v6),
    TW_CASE(the_page_is_private),
    TW_CASE(a_forked_child_writes_nothing),
    TW_CASE(a_child_forked_while_a_thread_holds_a_lock),
    TW_CASE(threads),
    TW_CASE(a_communicator_without_a_name),
    TW_CASE(a_page_left_behind_is_replaced),
    TW_CASE(a_page_of_a_process_that_lives_is_not),
    TW_CASE(a_directory_for_the_run),
    TW_CASE(several_nodes_without_a_run_id_are_one_run),
    TW_CASE(a_launcher_that_does_not_count_local_ranks),
    TW_CASE(a_run_id_comes_before_an_address),
    TW_CASE(on_one_node_the_launcher_names_the_run),
    TW_CASE(without_a_launcher_the_communicator_names_the_rank),
    TW_CASE(no_page_no_plugin),
    TW_CASE(a_directory_that_others_may_enter),
};

}  // namespace

int main() { return run_cases(kCases); }
