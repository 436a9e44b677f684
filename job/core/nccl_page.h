// The plugin's own page: rank-<rank>-<generation>.nccl.page beside rank-<rank>-<generation>.page of the Python
// probe, whether or not there is one. The two know different communicators (NCCL has not heard of torch's process
// groups), and neither has to outlive the other. A reader of a rank takes both.
#pragma once
#include <climits>

#include "page.h"

namespace tw::nccl {

struct PagePaths {
  char page[PATH_MAX + 64];
  char control[PATH_MAX + 64];  // the control page of the directory
};

// The identity of this process by the environment that launchers set; without one, what the first communicator says.
// Not to be called by two threads at once.
probe::Identity identify_process(int rank, int size);

// 0 or an errno. A page of the same name is replaced if the process that wrote it is gone.
int create_page(const probe::Identity& identity, PagePaths* paths, probe::Probe** probe);

}  // namespace tw::nccl
