// A page tells that the process was told to end; everything else is as it is without.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "page.h"
#include "probe.h"
#include "tests/check.h"

using namespace tw::probe;

namespace {

volatile sig_atomic_t num_handled = 0;
void count(int) { num_handled = num_handled + 1; }
volatile int* volatile nowhere = nullptr;
struct sigaction before;

// What a process that watches signals leaves: how it ended, and its page.
struct Left {
  int status;
  Header header;
  bool was_killed_by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
  bool has_exited() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

// `body` runs in it.
template <class Body>
Left left_by(Body&& body) {
  std::string folder = std::filesystem::temp_directory_path() / "tw_signals_XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/page";
  const pid_t child = fork();
  if (child == 0) {
    const Identity identity{"a run", 0, 1, 0};
    Probe* probe = nullptr;
    CHECK(tw_probe_create(path.c_str(), &identity, &probe) == 0);
    body(probe);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  Page page;
  CHECK(tw_probe_read_page(path.c_str(), &page) == 0);
  std::filesystem::remove_all(folder);
  return {status, page.header};
}

void* address(void (*handler)(int)) { return reinterpret_cast<void*>(handler); }

void test_a_signal_without_a_handler_ends_the_process() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Left left = left_by([signal](Probe* probe) {
      CHECK(tw_probe_watch_signals(probe, nullptr) == nullptr);
      raise(signal);
    });
    CHECK(left.was_killed_by(signal));
    CHECK(left.header.signal == static_cast<uint32_t>(signal) && left.header.signal_ns != 0);
    CHECK(left.header.exit_kind == kInterruption && left.header.exit_ns == left.header.signal_ns &&
          left.header.exit_signal == left.header.signal && left.header.exit_reason[0] == 0);
  }
}

void test_the_signal_that_ends_the_process_may_be_another_than_the_first() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGINT, count);
    tw_probe_watch_signals(probe, address(count));
    tw_probe_watch_signals(probe, address(count));
    raise(SIGINT);
    CHECK(num_handled == 1);
    raise(SIGTERM);
  });
  CHECK(left.was_killed_by(SIGTERM) && left.header.exit_kind == kInterruption);
  CHECK(left.header.signal == SIGINT && left.header.exit_signal == SIGTERM);
  CHECK(left.header.exit_ns > left.header.signal_ns);
}

void test_a_known_handler_is_called() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGINT, count);
    CHECK(tw_probe_watch_signals(probe, nullptr) == address(count));
    raise(SIGINT);  // it was not known
    CHECK(num_handled == 1);
    tw_probe_watch_signals(probe, address(count));
    tw_probe_watch_signals(probe, address(count));
    raise(SIGINT);
    raise(SIGINT);
    CHECK(num_handled == 3);
    std::signal(SIGTERM, count);  // in place of ours
    tw_probe_watch_signals(probe, address(count));
    raise(SIGTERM);
    CHECK(num_handled == 4);
  });
  CHECK(left.has_exited());
  CHECK(left.header.signal == SIGINT && left.header.exit_ns == 0 && left.header.exit_kind == kNoExit);
}

void test_what_is_ignored_stays_so() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGHUP, SIG_IGN);
    tw_probe_watch_signals(probe, nullptr);
    raise(SIGHUP);
  });
  CHECK(left.has_exited() && left.header.signal == 0);
}

void test_the_signal_of_a_forked_child_is_not_its_parents() {
  const Left left = left_by([](Probe* probe) {
    tw_probe_watch_signals(probe, nullptr);
    const pid_t child = fork();
    if (child == 0) {
      raise(SIGTERM);
      _exit(0);
    }
    int status_of_child;
    CHECK(waitpid(child, &status_of_child, 0) == child);
    CHECK(WIFSIGNALED(status_of_child) && WTERMSIG(status_of_child) == SIGTERM);
  });
  CHECK(left.has_exited() && left.header.signal == 0 && left.header.exit_ns == 0);
}

