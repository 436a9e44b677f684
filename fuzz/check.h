// What a fuzz target does when a promise of the library is broken: say which, and abort, so that libFuzzer keeps the
// input.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tensorwire.h"

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

// Both may be NULL where there is nothing to compare.
inline bool same(const void* a, const void* b, size_t nbytes) { return nbytes == 0 || std::memcmp(a, b, nbytes) == 0; }

// A call failed: with one of these statuses, and words for a person.
inline void check_rejection(int status, const tw_error& error) {
  CHECK(status == TW_CORRUPT || status == TW_TRUNCATED || status == TW_UNSUPPORTED_VERSION ||
        status == TW_LIMIT_EXCEEDED);
  CHECK(error.message[0] != '\0');
  CHECK(std::memchr(error.message, '\0', sizeof error.message) != nullptr);
}
