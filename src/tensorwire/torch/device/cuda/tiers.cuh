// Tiers of cascades: from digits to the exponents that they name, a byte each, from the last tier to the first.
#pragma once
#include "frame.cuh"

constexpr u32 kAll = 0xffffffffu;
constexpr u32 kRoom = 288;  // behind resolved exponents: 32 that a short run writes, 260 that a window may reach

DEV u32 ceil16(u32 nbytes) { return (nbytes + 15) & ~15u; }

// Where the later tiers of a block stand while it is decoded, and how four of their bytes are read from any place on.
struct InShared {
  static constexpr bool SHARED_MEMORY = true;
  typedef shared_at At;
  static METHOD At at(const u8* place) { return shared_address(place); }
  static METHOD u32 window(At place) {
    shared_at at = place & ~3u;
    return __funnelshift_r(lds32(at), lds32_next(at), place * 8);
  }
};
struct InScratch {
  static constexpr bool SHARED_MEMORY = false;
  typedef const u8* At;
  static METHOD At at(const u8* place) { return place; }
  static METHOD u32 window(At place) {
    const u32* at = (const u32*)((u64)place & ~3ull);
    return __funnelshift_r(at[0], at[1], (u32)(u64)place * 8);
  }
};

// The widths of tiers, four bits each: tiers count from 1, and behind the last one stands that of bytes.
FOLDED int width_of(u32 widths, int tier) { return widths >> 4 * (tier - 1) & 15; }
FOLDED int last_tier(u32 widths) {
  return widths >> 20 ? 5 : widths >> 16 ? 4 : widths >> 12 ? 3 : widths >> 8 ? 2 : 1;
}

// Digits ------------------------------------------------------------------------------------------------------------

// Nibbles of the bytes of s as a selector of prmt: the lower ones, or the upper ones.
DEV u32 lower_nibbles(u32 s) { return prmt(bits_of(0x0f0f0f0fu, s, s >> 4), 0, 0x4420); }
DEV u32 upper_nibbles(u32 s) { return prmt(bits_of(0x0f0f0f0fu, s >> 4, s >> 8), 0, 0x4420); }

// The names, where the escapes (1 in their bytes) are replaced, in order, by the bytes of `following`.
DEV u32 select_following(u32 names, u32 escapes, u32 following) {
  u32 source = bits_of(escapes * 255u, escapes * 0x01010100u, 0x07060504u);
  return prmt(following, names, lower_nibbles(source));
}

// The exponents that the digits of a tier name, a byte each.
struct Names {
  u32 first, low, high;  // of digit 0 in each byte; of digits 0 to 3, 4 to 7
};

// V words of the leading plane of a tier of W bits, in a lane. Tiers of 1 and 2 bits have two rows at once in the
// nibbles of a byte: a product by 1s ranks the escapes of eight digits.
template <int W, int V>
struct Digits {
  static constexpr int LEAD = leading(W), ROWS = 8 / LEAD, LANES = 8 * LEAD / V, RUNS = 32 / LANES;
  static constexpr int HALVES = ROWS > 4 ? 2 : 1, PAIRS = ROWS / 2, OWN = W <= 2 ? PAIRS : ROWS;
  u32 own[OWN][V];      // W <= 2: which byte of {following, names} each digit takes; else the digits, a byte each
  u32 rank[HALVES][V];  // in byte k: escapes of the run before row k of the word

