// Pages: who may create and write them, what readers get while they are written, and T over windows of rounds.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "page.h"
#include "tests/check.h"

using namespace tw::probe;

namespace {

const Identity kIdentity{"a run", 3, 8, 2};

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / "tw_probe_XXXXXX";
  Folder() { CHECK(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return path + "/" + name; }
};

Probe* create(const std::string& path) {
  Probe* probe = nullptr;
  CHECK(tw_probe_create(path.c_str(), &kIdentity, &probe) == 0);
  return probe;
}

Page read(const std::string& path) {
  Page page;
  CHECK(tw_probe_read_page(path.c_str(), &page) == 0);
  return page;
}

OperationInfo operation(uint64_t sequence, uint64_t nbytes = 8) {
  return {sequence, 77, 2, nbytes, kAllReduce, 12, kNoRoot, 0};
}

void test_identity(const Folder& folder) {
  const std::string path = folder.file("identity");
  Probe* probe = create(path);
  struct stat facts;
  CHECK(stat(path.c_str(), &facts) == 0 && (facts.st_mode & 0777) == 0600 && facts.st_size == kPageNbytes);
  Probe* second = nullptr;
  CHECK(tw_probe_create(path.c_str(), &kIdentity, &second) == EEXIST && second == nullptr);

  tw_probe_heartbeat(probe);
  tw_probe_phase(probe, "a phase with a name that is far too long");
  tw_probe_activity(probe, "torch.save");
  tw_probe_setup(probe, kInInit);
  const std::string reason(200, 'r');
  tw_probe_exit_reason(probe, kFailure, reason.c_str());
  tw_probe_exit_reason(probe, kEnd, "exit 4");
  tw_probe_close(probe);

  const Page page = read(path);
  CHECK(page.header.pid == static_cast<uint32_t>(getpid()) && page.header.start_time != 0);
  CHECK(page.header.rank == 3 && page.header.world_size == 8);
  CHECK(page.header.restart_count == 2 && page.header.run == tw_probe_hash("a run", 5));
  CHECK(page.header.heartbeats == 1 && page.header.flags == 0 && page.header.exit_ns != 0);
  CHECK(page.header.exit_reason == reason && page.header.exit_kind == kFailure);
  CHECK(std::string(page.header.activity) == "torch.save" && page.header.activity_ns != 0);
  CHECK(page.header.setup == kInInit && page.header.setup_ns != 0 && page.header.signal == 0);
  CHECK(std::string(page.header.phase) == "a phase with a name tha");
}

void test_text_is_cut_between_characters(Probe* probe, const std::string& path) {
  tw_probe_phase(probe, "0123456789012345678901\xC3\xA9");
  CHECK(std::string(read(path).header.phase) == "0123456789012345678901");
}

void test_slots_run_out(Probe* probe, const std::string& path) {
  for (uint64_t id = 1; id <= kNumSlots; ++id) {
    CHECK(tw_probe_slot(probe, id, id % 2 ? "odd" : "even", 4) == static_cast<int>(id - 1));
  }
  CHECK(tw_probe_slot(probe, 5, "odd", 4) == 4);
  CHECK((read(path).header.flags & kOverflow) == 0);
  CHECK(tw_probe_slot(probe, 99, "more", 4) == -1);
  CHECK(tw_probe_enter(probe, -1, nullptr) == 0);
  const Page page = read(path);
  CHECK(page.header.flags == kOverflow);
  const Slot& last = page.slots[kNumSlots - 1];
  CHECK(std::string(page.header.names + page.slots[kNumSlots - 2].name) == "odd");
  CHECK(last.id == kNumSlots && last.size == 4 && last.root == kNoRoot && last.members.extents[2] == 0);
  CHECK(page.slots[0].name == page.slots[2].name && page.slots[1].name != page.slots[0].name);
}

void test_a_retired_slot_is_used_again(Probe* probe, const std::string& path) {
  int handles[kNumSlots];
  for (uint64_t i = 0; i < kNumSlots; ++i) {
    handles[i] = tw_probe_slot(probe, i + 1, ("group " + std::to_string(i % 10)).c_str(), 4);
  }
  tw_probe_retire(probe, handles[7]);
  tw_probe_retire(probe, handles[3]);
  tw_probe_counts(probe, handles[7], 5, 4);
  CHECK(read(path).slots[7].enqueued == 5);                    // it stays to be read
  CHECK(tw_probe_slot(probe, 4, "group 3", 4) == handles[3]);  // it is back
  const OperationInfo open = operation(6);
  const uint64_t token = tw_probe_enter(probe, handles[7], &open);

  const int taken = tw_probe_slot(probe, 100, "another", 2);
  CHECK(taken >= 0 && taken != handles[7]);
  const uint64_t other = tw_probe_enter(probe, taken, &open);
  CHECK(other != token);
  tw_probe_complete(probe, handles[7], token, 1);
  tw_probe_complete(probe, taken, token, 1);
  tw_probe_counts(probe, handles[7], 9, 9);
  tw_probe_retire(probe, handles[7]);
  const Page page = read(path);
  const Slot& slot = page.slots[7];
  CHECK(slot.id == 100 && slot.size == 2 && slot.enqueued == 6 && (slot.flags & kOpen) != 0);
  CHECK(std::string(page.header.names + slot.name) == "another");
  CHECK(tw_probe_slot(probe, 101, "one too many", 2) == -1);
}

// Groups come and go in all slots; what a reader sees of one has its name, and its counts.
void test_readers_see_no_mix_of_groups(Probe* probe, const std::string& path) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    int handles[kNumSlots] = {};
    for (uint64_t id = 1; !stop; ++id) {
      int& handle = handles[id % kNumSlots];
      if (id > kNumSlots) tw_probe_retire(probe, handle);
      handle = tw_probe_slot(probe, id, std::to_string(id).c_str(), id % 1000);
      CHECK(handle >= 0);
      tw_probe_counts(probe, handle, id, id);
    }
  });
  int seen = 0;
  for (int i = 0; i < 3000; ++i) {
    Page page;
    if (tw_probe_read_page(path.c_str(), &page) != 0) continue;
    for (const Slot& slot : page.slots) {
      if (slot.id == 0 || (slot.lock & 1) != 0) continue;
      ++seen;
      CHECK(slot.size == slot.id % 1000 && (slot.enqueued == slot.id || slot.enqueued == 0));
      if (slot.name != kNoName) CHECK(std::string(page.header.names + slot.name) == std::to_string(slot.id));
    }
  }
  stop = true;
  writer.join();
  CHECK(seen > 0);
}

