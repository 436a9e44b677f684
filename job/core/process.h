// What identifies a process. The clock of the page, tw_probe_now(), is here as well.
#pragma once
#include <atomic>
#include <cstdint>

namespace tw::probe {

// Clock ticks from boot to the start of a process; 0 where there is none. A process id is used again, but not with the
// same start.
uint64_t start_time(uint32_t pid);

bool read_boot_id(uint8_t boot_id[16]);

// Between the first process and this one, from the first watch_forks() on. Asking the kernel for the process id would
// cost more than all the rest of a call.
extern std::atomic<uint32_t> num_forks;

// 0 or an errno.
int watch_forks();

}  // namespace tw::probe
