// What identifies a process.
#pragma once
#include <cstdint>

namespace tw::probe {

// Clock ticks from boot to the start of a process; 0 where there is none. A process id is used again, but not with the
// same start.
uint64_t start_time(uint32_t pid);

bool read_boot_id(uint8_t boot_id[16]);

}  // namespace tw::probe