void test_members(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "mesh_dp", 4);
  const Members members{5, {100, 16, 2}, {1, 2, 2}};
  tw_probe_members(probe, slot, &members);
  const Members seen = read(path).slots[slot].members;
  CHECK(std::memcmp(&seen, &members, sizeof(members)) == 0);
}

void test_passive(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "default_pg", 2);
  tw_probe_counts(probe, slot, 5, 5);
  Slot seen = read(path).slots[slot];
  CHECK(seen.enqueued == 5 && seen.completed == 5 && seen.sequence == 5 && (seen.flags & kOpen) == 0);
  tw_probe_counts(probe, slot, 7, 5);
  seen = read(path).slots[slot];
  CHECK(seen.sequence == 6 && seen.flags == kOpen && seen.enter_ns != 0);
  const OperationInfo open = operation(6);
  tw_probe_describe(probe, slot, &open, 123);
  seen = read(path).slots[slot];
  CHECK(seen.flags == kOpen && seen.enter_ns == 123 && seen.signature == 77);
  tw_probe_counts(probe, slot, 7, 5);  // nothing new: the description stays
  CHECK(read(path).slots[slot].operation == kAllReduce);
  tw_probe_counts(probe, slot, 7, 6);
  seen = read(path).slots[slot];
  CHECK(seen.sequence == 7 && seen.flags == kOpen && seen.operation == kUnknown);
}

