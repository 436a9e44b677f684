// What kernels over the vectors of a target share. A source defines struct Vec with V, of floats, before it includes
// this.
#pragma once
#include "linear/dot.h"

namespace tw {
namespace {

using V = Vec::V;
typedef V UnalignedV __attribute__((aligned(1), may_alias));
constexpr size_t kWidth = sizeof(V) / sizeof(float);

inline V load_floats(const void* from) { return *static_cast<const UnalignedV*>(from); }
inline void store_floats(float* to, V floats) { *reinterpret_cast<UnalignedV*>(to) = floats; }

// What takes the words of runs as for_words() makes them, beside N vectors of sums. Those and the prefetcher are
// copies, which stay in registers. take() is another one for each kernel.
template <size_t N>
struct Sink {
  static constexpr size_t kNumVectors = N;
  V sums[N];
  const float* input;
  Prefetcher<kSecondLevel> prefetcher;

  void begin_run() { prefetcher.step(); }
};

template <class S>
size_t add_runs(const DigitRuns& runs, const uint8_t* rests, size_t num_runs, const float* input, float* sums,
                Prefetcher<kSecondLevel>* prefetcher) {
  S sink = {{{}, input, *prefetcher}};
#pragma GCC unroll 8
  for (size_t i = 0; i < S::kNumVectors; ++i) sink.sums[i] = load_floats(sums + i * kWidth);
  const size_t used = for_words(runs, rests, num_runs, &sink);
#pragma GCC unroll 8
  for (size_t i = 0; i < S::kNumVectors; ++i) store_floats(sums + i * kWidth, sink.sums[i]);
  *prefetcher = sink.prefetcher;
  return used;
}

}  // namespace
}  // namespace tw
