// The calls by which a process writes its own page.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "probe.h"
#include "process.h"
#include "seqlock.h"

namespace tw::probe {
namespace {

// A handle names a slot and the generation that it was given for, so that none writes to the slot of another.
constexpr uint32_t kGenerations = INT32_MAX / kNumSlots;

int handle_of(const Probe* probe, const SlotState& state) {
  return static_cast<int>(state.generation * kNumSlots + static_cast<size_t>(&state - probe->slots));
}

SlotState* find_slot(Probe* probe, int handle) {
  if (!writes(probe) || handle < 0 || static_cast<uint32_t>(handle) % kNumSlots >= probe->num_slots) return nullptr;
  return &probe->slots[static_cast<uint32_t>(handle) % kNumSlots];
}

void publish(Probe* probe, const SlotState& state) {
  Slot* shared = &probe->page->slots[&state - probe->slots];
  const WriteLock lock(&shared->lock);
  constexpr size_t kLockNbytes = sizeof(shared->lock);
  copy_to_shared(&shared->operation, &state.slot.operation, sizeof(Slot) - kLockNbytes);
}

// Changes a slot under its mutex and shows the result.
template <class Change>
void update(Probe* probe, int handle, Change&& change) {
  SlotState* state = find_slot(probe, handle);
  if (state == nullptr) return;
  const std::lock_guard<std::mutex> guard(state->mutex);
  if (handle_of(probe, *state) == handle && change(*state)) publish(probe, *state);
}

// What fits of a text into `room` bytes, zeros behind it. A character is not cut in half.
void set_text(char* shared, size_t room, const char* text) {
  size_t nbytes = strnlen(text, room);
  if (nbytes == room) {
    --nbytes;
    while (nbytes > 0 && (static_cast<unsigned char>(text[nbytes]) & 0xC0) == 0x80) --nbytes;
  }
  char padded[sizeof(Header::exit_reason)] = {};
  std::memcpy(padded, text, nbytes);
  copy_to_shared(shared, padded, room);
}

// Where `name` begins in the header's names, or where there is room for it; kNoName. Names that a slot refers to are
// not moved or written over.
uint8_t name_offset(const Probe* probe, const char* name, size_t nbytes) {
  const char (&names)[sizeof(Header::names)] = probe->names;
  bool is_used[sizeof(names)] = {};
  for (uint32_t i = 0; i < probe->num_slots; ++i) {
    const Slot& slot = probe->slots[i].slot;
    if (slot.id == 0 || slot.name == kNoName) continue;
    if (std::strcmp(names + slot.name, name) == 0) return slot.name;
    std::fill_n(is_used + slot.name, std::strlen(names + slot.name) + 1, true);
  }
  const bool* room = std::search_n(is_used, std::end(is_used), nbytes, false);
  return room == std::end(is_used) ? kNoName : static_cast<uint8_t>(room - is_used);
}

// Slots that were retired keep their names as long as there is room for others.
void drop_retired_names(Probe* probe) {
  for (SlotState& state : probe->slots) {
    if (state.retired == 0 || state.slot.name == kNoName) continue;
    const std::lock_guard<std::mutex> guard(state.mutex);
    state.slot.name = kNoName;
    publish(probe, state);
  }
}

uint8_t add_name(Probe* probe, const char* name) {
  const size_t nbytes = std::strlen(name) + 1;
  if (nbytes == 1 || nbytes > sizeof(Header::names)) return kNoName;
  uint8_t offset = name_offset(probe, name, nbytes);
  if (offset == kNoName) {
    drop_retired_names(probe);
    offset = name_offset(probe, name, nbytes);
  }
  if (offset == kNoName) return kNoName;
  std::memcpy(probe->names + offset, name, nbytes);
  Header& header = probe->page->header;
  const WriteLock lock(&header.lock);
  copy_to_shared(header.names, probe->names, sizeof(Header::names));
  return offset;
}

void set_flag(Header* header, uint32_t flag, bool on) {
  if (on) {
    __atomic_fetch_or(&header->flags, flag, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_and(&header->flags, ~flag, __ATOMIC_RELAXED);
  }
}

// A slot that is not in use, of a new generation; null where there is none. Retired slots stay to be read until there
// is no other.
SlotState* take_slot(Probe* probe) {
  if (probe->num_slots < kNumSlots) return &probe->slots[probe->num_slots++];
  SlotState* oldest = nullptr;
  for (SlotState& state : probe->slots) {
    if (state.retired != 0 && (oldest == nullptr || state.retired < oldest->retired)) oldest = &state;
  }
  if (oldest == nullptr) return nullptr;
  const std::lock_guard<std::mutex> guard(oldest->mutex);
  oldest->generation = (oldest->generation + 1) % kGenerations;
  oldest->slot.id = 0;
  publish(probe, *oldest);  // before its name may be written over
  return oldest;
}

int find_or_add(Probe* probe, uint64_t id, const char* name, uint64_t size, uint8_t flags) {
  if (!writes(probe) || id == 0) return -1;
  const std::lock_guard<std::mutex> guard(probe->header_mutex);
  for (uint32_t i = 0; i < probe->num_slots; ++i) {
    SlotState& state = probe->slots[i];
    if (state.slot.id != id) continue;
    state.retired = 0;
    if (state.slot.name == kNoName) {  // it may have lost it meanwhile
      const uint8_t offset = add_name(probe, name);
      const std::lock_guard<std::mutex> slot_guard(state.mutex);
      state.slot.name = offset;
      publish(probe, state);
    }
    return handle_of(probe, state);
  }
  SlotState* state = take_slot(probe);
  if (state == nullptr) {
    set_flag(&probe->page->header, kOverflow, true);
    return -1;
  }
  const uint8_t offset = add_name(probe, name);
  const std::lock_guard<std::mutex> slot_guard(state->mutex);
  state->reset();
  state->slot.id = id;
  state->slot.name = offset;
  state->slot.size = static_cast<uint16_t>(std::min<uint64_t>(size, UINT16_MAX));
  state->slot.flags = flags;
  publish(probe, *state);
  return handle_of(probe, *state);
}

// A file of one page that is wholly there: memory that cannot be had later would end the process.
int create_page(const char* path, void** page) {
  const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  int error = posix_fallocate(file, 0, kPageNbytes);
  if (error == 0) {
    *page = mmap(nullptr, kPageNbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (*page == MAP_FAILED) error = errno;
  }
  close(file);
  if (error != 0) unlink(path);
  return error;
}

}  // namespace
}  // namespace tw::probe

using namespace tw::probe;

int tw_probe_create(const char* path, const Identity* identity, Probe** probe) {
  Header header{};
  header.magic = kPageMagic;
  header.layout = kLayout;
  header.run = tw_probe_hash(identity->run_id, std::strlen(identity->run_id));
  header.pid = static_cast<uint32_t>(getpid());
  header.start_time = start_time(header.pid);
  header.rank = identity->rank;
  header.world_size = identity->world_size;
  header.restart_count = identity->restart_count;
  header.heartbeat_ns = tw_probe_now();
  if (header.start_time == 0 || !read_boot_id(header.boot_id)) return ENOSYS;

  Probe* made = new (std::nothrow) Probe;
  if (made == nullptr) return ENOMEM;
  void* page = nullptr;
  int error = watch_forks();
  if (error == 0) error = create_page(path, &page);
  if (error != 0) {
    delete made;
    return error;
  }
  made->num_forks = num_forks;
  made->page = static_cast<Page*>(page);
  // The magic comes last: without it a reader sees no page.
  const size_t magic_nbytes = sizeof(header.magic);
  copy_to_shared(&made->page->header.layout, &header.layout, sizeof(header) - magic_nbytes);
  __atomic_store_n(&made->page->header.magic, header.magic, __ATOMIC_RELEASE);
  *probe = made;
  return 0;
}

void tw_probe_close(Probe* probe) {
  if (!writes(probe)) return;
  forget_signals(probe);
  tw_probe_stop_pulse(probe);
  munmap(probe->page, kPageNbytes);
  delete probe;
}

void tw_probe_heartbeat(Probe* probe) {
  if (!writes(probe)) return;
  Header& header = probe->page->header;
  __atomic_store_n(&header.heartbeat_ns, tw_probe_now(), __ATOMIC_RELAXED);
  __atomic_fetch_add(&header.heartbeats, 1, __ATOMIC_RELEASE);
}

void tw_probe_set_flag(Probe* probe, uint32_t flag, int on) {
  if (writes(probe)) set_flag(&probe->page->header, flag, on != 0);
}

void tw_probe_phase(Probe* probe, const char* text) {
  if (!writes(probe)) return;
  const std::lock_guard<std::mutex> guard(probe->header_mutex);
  Header& header = probe->page->header;
  const WriteLock lock(&header.lock);
  set_text(header.phase, sizeof(header.phase), text);
}

void tw_probe_activity(Probe* probe, const char* text) {
  if (!writes(probe)) return;
  const std::lock_guard<std::mutex> guard(probe->header_mutex);
  Header& header = probe->page->header;
  const WriteLock lock(&header.lock);
  store_shared(&header.activity_ns, tw_probe_now());
  set_text(header.activity, sizeof(header.activity), text);
}

void tw_probe_setup(Probe* probe, uint32_t setup) {
  if (!writes(probe)) return;
  const std::lock_guard<std::mutex> guard(probe->header_mutex);
  Header& header = probe->page->header;
  const WriteLock lock(&header.lock);
  store_shared(&header.setup, setup);
  store_shared(&header.setup_ns, tw_probe_now());
}

void tw_probe_exit_reason(Probe* probe, uint32_t kind, const char* text) {
  if (!writes(probe)) return;
  const std::lock_guard<std::mutex> guard(probe->header_mutex);
  Header& header = probe->page->header;
  if (header.exit_ns != 0) return;
  const WriteLock lock(&header.lock);
  store_shared(&header.exit_kind, kind);
  store_shared(&header.exit_ns, tw_probe_now());
  set_text(header.exit_reason, sizeof(header.exit_reason), text);
}

int tw_probe_slot(Probe* probe, uint64_t id, const char* name, uint64_t size) {
  return find_or_add(probe, id, name, size, 0);
}

int tw_probe_pair(Probe* probe, uint64_t id, const char* name) { return find_or_add(probe, id, name, 2, kPair); }

void tw_probe_retire(Probe* probe, int slot) {
  if (!writes(probe)) return;
  const std::lock_guard<std::mutex> guard(probe->header_mutex);
  SlotState* state = find_slot(probe, slot);
  if (state != nullptr && handle_of(probe, *state) == slot) state->retired = ++probe->num_retired;
}

void tw_probe_members(Probe* probe, int slot, const Members* members) {
  update(probe, slot, [&](SlotState& state) {
    state.slot.members = *members;
    return true;
  });
}

void tw_probe_counts(Probe* probe, int slot, uint64_t enqueued, uint64_t completed) {
  update(probe, slot, [&](SlotState& state) {
    if ((state.slot.flags & kActive) != 0) return false;
    state.set_counts(enqueued, std::min(completed, enqueued), tw_probe_now());
    return true;
  });
}

void tw_probe_describe(Probe* probe, int slot, const OperationInfo* operation, uint64_t enter_ns) {
  update(probe, slot, [&](SlotState& state) {
    if ((state.slot.flags & kActive) != 0) return false;
    const bool is_open = static_cast<uint32_t>(operation->sequence) != state.slot.completed;
    state.set_operation(*operation, enter_ns, is_open);
    return true;
  });
}

void tw_probe_messages(Probe* probe, int slot, uint64_t enqueued, uint64_t waited_ns, const OperationInfo* operation,
                       uint64_t enter_ns) {
  update(probe, slot, [&](SlotState& state) {
    state.set_messages(enqueued, waited_ns, *operation, enter_ns);
    return true;
  });
}

void tw_probe_baseline(Probe* probe, int slot, float rate) {
  update(probe, slot, [&](SlotState& state) {
    state.slot.baseline_rate = rate;
    return true;
  });
}

void tw_probe_progress(Probe* probe, int slot, uint64_t sent_nbytes, uint64_t received_nbytes) {
  update(probe, slot, [&](SlotState& state) {
    state.slot.sent_nbytes = sent_nbytes;
    state.slot.received_nbytes = received_nbytes;
    return true;
  });
}

uint64_t tw_probe_enter(Probe* probe, int slot, const OperationInfo* operation) {
  uint64_t token = 0;
  update(probe, slot, [&](SlotState& state) {
    token = ++state.last_token;
    state.enter({*operation, token, tw_probe_now()});
    return true;
  });
  return token;
}

void tw_probe_complete(Probe* probe, int slot, uint64_t token, uint64_t time_ns) {
  update(probe, slot, [&](SlotState& state) {
    state.complete(token, time_ns);
    return true;
  });
}

void tw_probe_window(Probe* probe, int slot, uint64_t first_sequence, uint32_t num_rounds) {
  update(probe, slot, [&](SlotState& state) {
    state.set_window(first_sequence, std::min<uint32_t>(num_rounds, UINT16_MAX));
    return true;
  });
}

void tw_probe_enable_timing(Probe* probe, int on, uint32_t control) {
  if (!writes(probe)) return;
  Header& header = probe->page->header;
  store_shared(&header.control, control);
  set_flag(&header, kTimingEnabled, on != 0);
  if (on != 0) return;
  for (uint32_t i = 0; i < probe->num_slots; ++i) {
    SlotState& state = probe->slots[i];
    const std::lock_guard<std::mutex> guard(state.mutex);
    state.end_active();
    if (state.slot.id != 0) publish(probe, state);
  }
}