void test_messages(Probe* probe, const std::string& path) {
  const int slot = tw_probe_pair(probe, 1, "pp");
  OperationInfo info = operation(7);
  tw_probe_messages(probe, slot, 7, 5000, &info, 0);
  Slot seen = read(path).slots[slot];
  CHECK(seen.enqueued == 7 && seen.completed == 7 && seen.sum_ns == 5000 && seen.sequence == 7);
  CHECK((seen.flags & (kPair | kWaits)) == (kPair | kWaits) && (seen.flags & kOpen) == 0);
  CHECK(seen.completed_ns > 0 && seen.enter_ns == 0);

  const uint64_t completed_ns = seen.completed_ns;
  info.sequence = 8;  // of nine that were called a thread waits for the eighth
  tw_probe_messages(probe, slot, 9, 6000, &info, 1234);
  seen = read(path).slots[slot];
  CHECK(seen.enqueued == 9 && seen.completed == 7 && seen.sum_ns == 6000 && seen.sequence == 8);
  CHECK((seen.flags & kOpen) != 0 && seen.enter_ns == 1234 && seen.completed_ns == completed_ns);
}

void test_active(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "default_pg", 2);
  tw_probe_enable_timing(probe, 1, 9);
  const OperationInfo first = operation(11), second = operation(12);
  const uint64_t a = tw_probe_enter(probe, slot, &first);
  const uint64_t b = tw_probe_enter(probe, slot, &second);
  Slot seen = read(path).slots[slot];
  CHECK(seen.enqueued == 12 && seen.completed == 10 && seen.sequence == 11 && seen.flags == (kOpen | kActive));
  tw_probe_counts(probe, slot, 100, 100);  // a process that looks from outside is behind
  CHECK(read(path).slots[slot].enqueued == 12);
  tw_probe_complete(probe, slot, b, tw_probe_now());
  CHECK(read(path).slots[slot].sequence == 11);
  tw_probe_complete(probe, slot, a, tw_probe_now());
  tw_probe_complete(probe, slot, a, tw_probe_now());
  const Page page = read(path);
  seen = page.slots[slot];
  CHECK(seen.completed == 12 && (seen.flags & kOpen) == 0 && seen.completed_ns >= seen.enter_ns);
  CHECK(page.header.flags == kTimingEnabled && page.header.control == 9);

  tw_probe_enter(probe, slot, &second);
  tw_probe_enable_timing(probe, 0, 10);
  CHECK(read(path).slots[slot].flags == kOpen);  // it may hang
  tw_probe_counts(probe, slot, 100, 100);
  seen = read(path).slots[slot];
  CHECK(seen.enqueued == 100 && (seen.flags & kOpen) == 0);
}

void run_round(Probe* probe, int slot, uint64_t sequence, uint64_t took_ns) {
  const OperationInfo info = operation(sequence);
  const uint64_t token = tw_probe_enter(probe, slot, &info);
  // T is what passed since the operation was entered: it was entered after the last one's completion.
  tw_probe_complete(probe, slot, token, took_ns == 0 ? 0 : tw_probe_now() + took_ns);
}

void test_windows(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "default_pg", 2);
  tw_probe_window(probe, slot, 12, 3);
  for (uint64_t sequence = 11; sequence < 14; ++sequence) run_round(probe, slot, sequence, 1000);
  CHECK((read(path).slots[slot].flags & kTimed) == 0);
  run_round(probe, slot, 14, 1000);
  Slot seen = read(path).slots[slot];
  CHECK((seen.flags & kTimed) != 0 && seen.first_sequence == 12 && seen.num_rounds == 3 && seen.num_nbytes == 24);

  run_round(probe, slot, 15, 1000);
  run_round(probe, slot, 17, 1000);  // one is missing: the window is never shown
  run_round(probe, slot, 18, 1000);
  CHECK(read(path).slots[slot].first_sequence == 12);
  run_round(probe, slot, 19, 1000);
  run_round(probe, slot, 20, 1000);
  CHECK(read(path).slots[slot].first_sequence == 18);
  for (uint64_t sequence = 21; sequence < 24; ++sequence) run_round(probe, slot, sequence, sequence == 22 ? 0 : 1000);
  CHECK(read(path).slots[slot].first_sequence == 18);  // a completion without a time

  tw_probe_window(probe, slot, 30, 2);
  CHECK((read(path).slots[slot].flags & kTimed) == 0);
  for (uint64_t sequence = 30; sequence < 36; ++sequence) run_round(probe, slot, sequence, 1000);
  CHECK(read(path).slots[slot].first_sequence == 34);
}

