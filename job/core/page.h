// The rank page: 8,192 bytes of shared memory that say what a rank is doing and outlive it.
//
// A page has one writing process, named in its header, and any number of readers. Inside that process any thread may
// write: the functions below keep what they write in private memory under a mutex and publish it under the sequence
// lock of a slot. A forked child holds the same Probe, and every function does nothing there. Numbers are those of the
// machine; no reader is on another one. Times are nanoseconds of CLOCK_MONOTONIC.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tw::probe {

constexpr uint64_t kPageMagic = 0x315f454741505754;     // "TWPAGE_1"
constexpr uint64_t kControlMagic = 0x314c544e43505754;  // "TWPCNTL1"
constexpr uint32_t kLayout = 3;
constexpr size_t kPageNbytes = 8192;
constexpr size_t kNumSlots = 50;
constexpr size_t kMaxDimensions = 3;
constexpr uint8_t kNoName = 255;
constexpr uint16_t kNoRoot = 65535;

// Page flags.
constexpr uint32_t kTimingEnabled = 1;  // operations are timed
constexpr uint32_t kOverflow = 2;       // more process groups than slots
constexpr uint32_t kSocket = 8;         // a worker server listens on the page's name with .sock for .page

// Slot flags.
constexpr uint8_t kOpen = 1;    // the operation described has not completed
constexpr uint8_t kTimed = 4;   // the timing is of a whole window
constexpr uint8_t kActive = 8;  // enter and completion are observed as they happen
constexpr uint8_t kPair = 16;   // not a group but the messages from one rank to another, see Slot; tests ask for it
constexpr uint8_t kWaits = 32;  // of a pair: its messages are counted, and sum_ns is the time waited for them

// The names are those of torch.distributed: tw_probe_operation_name().
enum Operation : uint8_t {
  kUnknown,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kAllGatherIntoTensor,
  kGather,
  kScatter,
  kReduceScatter,
  kReduceScatterTensor,
  kAllToAll,
  kAllToAllSingle,
  kBarrier,
  kMonitoredBarrier,
  kSend,
  kRecv,
  kAllReduceCoalesced,
  kAllGatherCoalesced,
  kAllGatherIntoTensorCoalesced,
  kReduceScatterTensorCoalesced,
  kNumOperations,
};

// What the exit reason of a page is.
enum ExitKind : uint32_t {
  kNoExit,
  kEnd,           // the script ended, or called for the end of the process, with any status
  kFailure,       // an uncaught exception
  kInterruption,  // Ctrl-C, or a signal that asks for the end; without a text `exit_signal` is the reason
  kCrash,         // `exit_signal`; to be believed once the process has gone, some recover from it
};

// Where a rank is with init_process_group.
enum Setup : uint32_t {
  kUnknownSetup,
  kBeforeInit,
  kInInit,
  kInitialized,
  kDestroyed,
};

// Global ranks in the order of their ranks in a group: `first` plus a multiple below extents[i] of strides[i] for
// each dimension, of which the last runs fastest. Dimensions in front that are not needed have extent 1.
// Where all extents are 0 the members are not known, or not of this kind.
struct Members {
  uint32_t first;
  uint32_t strides[kMaxDimensions];
  uint32_t extents[kMaxDimensions];
};

// What one process group does: its collectives. What send and recv do on it stands in slots of their own, one for each
// direction and peer. Their numbers count apart on either side. A message is open while a thread waits for it.
struct Slot {
  uint32_t lock;  // odd while it is written; a writer that died within leaves it odd
  uint8_t operation;
  uint8_t dtype;  // index into dtype_name(); 0 unknown
  uint8_t flags;
  uint8_t name;           // where the group's name begins in Header::names; kNoName
  uint64_t id;            // the same on all ranks of the group; 0: the slot is free
  uint64_t enqueued;      // collectives so far
  uint64_t signature;     // of what has to agree between ranks; 0 unknown
  int64_t numel;          // of this rank's input; -1 unknown
  uint64_t enter_ns;      // of the operation described: the oldest open one, else the last; 0 unknown
  uint64_t completed_ns;  // the last completion; 0 none seen
  uint64_t sent_nbytes;   // progress of the transport; all ones where it does not tell
  uint64_t received_nbytes;
  uint64_t sum_ns;  // of T over a window of rounds, see Window; with kWaits of all waits so far
  uint64_t num_nbytes;
  // The low halves of numbers at most 2^32 - 1 below `enqueued`.
  uint32_t completed;
  uint32_t sequence;  // of the operation described
  uint32_t first_sequence;
  uint32_t min_us;
  uint32_t max_us;
  uint16_t num_rounds;
  uint16_t rooted_or_pairwise;
  uint16_t size;        // ranks of the group; 65535: that many or more
  uint16_t root;        // rank within the group, for send and recv the peer's global rank; kNoRoot
  float baseline_rate;  // completed operations per second in good times; 0 unknown
  Members members;
  uint32_t reserved;
};
static_assert(sizeof(Slot) == 152);

