// Notes in the page that the process was told to end, or that it crashed. What the signal does stays as
// it is.
#include <time.h>

#include <atomic>
#include <csignal>
#include <cstdint>

#include "probe.h"
#include "seqlock.h"

namespace tw::probe {
namespace {

constexpr int kRequests[] = {SIGINT, SIGTERM, SIGHUP};  // for the end
constexpr int kCrashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
constexpr int kNumSignals = 32;
constexpr uint64_t kLookNs = 500'000'000;  // that the end waits for a last look at most
constexpr long kLookStepNs = 2'000'000;
constexpr uint64_t kTogetherNs = 10'000'000'000;  // in which all ranks of a job get a signal
constexpr uint64_t kAttentiveNs = 1'000'000'000;  // since who looks has asked: it does so a few times a second

static_assert(std::atomic<Probe*>::is_always_lock_free);
std::atomic<Probe*> watched{nullptr};
struct sigaction actions[kNumSignals];  // what was set before, by signal

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else if (action.sa_handler != SIG_IGN) {
    action.sa_handler(signal);
  }
}

// What handlers do to a page: no lock is taken, and a reader who sees half of it sees no signal, or no exit.

bool note_exit(Header* header, ExitKind kind, uint64_t now) {
  if (__atomic_load_n(&header->exit_ns, __ATOMIC_RELAXED) != 0) return false;
  __atomic_store_n(&header->exit_kind, static_cast<uint32_t>(kind), __ATOMIC_RELAXED);
  __atomic_store_n(&header->exit_ns, now, __ATOMIC_RELEASE);
  return true;
}

void note_request(Header* header, int signal, bool ends) {
  const uint64_t now = tw_probe_now();
  const bool is_first = __atomic_load_n(&header->signal, __ATOMIC_RELAXED) == 0;
  if (is_first || now - __atomic_load_n(&header->signal_ns, __ATOMIC_RELAXED) > kTogetherNs) {
    __atomic_store_n(&header->signal, 0U, __ATOMIC_RELEASE);
    __atomic_store_n(&header->signal_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&header->signal, static_cast<uint32_t>(signal), __ATOMIC_RELEASE);
  }
  if (!ends) return;
  __atomic_store_n(&header->exit_signal, static_cast<uint32_t>(signal), __ATOMIC_RELAXED);
  note_exit(header, kInterruption, now);
}

// Gives whether the crash is the exit reason.
bool note_crash(Header* header, int signal) {
  if (__atomic_load_n(&header->exit_kind, __ATOMIC_RELAXED) == kInterruption) return false;
  __atomic_store_n(&header->exit_signal, static_cast<uint32_t>(signal), __ATOMIC_RELAXED);
  return note_exit(header, kCrash, tw_probe_now());
}

// What this rank had called last may not be in its page yet, nor beside it. The process may end at once, so that this
// waits; where it goes on for a while, the look is only asked for.
void ask_for_look(Look* look) {
  look->is_taken.store(false, std::memory_order_relaxed);
  look->is_wanted.store(true, std::memory_order_release);
}

// Transports abort a rank in a thread of theirs when what ranks called does not fit. The thread that is to look may
// lack a lock that the thread of this signal holds: then the time runs out.
void await_look(Look* look) {
  // Read before the time is: it is never later.
  const uint64_t asked = look->asked_ns.load(std::memory_order_relaxed);
  const uint64_t start = tw_probe_now();
  if (start - asked > kAttentiveNs) return;
  ask_for_look(look);
  while (!look->is_taken.load(std::memory_order_acquire) && tw_probe_now() - start < kLookNs) {
    const timespec pause{0, kLookStepNs};
    nanosleep(&pause, nullptr);
  }
}

void take_back_crash(Header* header) {
  if (__atomic_load_n(&header->exit_kind, __ATOMIC_RELAXED) != kCrash) return;
  __atomic_store_n(&header->exit_ns, uint64_t{0}, __ATOMIC_RELAXED);
  __atomic_store_n(&header->exit_kind, static_cast<uint32_t>(kNoExit), __ATOMIC_RELEASE);
}

void on_request(int signal, siginfo_t* info, void* context) {
  const struct sigaction& action = actions[signal];
  Probe* probe = watched.load(std::memory_order_relaxed);
  if (writes(probe)) {
    note_request(&probe->page->header, signal, is_default(action));
    is_default(action) ? await_look(&probe->look) : ask_for_look(&probe->look);
  }
  if (!is_default(action)) return call(action, signal, info, context);
  // The process ends of the signal itself, as soon as this returns and the signal is no longer blocked.
  sigaction(signal, &action, nullptr);
  raise(signal);
}

// Whether the instruction that crashed does so again: then the kernel's log and the core file tell of that.
bool comes_again(int signal, const siginfo_t* info) {
  return info->si_code > 0 && signal != SIGABRT && !(signal == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

void on_crash(int signal, siginfo_t* info, void* context) {
  const struct sigaction& action = actions[signal];
  Probe* probe = watched.load(std::memory_order_relaxed);
  const bool is_noted = writes(probe) && note_crash(&probe->page->header, signal);
  if (is_noted && signal == SIGABRT) await_look(&probe->look);
  if (is_default(action)) {
    sigaction(signal, &action, nullptr);
    if (!comes_again(signal, info)) raise(signal);
    return;
  }
  call(action, signal, info, context);
  // It went on to mend what was wrong, as virtual machines do. Abort ends the process even so.
  if (is_noted && signal != SIGABRT) take_back_crash(&probe->page->header);
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_request;
}

// Others may keep the handler that they found and call it: one that is not known might call ours again and again.
bool may_precede(const struct sigaction& action, void* known) {
  if ((action.sa_flags & SA_SIGINFO) != 0) return false;
  return action.sa_handler == SIG_DFL || (known != nullptr && reinterpret_cast<void*>(action.sa_handler) == known);
}

// Puts a handler before what is there, with the mask and the flags of that.
void precede(int signal, const struct sigaction& current, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction own = current;
  own.sa_flags |= SA_SIGINFO | flags;
  own.sa_sigaction = handler;
  actions[signal] = current;
  sigaction(signal, &own, nullptr);
}

// Only once: what is there was there before, and calls none of ours.
void watch_crashes() {
  static bool is_watching = false;
  if (is_watching) return;
  is_watching = true;
  for (const int signal : kCrashes) {
    struct sigaction current;
    if (sigaction(signal, nullptr, &current) != 0) continue;
    const bool is_ignored = (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_IGN;
    if (!is_ignored) precede(signal, current, on_crash, SA_ONSTACK);
  }
}

}  // namespace

void forget_signals(const Probe* probe) {
  if (watched.load() == probe) watched = nullptr;
}

}  // namespace tw::probe

using namespace tw::probe;

void* tw_probe_watch_signals(Probe* probe, void* known) {
  if (!writes(probe)) return nullptr;
  watched = probe;
  watch_crashes();
  void* found = nullptr;
  for (const int signal : kRequests) {
    struct sigaction current;
    if (sigaction(signal, nullptr, &current) != 0 || is_ours(current)) continue;
    const bool is_handler =
        (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN;
    if (signal == SIGINT && is_handler) found = reinterpret_cast<void*>(current.sa_handler);
    if (may_precede(current, known)) precede(signal, current, on_request, 0);
  }
  return found;
}

int tw_probe_is_look_wanted(Probe* probe) {
  if (!writes(probe)) return 0;
  probe->look.asked_ns.store(tw_probe_now(), std::memory_order_relaxed);
  return probe->look.is_wanted.load(std::memory_order_acquire) ? 1 : 0;
}

void tw_probe_look_taken(Probe* probe) {
  if (!writes(probe)) return;
  probe->look.is_wanted.store(false, std::memory_order_relaxed);
  probe->look.is_taken.store(true, std::memory_order_release);
}

void tw_probe_outlive_signal(Probe* probe, uint64_t ns) {
  if (!writes(probe)) return;
  Header& header = probe->page->header;
  const uint64_t now = tw_probe_now();
  if (header.signal != 0 && now - header.signal_ns >= ns) store_shared(&header.signal, 0U);
  if (header.exit_kind == kCrash && now - header.exit_ns >= ns) take_back_crash(&header);
}