void test_time_of_a_round(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "default_pg", 2);
  tw_probe_window(probe, slot, 1, 2);
  const OperationInfo first = operation(1), second = operation(2);
  const uint64_t a = tw_probe_enter(probe, slot, &first);
  const uint64_t b = tw_probe_enter(probe, slot, &second);
  const uint64_t later = tw_probe_now() + 1000000000;
  tw_probe_complete(probe, slot, b, later + 5000000);  // out of order
  tw_probe_complete(probe, slot, a, later + 7000000);
  const Slot seen = read(path).slots[slot];
  // The second to complete counts from the completion of the first, though it was entered long before.
  CHECK(seen.min_us == 2000 && seen.max_us >= 1005000 && seen.max_us < 1100000);
  CHECK(seen.sum_ns / 1000 >= seen.min_us + seen.max_us && seen.sum_ns / 1000 <= seen.min_us + seen.max_us + 1);
}

void test_forked_child_writes_nothing(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "default_pg", 2);
  const Page before = read(path);
  const pid_t child = fork();
  if (child == 0) {
    const OperationInfo info = operation(1);
    tw_probe_heartbeat(probe);
    tw_probe_phase(probe, "child");
    tw_probe_exit_reason(probe, kEnd, "child");
    tw_probe_activity(probe, "child");
    tw_probe_setup(probe, kDestroyed);
    const Members members{1, {1, 1, 1}, {1, 1, 2}};
    tw_probe_members(probe, slot, &members);
    tw_probe_set_flag(probe, kOverflow, 1);
    tw_probe_enable_timing(probe, 1, 1);
    tw_probe_counts(probe, slot, 9, 9);
    tw_probe_progress(probe, slot, 1, 1);
    tw_probe_messages(probe, slot, 9, 9, &info, 0);
    tw_probe_baseline(probe, slot, 1);
    CHECK(tw_probe_enter(probe, slot, &info) == 0);
    CHECK(tw_probe_slot(probe, 2, "child", 2) == -1);
    tw_probe_close(probe);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  const Page after = read(path);
  CHECK(std::memcmp(&before, &after, sizeof(Page)) == 0);
}

void test_pulse(Probe* probe, const std::string& path) {
  CHECK(read(path).header.pulse_ns == 0);
  CHECK(tw_probe_start_pulse(probe) == 0 && tw_probe_start_pulse(probe) == 0);
  uint64_t first = 0;
  while ((first = read(path).header.pulse_ns) == 0) usleep(1000);
  while (read(path).header.pulse_ns == first) usleep(1000);
  CHECK(read(path).header.pulse_ns > first && read(path).header.heartbeats == 0);
  tw_probe_stop_pulse(probe);
  const uint64_t last = read(path).header.pulse_ns;
  usleep(120000);
  CHECK(read(path).header.pulse_ns == last);
  CHECK(tw_probe_start_pulse(probe) == 0);
  while (read(path).header.pulse_ns == last) usleep(1000);
}

// A writer makes every field of a slot the same number; a reader never sees two.
void test_readers_see_no_torn_slot(Probe* probe, const std::string& path) {
  const int slot = tw_probe_slot(probe, 1, "default_pg", 2);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop; ++i) tw_probe_progress(probe, slot, i, i);
  });
  int consistent = 0;
  for (int i = 0; i < 20000; ++i) {
    const Slot seen = read(path).slots[slot];
    if ((seen.lock & 1) != 0) continue;
    ++consistent;
    CHECK(seen.sent_nbytes == seen.received_nbytes);
  }
  stop = true;
  writer.join();
  CHECK(consistent > 0);
}

void test_bad_files(const Folder& folder) {
  Page page;
  CHECK(tw_probe_read_page(folder.file("none").c_str(), &page) == ENOENT);
  CHECK(tw_probe_read_page(folder.path.c_str(), &page) == EINVAL);
  const std::string path = folder.file("bad");
  std::FILE* file = std::fopen(path.c_str(), "w");
  CHECK(tw_probe_read_page(path.c_str(), &page) == EINVAL);  // empty
  for (size_t i = 0; i < kPageNbytes; ++i) std::fputc('x', file);
  std::fclose(file);
  CHECK(tw_probe_read_page(path.c_str(), &page) == EINVAL);
  const std::string link = folder.file("link");
  CHECK(symlink(path.c_str(), link.c_str()) == 0);
  CHECK(tw_probe_read_page(link.c_str(), &page) == ELOOP);
  Probe* probe = nullptr;
  CHECK(tw_probe_create(link.c_str(), &kIdentity, &probe) == EEXIST);
}