void test_what_was_said_before_stays_the_exit_reason() {
  const Left left = left_by([](Probe* probe) {
    tw_probe_watch_signals(probe, nullptr);
    tw_probe_exit_reason(probe, kFailure, "ValueError: 1");
    raise(SIGTERM);
  });
  CHECK(left.was_killed_by(SIGTERM) && left.header.signal == SIGTERM);
  CHECK(left.header.exit_kind == kFailure && std::string(left.header.exit_reason) == "ValueError: 1");
}

void test_a_signal_that_was_outlived_is_forgotten() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGINT, count);
    tw_probe_watch_signals(probe, address(count));
    std::signal(SIGTERM, count);
    tw_probe_watch_signals(probe, address(count));
    raise(SIGINT);
    const uint64_t minute_ns = 60000000000;
    tw_probe_outlive_signal(probe, minute_ns);
    raise(SIGTERM);  // the first is still the one
    tw_probe_outlive_signal(probe, 0);
    raise(SIGTERM);
  });
  CHECK(left.has_exited() && left.header.signal == SIGTERM);
}

// A scheduler's warning is not the signal that ends the job later.
void test_a_signal_long_after_another_takes_its_place() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGHUP, count);
    std::signal(SIGTERM, count);
    tw_probe_watch_signals(probe, address(count));
    raise(SIGHUP);
    Header& header = probe->page->header;
    header.signal_ns -= 9'000'000'000;
    raise(SIGTERM);  // all get one, some of them late
    CHECK(header.signal == SIGHUP);
    header.signal_ns -= 2'000'000'000;
    raise(SIGTERM);
    CHECK(tw_probe_now() - header.signal_ns < 5'000'000'000);
  });
  CHECK(left.has_exited() && left.header.signal == SIGTERM);
}

// Watches signals, with a thread that takes the look that is asked for.
void look_once_asked(Probe* probe) {
  tw_probe_watch_signals(probe, nullptr);
  CHECK(tw_probe_is_look_wanted(probe) == 0);
  std::thread([probe] {
    while (tw_probe_is_look_wanted(probe) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    tw_probe_phase(probe, "looked");
    tw_probe_look_taken(probe);
  }).detach();
}

void test_an_abort_waits_for_a_last_look() {
  const Left left = left_by([](Probe* probe) {
    look_once_asked(probe);
    std::abort();
  });
  CHECK(left.was_killed_by(SIGABRT) && left.header.exit_signal == SIGABRT);
  CHECK(std::string(left.header.phase) == "looked");
}

void test_a_request_that_ends_the_process_waits_for_a_look() {
  const Left left = left_by([](Probe* probe) {
    look_once_asked(probe);
    raise(SIGTERM);
  });
  CHECK(left.was_killed_by(SIGTERM));
  CHECK(std::string(left.header.phase) == "looked");
}

void test_a_request_that_is_handled_only_asks_for_a_look() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGINT, count);
    tw_probe_watch_signals(probe, address(count));
    tw_probe_watch_signals(probe, address(count));
    CHECK(tw_probe_is_look_wanted(probe) == 0);
    raise(SIGINT);
    CHECK(tw_probe_is_look_wanted(probe) == 1);
    tw_probe_look_taken(probe);
    CHECK(tw_probe_is_look_wanted(probe) == 0);
  });
  CHECK(left.has_exited() && left.header.signal == SIGINT);
}

