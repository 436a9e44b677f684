#include "nccl_events.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>

namespace tw::nccl {
namespace {

constexpr uint64_t kNumTasks = 1024;  // launched and not over; the oldest make room for more
constexpr uint64_t kNumSteps = 1024;  // 64 channels, two directions, eight steps in flight in each
constexpr uint64_t kAttempts = 16;    // to find the place of a step that is over
constexpr uint64_t kStepNumbers = uint64_t{1} << 32;
constexpr uint64_t kNumPairs = 4;    // a stage of a pipeline sends to two others and receives from them
constexpr uint64_t kOvertaken = 64;  // the end of a task that so many later ones have overtaken is not coming any more
constexpr uint64_t kHousekeepingNs = 100'000'000;

enum Kind : uint64_t { kContext = 1, kTask, kChannel, kProxyOp, kStep };

// kind 4 bits, communicator 6, its generation 10, payload 44. Payloads: of a task and its channels the task's number;
// of a step its number; of a proxy operation the direction in bit 0 and the size of its chunks above.
struct Parts {
  uint64_t kind;
  uint64_t communicator;
  uint64_t generation;
  uint64_t payload;
};

constexpr uint64_t kPayloadMask = (uint64_t{1} << 44) - 1;
constexpr uint64_t kGenerationMask = 1023;
static_assert(probe::kNumSlots <= 64);

Handle pack(Kind kind, uint64_t communicator, uint64_t generation, uint64_t payload) {
  return reinterpret_cast<Handle>(kind << 60 | communicator << 54 | (generation & kGenerationMask) << 44 |
                                  (payload & kPayloadMask));
}

Parts unpack(Handle handle) {
  const auto bits = reinterpret_cast<uint64_t>(handle);
  return {bits >> 60, bits >> 54 & 63, bits >> 44 & kGenerationMask, bits & kPayloadMask};
}

struct Task {
  uint64_t number;  // from 1
  int slot;
  uint64_t token;  // 0: not entered, or over
  uint64_t enter_ns;
  uint64_t gpu_begin_ns;  // by the GPU's own clock; 0 unknown
  uint64_t gpu_end_ns;
  uint32_t channels_begun;
  uint32_t channels_ended;
  probe::OperationInfo info;
};

struct Step {
  uint64_t number;  // from 1; 0: free
  uint64_t nbytes;
  bool is_send;
};

// The messages from one rank to another, of which this process is one.
struct Pair {
  int slot;  // -1: no room in the page
  bool is_send;
  int peer;
  uint64_t num_messages;
};

struct Communicator {
  std::mutex mutex;
  bool is_open = false;
  int slot = 0;     // -1: no room in the page
  uint64_t id = 0;  // 0: nothing said of it yet, nor of the slot
  uint64_t generation = 0;
  uint64_t size = 0;
  uint64_t num_tasks = 0;
  uint64_t num_collectives = 0;
  uint64_t num_steps = 0;
  uint64_t sent_nbytes = 0;
  uint64_t received_nbytes = 0;
  uint64_t num_pairs = 0;
  Pair pairs[kNumPairs] = {};
  Task tasks[kNumTasks] = {};
  Step steps[kNumSteps] = {};
};

Communicator communicators[probe::kNumSlots];  // all zeros: memory only where they are used

probe::Probe* the_probe = nullptr;
uint64_t the_world_size = 0;
char control_path[4096] = "";
std::atomic<uint64_t> housekeeping_ns{0};
std::atomic<uint32_t> control_number{0};
std::atomic<uint32_t> window_rounds{0};  // of the windows of every slot, also of new ones; 0: none
std::atomic<bool> is_child{false};

// What a handle names, locked. Null in a forked child, and where the communicator is gone.
class Locked {
 public:
  Locked(Handle handle, Kind kind) : parts_(unpack(handle)) {
    if (parts_.kind != kind || parts_.communicator >= probe::kNumSlots || is_child.load(std::memory_order_relaxed))
      return;
    Communicator& found = communicators[parts_.communicator];
    lock_ = std::unique_lock(found.mutex);
    if (found.is_open && (found.generation & kGenerationMask) == parts_.generation) communicator_ = &found;
  }

  explicit operator bool() const { return communicator_ != nullptr; }
  Communicator* operator->() const { return communicator_; }
  Communicator& operator*() const { return *communicator_; }

  uint64_t payload() const { return parts_.payload; }

  // The task whose number is the payload, if its place has not been taken since.
  Task* task() const {
    Task& found = communicator_->tasks[payload() % kNumTasks];
    return found.number == payload() ? &found : nullptr;
  }

  Step* step() const {
    Step& found = communicator_->steps[payload() % kNumSteps];
    return found.number == payload() / kNumSteps ? &found : nullptr;
  }

  Handle handle(Kind kind, uint64_t payload) const {
    return pack(kind, parts_.communicator, parts_.generation, payload);
  }

