// The decoders over a target's Lanes: the states of a stream, its table or tables and its words. Everything is local to
// the including source.
//   Lanes(table, states, next), store(states), next()
//   decode(out), decode(classes, out): the next 32 symbols
//   decode_two(a, a_out, b, b_out), where the target has such a kernel: those of two streams, side by side
#pragma once
#include <cstring>

#include "coders/rans.h"

namespace tw {
namespace {

template <class Lanes, class Decode>
inline const uint8_t* decode_groups(Lanes lanes, uint32_t states[kRansStates], const uint8_t* end, size_t num_groups,
                                    uint8_t* out, Decode&& decode_group) {
  for (size_t g = 0; g < num_groups; ++g, out += kRansStates) {
    if (lanes.next() > end) {
      std::memset(out, 0, (num_groups - g) * kRansStates);
      break;
    }
    decode_group(&lanes, g, out);
  }
  lanes.store(states);
  return lanes.next();
}

template <class Lanes>
const uint8_t* decode(const uint32_t table[kRansTotal], uint32_t states[kRansStates], const uint8_t* next,
                      const uint8_t* end, size_t num_groups, uint8_t* out) {
  return decode_groups(Lanes(table, states, next), states, end, num_groups, out,
                       [](Lanes* lanes, size_t, uint8_t* group) { lanes->decode(group); });
}

template <class Lanes>
const uint8_t* decode_classes(const uint32_t* tables, const uint8_t* classes, uint32_t states[kRansStates],
                              const uint8_t* next, const uint8_t* end, size_t num_groups, uint8_t* out) {
  return decode_groups(
      Lanes(tables, states, next), states, end, num_groups, out,
      [&](Lanes* lanes, size_t g, uint8_t* group) { lanes->decode(classes + g * kRansStates, group); });
}

template <class Lanes>
size_t decode_two(RansStream* a, RansStream* b, size_t num_groups) {
  Lanes a_lanes(a->table, a->states, a->next), b_lanes(b->table, b->states, b->next);
  size_t g = 0;
  for (; g < num_groups && a_lanes.next() <= a->end && b_lanes.next() <= b->end; ++g) {
    Lanes::decode_two(&a_lanes, a->out + g * kRansStates, &b_lanes, b->out + g * kRansStates);
  }
  a_lanes.store(a->states);
  b_lanes.store(b->states);
  a->next = a_lanes.next(), b->next = b_lanes.next();
  a->out += g * kRansStates, b->out += g * kRansStates;
  return g;
}

}  // namespace
}  // namespace tw
