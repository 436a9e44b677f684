// Numbers of planes and fields whose widths are known when a kernel runs: for what is done once a frame, or to few
// words. Nothing is read behind the numbers of a stream.
#pragma once

#include "dev.h"
#include "frame.cuh"

COLD u32 group_of_short_run(const u32* words, u32 c, u32 g, u32 log2) {
  u32 stride = ((c << log2) + 31) >> 5, row = g / stride;
  return words[g - row * stride] >> (row << log2);
}

// Group g of a run of c numbers in a plane of 1 << log2 bits, 1 to 8, a number in each byte; c is more than 4 * g.
DEV u32 group_of_plane(const u32* plane, u32 run, u32 c, u32 g, u32 log2) {
  const u32* words = plane + (run << (3 + log2));
  u32 octets =
      c == 256 ? words[g & ((8u << log2) - 1)] >> (g >> (3 + log2) << log2) : group_of_short_run(words, c, g, log2);
  return octets & ((1u << (1u << log2)) - 1) * 0x01010101u;
}

// The same of a field of `w` bits, 1 to 8, that has `count` numbers.
DEV u32 group_of_field(const u32* field, u32 count, u32 w, u32 run, u32 c, u32 g) {
  u32 numbers = 0, shift = 0;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 log2 = 3 - i;
    if (w >> log2 & 1) {
      numbers |= group_of_plane(field, run, c, g, log2) << shift;
      field += ((count << log2) + 31) >> 5;
      shift += 1u << log2;
    }
  }
  return numbers;
}

// 1 in each byte whose digit of `w` bits, 1 to 4, has all of them set, of the group's first `numbers` digits.
DEV u32 escapes_of_group(u32 digits, u32 w, u32 numbers) {
  u32 escapes = (digits + 0x01010101u) >> w & 0x01010101u;
  return numbers < 4 ? escapes & ((1u << 8 * numbers) - 1) : escapes;
}

// How many of the first `numbers` digits of a run escape.
DEV u32 escapes_in_run(const u32* field, u32 count, u32 w, u32 run, u32 numbers) {
  u32 c = in_run(count, run), escaped = 0;
  for (u32 g = 0; g * 4 < numbers; g++)
    escaped += __popc(escapes_of_group(group_of_field(field, count, w, run, c, g), w, numbers - g * 4));
  return escaped;
}

// enec's mask bits 4 * quad to 4 * quad + 3, one in each byte; bits of groups that do not exist are left out.
DEV u32 mask_bits(const u32* mask, u32 num_groups, u32 quad) {
  u32 run = quad >> 6, first = quad * 4;
  if (first >= num_groups) return 0;
  u32 bits = group_of_plane(mask, run, in_run(num_groups, run), quad & 63, 0);
  u32 some = num_groups - first;
  return some < 4 ? bits & ((1u << 8 * some) - 1) : bits;
}

// A cascade. `widths` has four bits for each tier, the bytes among them; tiers count from 1.
struct CascadeBlock {
  const u32* block;
  Row row;
  u32 rest_bits, widths;
};

DEV u32 tier_width(const CascadeBlock& cascade, u32 tier) { return cascade.widths >> 4 * (tier - 1) & 15; }

// How many digits a tier has; of the one behind the last tier, how many bytes.
DEV u32 tier_count(const CascadeBlock& cascade, u32 tier) {
  if (tier == 1) return cascade.row.n;
  u32 pair = tier < 4 ? cascade.row.n23 : tier < 6 ? cascade.row.n45 : cascade.row.n6;
  return pair >> 16 * (tier & 1) & 0xFFFF;
}

DEV const u32* tier_field(const CascadeBlock& cascade, u32 tier) {
  const u32* field = cascade.block + field_nwords(cascade.row.n, cascade.rest_bits);
  for (u32 t = 1; t < tier; t++) field += field_nwords(tier_count(cascade, t), tier_width(cascade, t));
  return field;
}

// The first run of a tier from the second on, among the later runs of all blocks.
DEV u32 tier_first_run(const CascadeBlock& cascade, u32 tier) {
  u32 first = cascade.row.later;
  for (u32 t = 2; t < tier; t++) first += num_runs(tier_count(cascade, t));
  return first;
}
