// What fuzz targets check. A broken promise of the library ends the program, so that libFuzzer keeps the input.
#pragma once
#include <cstring>

#include "tensorwire.h"
#include "tests/check.h"

// Both may be NULL where there is nothing to compare.
inline bool same(const void* a, const void* b, size_t nbytes) { return nbytes == 0 || std::memcmp(a, b, nbytes) == 0; }
