// Notes in the page that somebody asked for the end of the process. What the signal does stays as it is.
#include <atomic>
#include <csignal>

#include "probe/seqlock.h"
#include "probe/writer.h"

namespace tw::probe {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr size_t kNumSignals = sizeof(kSignals) / sizeof(*kSignals);

static_assert(std::atomic<Probe*>::is_always_lock_free);
std::atomic<Probe*> watched{nullptr};
struct sigaction actions[kNumSignals];  // what was set before, by number in kSignals

// All that a handler may do: no lock is taken, and a reader who sees half of it sees no signal, or no exit.
void note(Header* header, int signal, bool ends) {
  const uint64_t now = tw_probe_now();
  if (__atomic_load_n(&header->signal, __ATOMIC_RELAXED) == 0) {
    __atomic_store_n(&header->signal_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&header->signal, static_cast<uint32_t>(signal), __ATOMIC_RELEASE);
  }
  if (ends && __atomic_load_n(&header->exit_ns, __ATOMIC_RELAXED) == 0) {
    __atomic_store_n(&header->exit_kind, static_cast<uint32_t>(kInterruption), __ATOMIC_RELAXED);
    __atomic_store_n(&header->exit_ns, now, __ATOMIC_RELEASE);
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  size_t index = 0;
  while (kSignals[index] != signal) ++index;
  const struct sigaction& action = actions[index];
  const bool is_default = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  Probe* probe = watched.load(std::memory_order_relaxed);
  if (writes(probe)) note(&probe->page->header, signal, is_default);
  if (is_default) {
    // The process ends of the signal itself, as soon as this returns and the signal is no longer blocked.
    sigaction(signal, &action, nullptr);
    raise(signal);
  } else if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

// Others may keep the handler that they found and call it: one that is not known might call ours again and again.
bool may_precede(const struct sigaction& action, void* known) {
  if ((action.sa_flags & SA_SIGINFO) != 0) return false;
  return action.sa_handler == SIG_DFL || (known != nullptr && reinterpret_cast<void*>(action.sa_handler) == known);
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
  void* found = nullptr;
  for (size_t i = 0; i < kNumSignals; ++i) {
    struct sigaction current;
    if (sigaction(kSignals[i], nullptr, &current) != 0 || is_ours(current)) continue;
    const bool is_handler =
        (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN;
    if (kSignals[i] == SIGINT && is_handler) found = reinterpret_cast<void*>(current.sa_handler);
    if (!may_precede(current, known)) continue;
    struct sigaction own = current;  // its mask and flags
    own.sa_flags |= SA_SIGINFO;
    own.sa_sigaction = handle;
    actions[i] = current;
    sigaction(kSignals[i], &own, nullptr);
  }
  return found;
}

void tw_probe_outlive_signal(Probe* probe, uint64_t ns) {
  if (!writes(probe)) return;
  Header& header = probe->page->header;
  if (header.signal != 0 && tw_probe_now() - header.signal_ns >= ns) store_shared(&header.signal, 0U);
}