// A process that scribbles over a page does the page's own no harm, and what is written next can be read.
void test_overwritten_page(Probe* probe, const std::string& path) {
  const int first = tw_probe_slot(probe, 1, "first", 2);
  std::FILE* file = std::fopen(path.c_str(), "r+");
  CHECK(std::fseek(file, offsetof(Header, exit_reason), SEEK_SET) == 0);
  for (size_t i = offsetof(Header, exit_reason); i < kPageNbytes; ++i) std::fputc('y', file);  // locks become odd
  std::fclose(file);
  const int second = tw_probe_slot(probe, 2, "second", 2);
  tw_probe_counts(probe, first, 3, 3);
  const Page page = read(path);
  CHECK((page.slots[first].lock & 1) == 0 && page.slots[first].enqueued == 3);
  CHECK((page.slots[second].lock & 1) == 0 && page.slots[second].id == 2);
  CHECK(std::string(page.header.names + page.slots[first].name) == "first");
  CHECK(std::string(page.header.names + page.slots[second].name) == "second");
}

// Where memory is short nothing stays behind, and no write dies later.
void test_no_room(const Folder& folder) {
  const std::string path = folder.file("full");
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1024, 1024};
    std::signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    Probe* probe = nullptr;
    CHECK(tw_probe_create(path.c_str(), &kIdentity, &probe) == EFBIG && probe == nullptr);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(access(path.c_str(), F_OK) != 0);
}

void test_control(const Folder& folder) {
  const std::string path = folder.file("control");
  Control control;
  CHECK(tw_probe_read_control(path.c_str(), &control) == ENOENT);
  const ControlEntry entries[] = {{7, 100}, {8, 200}};
  uint32_t number = 0;
  CHECK(tw_probe_write_control(path.c_str(), entries, 2, 20, &number) == 0 && number == 1);
  CHECK(tw_probe_read_control(path.c_str(), &control) == 0);
  CHECK(control.number == 1 && control.num_rounds == 20 && control.num_entries == 2);
  CHECK(control.entries[1].id == 8 && control.entries[1].first_sequence == 200);
  CHECK(tw_probe_write_control(path.c_str(), nullptr, 0, 0, &number) == 0 && number == 2);
  CHECK(tw_probe_read_control(path.c_str(), &control) == 0 && control.num_rounds == 0 && control.entries[0].id == 0);
  CHECK(tw_probe_write_control(path.c_str(), entries, kNumControlEntries + 1, 1, &number) == EINVAL);
  CHECK(tw_probe_request_servers(path.c_str()) == 0);
  CHECK(tw_probe_read_control(path.c_str(), &control) == 0 && control.servers == 1 && control.number == 2);
  CHECK(tw_probe_write_control(path.c_str(), entries, 1, 5, &number) == 0 && number == 3);
  CHECK(tw_probe_read_control(path.c_str(), &control) == 0 && control.servers == 1 && control.num_rounds == 5);
  const std::string other = folder.file("other");  // a request that is the first to be made
  CHECK(tw_probe_request_servers(other.c_str()) == 0);
  CHECK(tw_probe_read_control(other.c_str(), &control) == 0 && control.servers == 1 && control.number == 0);
}

}  // namespace

int main() {
  for (const auto test : {test_text_is_cut_between_characters, test_slots_run_out, test_a_retired_slot_is_used_again,
                          test_readers_see_no_mix_of_groups, test_members, test_passive, test_messages, test_active,
                          test_windows, test_time_of_a_round, test_forked_child_writes_nothing, test_pulse,
                          test_readers_see_no_torn_slot, test_overwritten_page}) {
    const Folder folder;
    const std::string path = folder.file("page");
    Probe* probe = create(path);
    test(probe, path);
    tw_probe_close(probe);
  }
  const Folder folder;
  test_identity(folder);
  test_bad_files(folder);
  test_no_room(folder);
  test_control(folder);
}