void test_an_abort_waits_for_nobody_for_long() {
  const Left left = left_by([](Probe* probe) {
    tw_probe_watch_signals(probe, nullptr);
    CHECK(tw_probe_is_look_wanted(probe) == 0);  // and never again
    std::abort();
  });
  CHECK(left.was_killed_by(SIGABRT));
  const uint64_t waited_ns = tw_probe_now() - left.header.exit_ns;
  CHECK(waited_ns >= 500'000'000 && waited_ns < 10'000'000'000);
}

// A sanitizer would tell of it before it happens.
__attribute__((no_sanitize("undefined"))) void write_nowhere() { *nowhere = 1; }

void test_a_crash_is_noted() {
  const struct {
    int signal;
    void (*crash)();
  } crashes[] = {
      {SIGSEGV, write_nowhere},
      {SIGSEGV, [] { raise(SIGSEGV); }},
      {SIGABRT, [] { std::abort(); }},
      {SIGFPE, [] { raise(SIGFPE); }},
  };
  for (const auto& [signal, crash] : crashes) {
    const Left left = left_by([crash = crash](Probe* probe) {
      tw_probe_watch_signals(probe, nullptr);
      tw_probe_watch_signals(probe, nullptr);
      crash();
    });
    CHECK(left.was_killed_by(signal));
    CHECK(left.header.exit_kind == kCrash && left.header.exit_signal == static_cast<uint32_t>(signal) &&
          left.header.exit_ns != 0);
    CHECK(left.header.signal == 0 && left.header.exit_reason[0] == 0);
  }
}

void test_a_handler_of_crashes_is_called() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGSEGV, count);
    std::signal(SIGABRT, count);
    tw_probe_watch_signals(probe, nullptr);
    raise(SIGSEGV);
    CHECK(num_handled == 1);
    std::abort();  // ends the process though the handler returns
  });
  CHECK(left.was_killed_by(SIGABRT));
  CHECK(left.header.exit_kind == kCrash && left.header.exit_signal == SIGABRT);
}

void test_a_crash_that_was_mended_is_none() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGSEGV, count);
    tw_probe_watch_signals(probe, nullptr);
    raise(SIGSEGV);
    CHECK(num_handled == 1);
  });
  CHECK(left.has_exited() && left.header.exit_kind == kNoExit && left.header.exit_ns == 0);
}

void test_a_later_handler_passes_a_crash_on() {
  const Left left = left_by([](Probe* probe) {
    tw_probe_watch_signals(probe, nullptr);
    sigaction(SIGBUS, nullptr, &before);
    std::signal(SIGBUS, [](int signal) {
      sigaction(signal, &before, nullptr);
      raise(signal);
    });
    tw_probe_watch_signals(probe, nullptr);  // does not come before the one that passes it on
    raise(SIGBUS);
  });
  CHECK(left.was_killed_by(SIGBUS));
  CHECK(left.header.exit_kind == kCrash && left.header.exit_signal == SIGBUS);
}

void test_an_exit_reason_comes_before_a_crash() {
  const Left left = left_by([](Probe* probe) {
    tw_probe_watch_signals(probe, nullptr);
    tw_probe_exit_reason(probe, kFailure, "ValueError: 1");
    std::abort();
  });
  CHECK(left.was_killed_by(SIGABRT) && left.header.exit_signal == SIGABRT);
  CHECK(left.header.exit_kind == kFailure && std::string(left.header.exit_reason) == "ValueError: 1");
}

void test_a_page_that_was_closed_is_not_written() {
  const Left left = left_by([](Probe* probe) {
    std::signal(SIGINT, count);
    tw_probe_watch_signals(probe, address(count));
    tw_probe_close(probe);
    raise(SIGINT);
    CHECK(num_handled == 1);
  });
  CHECK(left.has_exited());
}

}  // namespace

int main() {
  for (const auto test :
       {test_a_signal_without_a_handler_ends_the_process,
        test_the_signal_that_ends_the_process_may_be_another_than_the_first, test_a_known_handler_is_called,
        test_what_is_ignored_stays_so, test_the_signal_of_a_forked_child_is_not_its_parents,
        test_what_was_said_before_stays_the_exit_reason, test_a_signal_that_was_outlived_is_forgotten,
        test_a_signal_long_after_another_takes_its_place, test_an_abort_waits_for_a_last_look,
        test_a_request_that_ends_the_process_waits_for_a_look, test_a_request_that_is_handled_only_asks_for_a_look,
        test_an_abort_waits_for_nobody_for_long, test_a_crash_is_noted, test_a_handler_of_crashes_is_called,
        test_a_crash_that_was_mended_is_none, test_a_later_handler_passes_a_crash_on,
        test_an_exit_reason_comes_before_a_crash, test_a_page_that_was_closed_is_not_written}) {
    test();
  }
}
