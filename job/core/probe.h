// What the writing side keeps in private memory.
//
// The order of calls: writer.cpp has the calls of a process about its page, and changes slots by the functions of
// slot.cpp, which neither lock nor publish. pulse.cpp has the thread that shows life, signals.cpp the handlers; both
// write to the header alone, without its mutex. tw_probe_close() in writer.cpp takes the page from the handlers, then
// ends the thread, then frees the page.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "page.h"
#include "process.h"

namespace tw::probe {

// An operation that has been entered and has not completed.
struct OpenOperation {
  OperationInfo info;
  uint64_t token;
  uint64_t enter_ns;
};

// The open operations of one group in the order in which they were entered. If there are too many, the oldest are
// forgotten.
class OpenOperations {
 public:
  void push(const OpenOperation& operation);
  bool take(uint64_t token, OpenOperation* operation);
  const OpenOperation* oldest() const { return count_ == 0 ? nullptr : &entries_[0]; }
  void clear() { count_ = 0; }

 private:
  static constexpr size_t kCapacity = 64;
  OpenOperation entries_[kCapacity];
  size_t count_ = 0;
};

// Sums over the rounds of a window that have completed.
struct Window {
  uint64_t index = 0;  // the windows of a request are numbered from 0
  uint32_t num_rounds = 0;
  uint32_t rooted_or_pairwise = 0;
  bool all_timed = true;
  uint64_t sum_ns = 0;
  uint64_t min_ns = UINT64_MAX;
  uint64_t max_ns = 0;
  uint64_t num_nbytes = 0;
};

// One slot: what is to be seen of it, and what is needed to go on.
struct SlotState {
  std::mutex mutex;
  Slot slot{};
  uint32_t generation = 0;  // of the handle: one for each group or pair that has had the slot
  uint64_t retired = 0;     // the earlier, the less; 0: in use
  OpenOperations open;
  uint64_t last_token = 0;
  uint64_t first_sequence = 0;  // of window 0
  uint32_t window_rounds = 0;   // 0: no windows
  Window windows[2];            // operations end out of order, but never by more than a window

  // None of these locks or publishes.
  void reset();
  void set_operation(const OperationInfo& info, uint64_t enter_ns, bool is_open);
  void set_counts(uint64_t enqueued, uint64_t completed, uint64_t now_ns);
  void set_messages(uint64_t enqueued, uint64_t waited_ns, const OperationInfo& operation, uint64_t enter_ns);
  void enter(const OpenOperation& operation);
  void complete(uint64_t token, uint64_t time_ns);
  void set_window(uint64_t first, uint32_t num_rounds);
  void end_active();

 private:
  void add_round(const OperationInfo& info, uint64_t begin_ns, uint64_t end_ns);
  void show(const Window& window);
};

// A last look before the end.
struct Look {
  std::atomic<uint64_t> asked_ns{0};  // when it was asked last whether one is wanted
  std::atomic<bool> is_wanted{false};
  std::atomic<bool> is_taken{false};
};

struct Probe {
  Page* page = nullptr;
  uint32_t num_forks = 0;  // between the first process and the one that made it
  std::mutex header_mutex;
  char names[sizeof(Header::names)] = {};  // as the header has them: what others may write to is not read back
  std::atomic<uint32_t> num_slots{0};
  uint64_t num_retired = 0;  // ever; under header_mutex
  bool has_pulse = false;
  std::atomic<bool> pulse_ends{false};
  pthread_t pulse{};
  Look look;
  SlotState slots[kNumSlots];
};

// Whether this process is the one that made it.
inline bool writes(const Probe* probe) {
  return probe != nullptr && probe->num_forks == num_forks.load(std::memory_order_relaxed);
}

// Signals are not noted in its page any more.
void forget_signals(const Probe* probe);

}  // namespace tw::probe