 private:
  Parts parts_;
  std::unique_lock<std::mutex> lock_;
  Communicator* communicator_ = nullptr;
};

void leave(Task& task, uint64_t time_ns) {
  tw_probe_complete(the_probe, task.slot, task.token, time_ns);
  task.token = 0;
}

void enter(Communicator& communicator, Task& task) {
  if (task.number > kOvertaken) {
    const uint64_t number = task.number - kOvertaken;
    Task& overtaken = communicator.tasks[number % kNumTasks];
    if (overtaken.number == number && overtaken.token != 0) leave(overtaken, 0);
  }
  task.token = tw_probe_enter(the_probe, task.slot, &task.info);
  task.enter_ns = tw_probe_now();
}

// By the GPU's clock as long as the kernel ran, but not into the future: its begin is seen late rather than early.
uint64_t end_of(const Task& task) {
  const uint64_t now = tw_probe_now();
  if (task.gpu_begin_ns == 0 || task.gpu_end_ns < task.gpu_begin_ns) return now;
  return std::min(now, task.enter_ns + (task.gpu_end_ns - task.gpu_begin_ns));
}

// Ten times a second at most: the sign of life, and the agent's request for timing. Called without a lock.
void keep_house() {
  const uint64_t now = tw_probe_now();
  uint64_t last = housekeeping_ns.load(std::memory_order_relaxed);
  if (now - last < kHousekeepingNs || !housekeeping_ns.compare_exchange_strong(last, now)) return;
  tw_probe_heartbeat(the_probe);
  probe::Control control;
  if (tw_probe_read_control(control_path, &control) != 0) return;
  if (control_number.exchange(control.number) == control.number) return;
  window_rounds = control.num_rounds;
  for (Communicator& communicator : communicators) {
    const std::lock_guard lock(communicator.mutex);
    if (communicator.id == 0) continue;
    const probe::ControlEntry* end = control.entries + control.num_entries;
    const probe::ControlEntry* entry = control.entries;
    while (entry != end && entry->id != communicator.id) ++entry;
    tw_probe_window(the_probe, communicator.slot, entry != end ? entry->first_sequence : 1, window_rounds);
    for (uint64_t pair = 0; pair < communicator.num_pairs; ++pair) {
      tw_probe_window(the_probe, communicator.pairs[pair].slot, 1, window_rounds);
    }
  }
  tw_probe_enable_timing(the_probe, 1, control.number);
}

void name_slot(Communicator& communicator, uint64_t hash, const char* name) {
  communicator.id = std::max<uint64_t>(hash, 1);  // 0 is a free slot's
  communicator.slot = tw_probe_slot(the_probe, communicator.id, name != nullptr ? name : "", communicator.size);
  tw_probe_window(the_probe, communicator.slot, 1, window_rounds);
}

// Null where there is no more room for pairs.
Pair* find_pair(Communicator& communicator, const Launch& launch, bool is_send) {
  for (uint64_t number = 0; number < communicator.num_pairs; ++number) {
    Pair& pair = communicator.pairs[number];
    if (pair.is_send == is_send && pair.peer == launch.root) return &pair;
  }
  if (communicator.num_pairs == kNumPairs) {
    tw_probe_set_flag(the_probe, probe::kOverflow, 1);
    return nullptr;
  }
  const uint64_t from = static_cast<uint64_t>(is_send ? launch.rank : launch.root);
  const uint64_t to = static_cast<uint64_t>(is_send ? launch.root : launch.rank);
  const uint64_t agreed[] = {communicator.id, from, to};
  Pair& pair = communicator.pairs[communicator.num_pairs++];
  pair = {tw_probe_pair(the_probe, tw_probe_hash(agreed, sizeof(agreed)), ""), is_send, launch.root, 0};
  tw_probe_window(the_probe, pair.slot, 1, window_rounds);
  return &pair;
}

// What was open when a communicator was destroyed stays open in the page, as evidence of why it was destroyed, until
// the process goes on with another communicator.
void forget(Communicator& communicator) {
  const uint64_t num_tasks = std::min(communicator.num_tasks, kNumTasks);
  for (uint64_t number = 1; number <= num_tasks; ++number) {
    Task& task = communicator.tasks[number % kNumTasks];
    if (task.token != 0) leave(task, 0);
    task = {};
  }
  if (communicator.num_steps != 0) std::fill(std::begin(communicator.steps), std::end(communicator.steps), Step{});
  communicator.num_pairs = 0;
  communicator.id = communicator.num_tasks = communicator.num_collectives = communicator.num_steps = 0;
  communicator.sent_nbytes = communicator.received_nbytes = 0;
}

}  // namespace

Handle unkept() { return reinterpret_cast<Handle>(1); }

void begin(probe::Probe* probe, uint64_t world_size, const char* control) {
  the_probe = probe;
  the_world_size = world_size;
  std::strncpy(control_path, control, sizeof(control_path) - 1);
  tw_probe_enable_timing(probe, 1, 0);
  pthread_atfork(nullptr, nullptr, [] { is_child = true; });
}

Handle open_communicator(uint64_t hash, const char* name, uint64_t size) {
  if (is_child) return unkept();
  Handle context = nullptr;
  for (uint64_t number = 0; number < probe::kNumSlots; ++number) {
    Communicator& communicator = communicators[number];
    const std::lock_guard lock(communicator.mutex);
    if (communicator.is_open) continue;
    forget(communicator);
    if (context != nullptr) continue;
    communicator.is_open = true;
    ++communicator.generation;
    communicator.size = size;
    if (hash != 0) name_slot(communicator, hash, name);
    context = pack(kContext, number, communicator.generation, 0);
  }
  if (context != nullptr) return context;
  tw_probe_set_flag(the_probe, probe::kOverflow, 1);
  return unkept();
}

void identify(Handle context, uint64_t hash, const char* name) {
  const Locked communicator(context, kContext);
  if (communicator && communicator->id == 0) name_slot(*communicator, hash, name);
}

void close_communicator(Handle context) {
  const Locked communicator(context, kContext);
  if (communicator) communicator->is_open = false;
}

Handle start_task(Handle context, const Launch& launch) {
  const Locked communicator(context, kContext);
  if (!communicator || communicator->id == 0 || communicator->slot < 0) return nullptr;
  probe::OperationInfo info = describe(launch, communicator->size);
  int slot = communicator->slot;
  if (launch.is_p2p) {
    Pair* pair = find_pair(*communicator, launch, info.operation == probe::kSend);
    if (pair == nullptr) return nullptr;
    slot = pair->slot;
    info.sequence = ++pair->num_messages;
    // Pages name peers by their global rank, NCCL by that within the communicator: the same in the one of all ranks.
    const bool is_global = communicator->size == the_world_size && launch.root >= 0 && launch.root < probe::kNoRoot;
    if (is_global) info.root = static_cast<uint16_t>(launch.root);
  } else {
    info.sequence = ++communicator->num_collectives;
  }
  const uint64_t number = ++communicator->num_tasks;
  Task& task = communicator->tasks[number % kNumTasks];
  if (task.token != 0) leave(task, 0);
  task = {};
  task.number = number;
  task.slot = slot;
  task.info = info;
  return communicator.handle(kTask, number);
}

Handle start_channel(Handle task_handle, uint64_t gpu_ns) {
  keep_house();
  const Locked communicator(task_handle, kTask);
  Task* task = communicator ? communicator.task() : nullptr;
  if (task == nullptr) return nullptr;
  if (task->channels_begun == 0) {
    enter(*communicator, *task);
    task->gpu_begin_ns = gpu_ns;
  }
  task->gpu_begin_ns = std::min(task->gpu_begin_ns, gpu_ns);
  ++task->channels_begun;
  return communicator.handle(kChannel, communicator.payload());
}

Handle start_proxy_op(Handle context, bool is_send, uint64_t chunk_nbytes) {
  const Locked communicator(context, kContext);
  if (!communicator || communicator->id == 0) return nullptr;
  return communicator.handle(kProxyOp, chunk_nbytes << 1 | is_send);
}

Handle start_step(Handle proxy_op) {
  const Locked communicator(proxy_op, kProxyOp);
  if (!communicator) return nullptr;
  uint64_t index = ++communicator->num_steps % kNumSteps;
  for (uint64_t attempt = 0; attempt < kAttempts && communicator->steps[index].number != 0; ++attempt) {
    index = (index + 1) % kNumSteps;
  }
  const uint64_t number = communicator->num_steps % kStepNumbers + 1;
  communicator->steps[index] = {number, communicator.payload() >> 1, (communicator.payload() & 1) != 0};
  return communicator.handle(kStep, number * kNumSteps + index);
}

void record_channel_end(Handle channel, uint64_t gpu_ns) {
  const Locked communicator(channel, kChannel);
  Task* task = communicator ? communicator.task() : nullptr;
  if (task != nullptr) task->gpu_end_ns = std::max(task->gpu_end_ns, gpu_ns);
}

void record_step_size(Handle step_handle, uint64_t nbytes) {
  const Locked communicator(step_handle, kStep);
  Step* step = communicator ? communicator.step() : nullptr;
  if (step != nullptr) step->nbytes = nbytes;
}

void stop(Handle event) {
  const uint64_t kind = unpack(event).kind;
  if (kind == kChannel) {
    const Locked communicator(event, kChannel);
    Task* task = communicator ? communicator.task() : nullptr;
    if (task == nullptr || task->channels_ended == task->channels_begun) return;
    if (++task->channels_ended == task->channels_begun && task->token != 0) leave(*task, end_of(*task));
  } else if (kind == kStep) {
    const Locked communicator(event, kStep);
    Step* step = communicator ? communicator.step() : nullptr;
    if (step == nullptr) return;
    (step->is_send ? communicator->sent_nbytes : communicator->received_nbytes) += step->nbytes;
    step->number = 0;
    tw_probe_progress(the_probe, communicator->slot, communicator->sent_nbytes, communicator->received_nbytes);
  }
}

}  // namespace tw::nccl