struct Header {
  uint64_t magic;
  uint32_t layout;
  uint32_t lock;  // of the texts and what belongs to them
  uint8_t boot_id[16];
  uint64_t run;         // hash of the run id
  uint64_t start_time;  // of the process, in clock ticks since boot, as /proc/PID/stat gives it
  uint32_t pid;
  int32_t rank;
  uint32_t world_size;
  uint32_t restart_count;
  uint32_t flags;
  uint32_t control;       // number of the last request of the control page that was acted on
  uint64_t heartbeat_ns;  // when the probe's thread last ran, which needs the interpreter
  uint64_t heartbeats;
  uint64_t exit_ns;       // when the exit reason was given; a process may live on
  uint64_t signal_ns;     // when `signal` came
  uint64_t setup_ns;      // since when `setup` is what it is
  uint64_t activity_ns;   // so with `activity`
  uint64_t pulse_ns;      // when a thread last ran that needs none; 0: there is none
  uint32_t exit_kind;     // an ExitKind
  uint32_t signal;        // the last SIGINT, SIGTERM or SIGHUP, of several within 10 s the first; 0: none came
  uint32_t setup;         // a Setup
  uint32_t exit_signal;   // that ends the process: one of those, or else the last that tells of a crash; 0: none
  char exit_reason[256];  // texts are UTF-8, cut to their room, and end with a zero byte
  char phase[24];         // as the script declared it
  char activity[24];      // what the main thread has been in since no operation was completed, as far as it is known
  char names[144];        // of groups, one after another
};
static_assert(sizeof(Header) == 592);

struct Page {
  Header header;
  Slot slots[kNumSlots];
};
static_assert(sizeof(Page) == kPageNbytes);

// The control page: the file `control` beside the pages, written by the node's agent, read by every probe. An agent
// asks for timing by a request with a new number. Windows of `num_rounds` rounds begin at `first_sequence` of each
// process group, a number that no rank has reached yet, so that all ranks time the same rounds. Window follows window.
// The windows of a group without an entry, and of pairs, begin at 1.
struct ControlEntry {
  uint64_t id;
  uint64_t first_sequence;
};

constexpr size_t kNumControlEntries = 509;

struct Control {
  uint64_t magic;
  uint32_t layout;
  uint32_t lock;
  uint32_t number;      // of the request, from 1
  uint32_t num_rounds;  // 1 to 65535; 0 disables timing
  uint32_t num_entries;
  uint32_t servers;  // not 0: the ranks of this node are to start their worker servers
  uint8_t reserved[16];
  ControlEntry entries[kNumControlEntries];
};
static_assert(sizeof(Control) == kPageNbytes);

struct Identity {
  const char* run_id;
  int32_t rank;
  uint32_t world_size;
  uint32_t restart_count;
};

struct OperationInfo {
  uint64_t sequence;
  uint64_t signature;
  int64_t numel;
  uint64_t nbytes;  // of this rank's input
  uint8_t operation;
  uint8_t dtype;
  uint16_t root;
  uint32_t pairwise;  // P means nothing for it: rooted, send, recv, barrier
};

struct Probe;

}  // namespace tw::probe

#define TW_PROBE_API extern "C" __attribute__((visibility("default")))

// Functions that return int give 0 or an errno. `probe` may be null everywhere: nothing happens.

// Creates the page, which must not exist. It stays when the process ends; close only unmaps it.
TW_PROBE_API int tw_probe_create(const char* path, const tw::probe::Identity* identity, tw::probe::Probe** probe);
TW_PROBE_API void tw_probe_close(tw::probe::Probe* probe);

// Has a thread show from now on that the process lives: Header::pulse_ns.
TW_PROBE_API int tw_probe_start_pulse(tw::probe::Probe* probe);
TW_PROBE_API void tw_probe_stop_pulse(tw::probe::Probe* probe);

TW_PROBE_API uint64_t tw_probe_now(void);
TW_PROBE_API void tw_probe_heartbeat(tw::probe::Probe* probe);
TW_PROBE_API void tw_probe_set_flag(tw::probe::Probe* probe, uint32_t flag, int on);
TW_PROBE_API void tw_probe_phase(tw::probe::Probe* probe, const char* text);
TW_PROBE_API void tw_probe_activity(tw::probe::Probe* probe, const char* text);
// A Setup.
TW_PROBE_API void tw_probe_setup(tw::probe::Probe* probe, uint32_t setup);
// The process goes on with its work: a signal that came so long ago was none that ended it.
TW_PROBE_API void tw_probe_outlive_signal(tw::probe::Probe* probe, uint64_t ns);
// An ExitKind and its text. The first exit reason stays.
TW_PROBE_API void tw_probe_exit_reason(tw::probe::Probe* probe, uint32_t kind, const char* text);
// Notes SIGINT, SIGTERM and SIGHUP in the page from now on, and does what would have been done without it. Handlers
// are put before those that are there only where they are the default ones, or `known`, which may be null. Call it
// again after others may have set theirs, while they cannot do so. Gives the handler of SIGINT that was found, null
// where that is not one. The first call has SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL noted as well, before what
// handler is there; one that is set later comes before it, and is to pass the signal on.
TW_PROBE_API void* tw_probe_watch_signals(tw::probe::Probe* probe, void* known);