  // What was loaded: the word of the leading plane, and of tiers of 3 bits row k of the other one.
  METHOD void read(const u32* words, const u32 (*upper)[V]) {
    u32 sums[OWN][V];  // escapes in byte 3
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        u32 escapes, digits = words[v] >> i * LEAD;
        if (W <= 2) {  // nibbles: 4 and more for a name, else how many of the group escape before
          escapes = (W == 1 ? digits : digits & digits >> 1) & 0x11111111u;
          own[i][v] = escapes * (0x01010100u - 4) + 0x44444444u;
          if (W == 2) own[i][v] = bits_of(0x33333333u - escapes * 3, digits, own[i][v]);
        } else {
          digits &= ((1u << LEAD) - 1) * kOnes;
          if (W == 3) digits |= upper[i][v] << 2;
          own[i][v] = digits;
          escapes = escaped(digits);
        }
        sums[i][v] = escapes * kOnes;
      }
#pragma unroll
    for (int v = 0; v < V; v++) {
      if (W == 1) {
        u32 both = prmt(prmt(sums[0][v], sums[1][v], 0x73), prmt(sums[2 % OWN][v], sums[3 % OWN][v], 0x73), 0x5410);
        rank[0][v] = both & 0x0f0f0f0fu;
        rank[HALVES - 1][v] = both >> 4 & 0x0f0f0f0fu;
      } else if (W == 2) {
        u32 both = prmt(sums[0][v], sums[1][v], 0x73);
        rank[0][v] = (both & 0x0f0fu) | (both & 0xf0f0u) << 12;
      } else if (W == 3) {
        rank[0][v] = prmt(prmt(sums[0][v], sums[1][v], 0x73), prmt(sums[2 % OWN][v], sums[3 % OWN][v], 0x73), 0x5410);
      } else {
        rank[0][v] = prmt(sums[0][v], sums[1][v], 0x73) & 0xffffu;
      }
    }
  }

  static METHOD u32 escaped(u32 digits) { return (digits + kOnes) >> W & kOnes; }

  // Counts of this lane become ranks in the run, which is row by row. All lanes of a warp take part.
  METHOD void add_up() {
    u32 earlier = 0;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      u32 count = rank[h][0] + (V == 2 ? rank[h][V - 1] : 0), sum = count;
#pragma unroll
      for (int d = 1; d < LANES; d *= 2) sum = add_before<LANES>(sum, d);
      u32 total = __shfl_sync(kAll, sum, LANES - 1, LANES);
      u32 before = sum - count + total * 0x01010100u + earlier;
      if (V == 2) rank[h][V - 1] = before + rank[h][0];
      rank[h][0] = before;
      earlier = (total * kOnes >> 24) * kOnes;
    }
  }

  // The same of words that lie four apart, in a lane of four: word v of lane t is word 4 * v + t of the run.
  METHOD void add_up_apart() {
    u32 earlier = 0;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      u32 total = 0;
#pragma unroll
      for (int v = 0; v < V; v++) {
        u32 count = rank[h][v], sum = add_before<4>(add_before<4>(count, 1), 2);
        rank[h][v] = total + sum - count;
        total += __shfl_sync(kAll, sum, 3, 4);
      }
      u32 before = total * 0x01010100u + earlier;
#pragma unroll
      for (int v = 0; v < V; v++) rank[h][v] += before;
      earlier = (total * kOnes >> 24) * kOnes;
    }
  }

  // The upper half of the rows takes the place of the lower one.
  METHOD void next_half() {
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
      for (int i = 0; i < (W <= 2 ? OWN : OWN / 2); i++)
        own[i][v] = W <= 2 ? own[i][v] >> 4 : own[(i + OWN / 2) % OWN][v];
      rank[0][v] = HALVES > 1 ? rank[HALVES - 1][v] : rank[0][v] >> 4 * ROWS;
    }
  }

  // Row k of word v; `following` has the exponents that escape, from those of the run on.
  template <class PLACE>
  METHOD u32 exponents(int k, int v, const Names& names, typename PLACE::At following) {
    u32 window = PLACE::window(following_at(following, rank[k / 4][v], k % 4));
    if (W <= 2) {
      u32 pair = own[k % OWN][v];
      return prmt(window, W == 1 ? names.first : names.low, k < OWN ? lower_nibbles(pair) : upper_nibbles(pair));
    }
    u32 digits = own[k % OWN][v], escapes = escaped(digits), x;
    if (W == 3)
      x = prmt(names.low, names.high, lower_nibbles(digits));
    else
      x = (digits & ~(escapes * 15)) + names.first;  // else the sum of an escape might carry into the next byte
    return select_following(x, escapes, window);
  }

  static METHOD u32 following_at(u32 following, u32 ranks, int k) { return add_byte(ranks, k, following); }
  static METHOD const u8* following_at(const u8* following, u32 ranks, int k) {
    return following + (ranks >> 8 * k & 255);
  }
};

// Resolve a tier: write the exponents of its numbers, a byte each, to `target`. `field` is its digits. `step` warps
// share its runs; `warp` is which of them this one is.
template <int W, class PLACE>
DEV void resolve(const u32* field, u32 count, const Names& names, const u16* before, typename PLACE::At following,
                 u8* target, u32 warp, u32 step) {
  typedef Digits<W, 1> Tier;
  u32 lane = threadIdx.x & 31, j = lane % Tier::LANES, runs = num_runs(count);
#pragma unroll 1
  for (u32 first = warp * Tier::RUNS; first < runs; first += step * Tier::RUNS) {
    u32 run = first + lane / Tier::LANES;
    bool exists = run < runs;
    run = exists ? run : runs - 1;
    u32 c = in_run(count, run), stride = stride_of<false>(c, Tier::LEAD);
    exists = exists && j < stride;
    u32 word = exists ? field[run * (8 * Tier::LEAD) + j] : 0, upper[Tier::ROWS][1];
    if (W == 3) {
      Plane plane;
      plane.set<false>(field + ((count * 2 + 31) >> 5), j, 1, Tier::LEAD);
#pragma unroll
      for (int k = 0; k < Tier::ROWS; k++) {
        upper[k][0] = 0;
        if (exists) plane.load<false, 1>(upper[k], run, c, j, k, 1, Tier::LEAD);
      }
    }
    Tier digits;
    digits.read(&word, upper);
    digits.add_up();
    typename PLACE::At at = following + before[run];
    u32* to = (u32*)(target + run * 256) + j;
#pragma unroll
    for (int k = 0; k < Tier::ROWS; k++) {
      u32 x = digits.template exponents<PLACE>(k, 0, names, at);
      if (exists) *to = x;
      to += stride;
    }
  }
}
