// Filling in a tw_error.
#pragma once
#include <cstdarg>
#include <cstdint>

#include "include/tensorwire.h"

namespace tw {

// For %llu.
static inline unsigned long long as_ull(uint64_t number) { return number; }

__attribute__((format(printf, 5, 6))) int fail(tw_error* error, tw_status status, uint64_t block, uint64_t byte,
                                               const char* format, ...);

}  // namespace tw