// Before the process ends of an abort or of a request for its end, a thread may look once more at what it had called
// last; it has half a second for that. One that calls the first of these again and again is waited for: it gives
// whether it is to look now. The second says that it has. A request that is handled does not wait.
TW_PROBE_API int tw_probe_is_look_wanted(tw::probe::Probe* probe);
TW_PROBE_API void tw_probe_look_taken(tw::probe::Probe* probe);

// A handle for the slot of a group, or of a pair of ranks, a new one on first sight; -1 where there is no more room,
// which raises kOverflow.
TW_PROBE_API int tw_probe_slot(tw::probe::Probe* probe, uint64_t id, const char* name, uint64_t size);
TW_PROBE_API int tw_probe_pair(tw::probe::Probe* probe, uint64_t id, const char* name);
// The group is no more. Its slot stays to be read until another needs the room; then the handle stands for nothing, and
// the calls that take it do nothing.
TW_PROBE_API void tw_probe_retire(tw::probe::Probe* probe, int slot);
TW_PROBE_API void tw_probe_members(tw::probe::Probe* probe, int slot, const tw::probe::Members* members);

// Passive: counts seen from outside the operations. Ignored for a slot that enter and complete keep up to date.
TW_PROBE_API void tw_probe_counts(tw::probe::Probe* probe, int slot, uint64_t enqueued, uint64_t completed);
TW_PROBE_API void tw_probe_describe(tw::probe::Probe* probe, int slot, const tw::probe::OperationInfo* operation,
                                    uint64_t enter_ns);
// Passive, of a pair: so many messages so far, and how long threads have waited for them in all. `operation` is the one
// that a thread waits for since `enter_ns`, or with 0 the last one.
TW_PROBE_API void tw_probe_messages(tw::probe::Probe* probe, int slot, uint64_t enqueued, uint64_t waited_ns,
                                    const tw::probe::OperationInfo* operation, uint64_t enter_ns);
TW_PROBE_API void tw_probe_baseline(tw::probe::Probe* probe, int slot, float rate);
// The transport's running totals.
TW_PROBE_API void tw_probe_progress(tw::probe::Probe* probe, int slot, uint64_t sent_nbytes, uint64_t received_nbytes);

// Active. Enter gives a token (0: nothing was recorded) that complete takes; several operations may be open at once.
// A completion with time 0 is one of which only the fact is known.
TW_PROBE_API uint64_t tw_probe_enter(tw::probe::Probe* probe, int slot, const tw::probe::OperationInfo* operation);
TW_PROBE_API void tw_probe_complete(tw::probe::Probe* probe, int slot, uint64_t token, uint64_t time_ns);
// Windows for a group from now on; a window that the group is too late for is left out. num_rounds 0 ends them.
TW_PROBE_API void tw_probe_window(tw::probe::Probe* probe, int slot, uint64_t first_sequence, uint32_t num_rounds);
// Back to passive: counts count again, and what is open stays so until they say otherwise; the last whole window stays
// to be read. `control` is the request that was acted on.
TW_PROBE_API void tw_probe_enable_timing(tw::probe::Probe* probe, int on, uint32_t control);

// Readers. A slot or header that was being written all the time keeps an odd lock in the copy; do not believe it.
TW_PROBE_API int tw_probe_read_page(const char* path, tw::probe::Page* page);
TW_PROBE_API int tw_probe_read_control(const char* path, tw::probe::Control* control);
// Writes a request with the next number, creating the page if need be; returns the number in `number`.
TW_PROBE_API int tw_probe_write_control(const char* path, const tw::probe::ControlEntry* entries, uint32_t num_entries,
                                        uint32_t num_rounds, uint32_t* number);

// Has the ranks of this node start their worker servers, creating the page if need be.
TW_PROBE_API int tw_probe_request_servers(const char* path);

// FNV-1a with 64 bits: of run ids, process groups and signatures.
TW_PROBE_API uint64_t tw_probe_hash(const void* data, size_t nbytes);
// Null past the last one.
TW_PROBE_API const char* tw_probe_operation_name(uint32_t code);
TW_PROBE_API const char* tw_probe_dtype_name(uint32_t code);
