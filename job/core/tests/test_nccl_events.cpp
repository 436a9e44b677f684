// What the plugin makes of NCCL's events, in any order.
#include <vector>

#include "tests/nccl_driver.h"

using namespace tw::nccl;

namespace {

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
  const Page page = read_page();
  CHECK((page.header.flags & tw::probe::kOverflow) != 0);
  const Slot* first = find_slot(page, pair_id(kHash, kRank, 0));
  CHECK(first != nullptr && first->completed == 1 && first->root == tw::probe::kNoRoot);
  CHECK(find_slot(page, pair_id(kHash, kRank, 7)) == nullptr);
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
  constexpr uint64_t kNumCommunicators = tw::probe::kNumSlots + 8;
  std::vector<Nccl6> all;
  for (uint64_t number = 0; number < kNumCommunicators; ++number) all.emplace_back(1000 + number);
  const Page page = read_page();
  CHECK((page.header.flags & tw::probe::kOverflow) != 0);
  for (Nccl6& nccl : all) {
    void* task = nccl.coll();
    nccl.channel(task);
    nccl.transfer(nccl.proxy_op(task, true), 1);
    nccl.stop(task);
  }
  for (uint64_t number = 0; number < kNumCommunicators; ++number) {
    const Page now = read_page();
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

void an_end_that_never_comes() {
  Nccl6 nccl;
  void* lost = nccl.coll();
  nccl.channel(lost);
  for (int number = 0; number < 63; ++number) nccl.run(nccl.coll());
  CHECK(read_slot().sequence == 1 && is_open(read_slot()));
  nccl.run(nccl.coll());
  check_counts(read_slot(), 65, 65);
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

void proxy_operations_of_another_process() {
  Nccl6 nccl;
  CHECK(nccl.proxy_op(reinterpret_cast<void*>(0x7fff12345678), true, getpid() + 1) == nullptr);
  CHECK(read_slot().sent_nbytes == ~uint64_t{0});
}

void time_by_the_clock_of_the_gpu() {
  constexpr useconds_t kSeenUs = 20'000;  // when the proxy thread sees that a kernel of 0.1 ms is over
  const std::string control = std::string(directory) + "/control";
  const tw::probe::ControlEntry entry = {kHash, 2};
  uint32_t number = 0;
  CHECK(tw_probe_write_control(control.c_str(), &entry, 1, 2, &number) == 0 && number == 1);
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
  CHECK(read_page().header.control == 1);
}

void windows_reach_new_communicators_and_pairs() {
  const std::string control = std::string(directory) + "/control";
  uint32_t number = 0;
  CHECK(tw_probe_write_control(control.c_str(), nullptr, 0, 3, &number) == 0);
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

constexpr Case kCases[] = {
    TW_CASE(a_rank_stuck_inside_without_progress),
    TW_CASE(what_the_host_launches_ahead_is_not_entered),
    TW_CASE(more_launched_ahead_than_there_is_room_for),
    TW_CASE(send_and_receive),
    TW_CASE(more_peers_than_slots),
    TW_CASE(operations_and_their_inputs),
    TW_CASE(what_ranks_disagree_on_changes_the_signature),
    TW_CASE(more_communicators_than_slots),
    TW_CASE(stops_out_of_order),
    TW_CASE(an_end_that_never_comes),
    TW_CASE(handles_that_name_nothing),
    TW_CASE(nested_groups),
    TW_CASE(events_after_finalize),
    TW_CASE(proxy_operations_of_another_process),
    TW_CASE(time_by_the_clock_of_the_gpu),
    TW_CASE(windows_reach_new_communicators_and_pairs),
};

}  // namespace

int main() { return run_cases(kCases); }
