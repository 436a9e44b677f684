// The decoders over a target's Lanes: the states of a stream, its tables and its words. Everything is local to the
// including source.
//   Lanes(stream), next(), store(&stream)
//   decode<kClasses>(classes, out): the next 32 symbols
//   decode_two<kClasses>(&a, a_classes, a_out, &b, b_classes, b_out), where the target has such a kernel: those of two
//   streams, side by side
#pragma once
#include <cstring>

#include "coders/rans.h"

namespace tw {
namespace {

// Where a stream's classes of each group are, and where its symbols go.
template <bool kClasses>
class Groups {
 public:
  explicit Groups(const RansStream& stream) : classes_(stream.classes), out_(stream.out) {}
  const uint8_t* classes(size_t g) const { return kClasses ? classes_ + g * kRansStates : nullptr; }
  uint8_t* out(size_t g) const { return out_ + g * kRansStates; }

 private:
  const uint8_t* classes_;
  uint8_t* out_;
};

template <class Lanes, bool kClasses>
void decode_groups(RansStream* stream, size_t num_groups) {
  Lanes lanes(*stream);
  const Groups<kClasses> groups(*stream);
  const uint8_t* const end = stream->end;
  size_t g = 0;
  for (; g < num_groups && lanes.next() <= end; ++g) lanes.template decode<kClasses>(groups.classes(g), groups.out(g));
  std::memset(groups.out(g), 0, (num_groups - g) * kRansStates);
  lanes.store(stream);
}

template <class Lanes>
void decode(RansStream* stream, size_t num_groups) {
  stream->classes == nullptr ? decode_groups<Lanes, false>(stream, num_groups)
                             : decode_groups<Lanes, true>(stream, num_groups);
}

template <class Lanes, bool kClasses>
size_t decode_groups_of_two(RansStream* a, RansStream* b, size_t num_groups) {
  Lanes a_lanes(*a), b_lanes(*b);
  const Groups<kClasses> a_groups(*a), b_groups(*b);
  const uint8_t *const a_end = a->end, *const b_end = b->end;
  size_t g = 0;
  for (; g < num_groups && a_lanes.next() <= a_end && b_lanes.next() <= b_end; ++g) {
    Lanes::template decode_two<kClasses>(&a_lanes, a_groups.classes(g), a_groups.out(g), &b_lanes, b_groups.classes(g),
                                         b_groups.out(g));
  }
  a_lanes.store(a);
  b_lanes.store(b);
  return g;
}

template <class Lanes>
size_t decode_two(RansStream* a, RansStream* b, size_t num_groups) {
  return a->classes == nullptr ? decode_groups_of_two<Lanes, false>(a, b, num_groups)
                               : decode_groups_of_two<Lanes, true>(a, b, num_groups);
}

}  // namespace
}  // namespace tw
