#include "common/status.h"

#include <cstdio>

namespace tw {

int fail(tw_error* error, tw_status status, uint64_t block, uint64_t byte, const char* format, ...) {
  if (error != nullptr) {
    error->block = block;
    error->byte = byte;
    va_list args;
    va_start(args, format);
    std::vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
  }
  return status;
}

}  // namespace tw
