// The arithmetic of a slot: open operations, and T over windows of rounds.
#include <algorithm>

#include "probe.h"

namespace tw::probe {

void OpenOperations::push(const OpenOperation& operation) {
  if (count_ == kCapacity) std::move(entries_ + 1, entries_ + count_--, entries_);
  entries_[count_++] = operation;
}

bool OpenOperations::take(uint64_t token, OpenOperation* operation) {
  for (size_t i = 0; i < count_; ++i) {
    if (entries_[i].token != token) continue;
    *operation = entries_[i];
    std::move(entries_ + i + 1, entries_ + count_, entries_ + i);
    --count_;
    return true;
  }
  return false;
}

// For another group or pair. Tokens go on, so that those given out for the last one fit nothing.
void SlotState::reset() {
  slot = Slot{};
  slot.numel = -1;
  slot.root = kNoRoot;
  slot.sent_nbytes = slot.received_nbytes = UINT64_MAX;
  retired = 0;
  open.clear();
  set_window(0, 0);
}

void SlotState::set_operation(const OperationInfo& info, uint64_t enter_ns, bool is_open) {
  slot.operation = info.operation;
  slot.dtype = info.dtype;
  slot.signature = info.signature;
  slot.numel = info.numel;
  slot.root = info.root;
  slot.enter_ns = enter_ns;
  slot.sequence = static_cast<uint32_t>(info.sequence);
  slot.flags = static_cast<uint8_t>((slot.flags & ~kOpen) | (is_open ? kOpen : 0));
}

// What is open is described only by its number, and by the time at which it was first seen so, until describe() tells
// more.
void SlotState::set_counts(uint64_t enqueued, uint64_t completed, uint64_t now_ns) {
  if (static_cast<uint32_t>(completed) != slot.completed) slot.completed_ns = now_ns;
  slot.completed = static_cast<uint32_t>(completed);
  slot.enqueued = enqueued;
  const bool is_open = completed < enqueued;
  const uint64_t sequence = is_open ? completed + 1 : enqueued;
  if (static_cast<uint32_t>(sequence) != slot.sequence) {
    set_operation({sequence, 0, -1, 0, kUnknown, 0, kNoRoot, 0}, is_open ? now_ns : 0, is_open);
  } else if (!is_open) {
    slot.flags &= static_cast<uint8_t>(~kOpen);
  } else if ((slot.flags & kOpen) == 0) {
    slot.flags |= kOpen;
    slot.enter_ns = now_ns;
  }
}

void SlotState::set_messages(uint64_t enqueued, uint64_t waited_ns, const OperationInfo& operation, uint64_t enter_ns) {
  const bool is_open = enter_ns != 0;
  const auto completed = static_cast<uint32_t>(is_open ? operation.sequence - 1 : enqueued);
  if (completed != slot.completed) slot.completed_ns = tw_probe_now();
  slot.completed = completed;
  slot.enqueued = enqueued;
  slot.sum_ns = waited_ns;
  slot.flags |= kWaits;
  set_operation(operation, enter_ns, is_open);
}

void SlotState::enter(const OpenOperation& operation) {
  slot.flags |= kActive;
  slot.enqueued = std::max(slot.enqueued, operation.info.sequence);
  open.push(operation);
  const OpenOperation& oldest = *open.oldest();
  slot.completed = static_cast<uint32_t>(oldest.info.sequence - 1);
  set_operation(oldest.info, oldest.enter_ns, true);
}

void SlotState::complete(uint64_t token, uint64_t time_ns) {
  OpenOperation operation;
  if (!open.take(token, &operation)) return;
  add_round(operation.info, std::max(operation.enter_ns, slot.completed_ns), time_ns);
  slot.completed_ns = std::max(slot.completed_ns, time_ns);
  if (const OpenOperation* oldest = open.oldest()) {
    slot.completed = static_cast<uint32_t>(oldest->info.sequence - 1);
    set_operation(oldest->info, oldest->enter_ns, true);
  } else {
    slot.completed = static_cast<uint32_t>(slot.enqueued);
    set_operation(operation.info, operation.enter_ns, false);
  }
}

void SlotState::set_window(uint64_t first, uint32_t num_rounds) {
  first_sequence = first;
  window_rounds = num_rounds;
  windows[0] = windows[1] = Window{};
  slot.flags &= static_cast<uint8_t>(~kTimed);
}

// What is open stays so until the counts say otherwise: it may hang.
void SlotState::end_active() {
  open.clear();
  window_rounds = 0;
  slot.flags &= static_cast<uint8_t>(~kActive);
}

// A window that this rank has come too late for, or in which it lost a round, never gets whole and is never shown.
void SlotState::add_round(const OperationInfo& info, uint64_t begin_ns, uint64_t end_ns) {
  if (window_rounds == 0 || info.sequence < first_sequence) return;
  const uint64_t index = (info.sequence - first_sequence) / window_rounds;
  Window& window = windows[index % 2];
  if (window.index > index) return;
  if (window.index < index) {
    window = Window{};
    window.index = index;
  }
  const uint64_t took_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
  window.all_timed &= end_ns != 0;
  window.sum_ns += took_ns;
  window.min_ns = std::min(window.min_ns, took_ns);
  window.max_ns = std::max(window.max_ns, took_ns);
  window.num_nbytes += info.nbytes;
  window.rooted_or_pairwise += info.pairwise != 0;
  if (++window.num_rounds == window_rounds && window.all_timed) show(window);
}

void SlotState::show(const Window& window) {
  constexpr uint64_t kMost = UINT32_MAX;
  slot.flags |= kTimed;
  slot.first_sequence = static_cast<uint32_t>(first_sequence + window.index * window_rounds);
  slot.num_rounds = static_cast<uint16_t>(window.num_rounds);
  slot.rooted_or_pairwise = static_cast<uint16_t>(window.rooted_or_pairwise);
  slot.sum_ns = window.sum_ns;
  slot.min_us = static_cast<uint32_t>(std::min(window.min_ns / 1000, kMost));
  slot.max_us = static_cast<uint32_t>(std::min(window.max_ns / 1000, kMost));
  slot.num_nbytes = window.num_nbytes;
}

}  // namespace tw::probe
