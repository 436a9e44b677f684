// A thread that shows that the process lives, even if its interpreter is held. It costs the others nothing: a thread
// that needs the interpreter's lock makes those that work hand it over, and wait to get it back.
#include <pthread.h>
#include <time.h>

#include <cerrno>
#include <csignal>

#include "probe.h"
#include "seqlock.h"

namespace tw::probe {
namespace {

constexpr long kPulseNs = 50000000;
constexpr size_t kStackNbytes = 256 << 10;

void* run(void* argument) {
  Probe* probe = static_cast<Probe*>(argument);
  while (!probe->pulse_ends.load(std::memory_order_acquire)) {
    store_shared(&probe->page->header.pulse_ns, tw_probe_now());
    const timespec pause{0, kPulseNs};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }
  return nullptr;
}

}  // namespace
}  // namespace tw::probe

using namespace tw::probe;

int tw_probe_start_pulse(Probe* probe) {
  if (!writes(probe) || probe->has_pulse) return 0;
  pthread_attr_t attributes;
  if (const int error = pthread_attr_init(&attributes)) return error;
  pthread_attr_setstacksize(&attributes, kStackNbytes);
  sigset_t all, before;  // signals are for the other threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&probe->pulse, &attributes, run, probe);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  probe->has_pulse = error == 0;
  return error;
}

void tw_probe_stop_pulse(Probe* probe) {
  if (!writes(probe) || !probe->has_pulse) return;
  probe->pulse_ends.store(true, std::memory_order_release);
  pthread_join(probe->pulse, nullptr);
  probe->pulse_ends.store(false, std::memory_order_relaxed);
  probe->has_pulse = false;
}
