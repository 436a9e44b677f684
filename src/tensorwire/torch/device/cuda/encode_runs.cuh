// Runs of words, encoded with one tier and the rest verbatim: what a warp does for encode.cuh. encode_pairs writes the
// streams of runs, two in a warp at a time, as if no word escaped, and tells which have one that does; list_pair lists
// the escapes of these and writes their digits anew; encode_short_run is for the last run, if that is short.
#pragma once
#include "frame.cuh"
#include "hash.cuh"

// How the words of a layout are coded, and which of a run a lane has: groups j to j + V - 1 of each row, for j = V *
// its number among 16 lanes. A group is four words; between rows lie STRIDE groups, a word of the digits' first plane.
template <class L>
struct OneTier {
  static constexpr int WIDTH = L::EXPONENT_BITS == 8 ? 4 : 3;
  static constexpr u32 NAMED = (1 << WIDTH) - 1;  // exponents that have a digit
  // With the highest exponent that can be named. With 8 bits it is one less: products add 15 to it in a byte.
  static constexpr u32 MOST_LO = (1 << L::EXPONENT_BITS) - NAMED - (L::EXPONENT_BITS == 8);
  static constexpr int LEAD = leading(WIDTH), ROWS = 8 / LEAD, V = 4 / ROWS;
  static constexpr u32 STRIDE = 8 * LEAD;
};

// Words -------------------------------------------------------------------------------------------------------------

template <class L>
DEV u32 word_at(const u8* words, u32 i) {
  return L::NBYTES == 2 ? ((const u16*)words)[i] : words[i];
}

template <class L>
DEV u32 exponent_of(u32 word) {
  return word >> L::MANTISSA_BITS & ((1u << L::EXPONENT_BITS) - 1);
}

template <class L>
DEV u32 rest_of(u32 word) {
  constexpr u32 MANTISSA = (1u << L::MANTISSA_BITS) - 1;
  return bits_of(MANTISSA, word, word >> L::EXPONENT_BITS) & (2 * MANTISSA + 1);
}

// V groups of words.
template <class L, bool WHOLE, int V>
DEV void load_groups(u32* words, const u8* at) {
  if constexpr (WHOLE) {
    load_words<V * L::NBYTES>(words, (const u32*)at);
  } else {
#pragma unroll
    for (int i = 0; i < V * L::NBYTES; i++) {
      words[i] = 0;
#pragma unroll
      for (int b = 0; b < 4; b += L::NBYTES) words[i] |= word_at<L>(at + 4 * i + b, 0) << 8 * b;
    }
  }
}

// A group's exponents and the bytes of its rests, V registers apart.
template <class L, int V>
DEV u32 split_group(const u32* words, u32* rest) {
  constexpr int M = L::MANTISSA_BITS, TOP = L::NBYTES - 1, OWN = M % 8;  // OWN: bits below the sign in its byte
  u32 octets[2] = {words[0]};
  if constexpr (TOP) octets[0] = prmt(words[0], words[1], 0x6420), octets[1] = prmt(words[0], words[1], 0x7531);
  rest[0] = octets[0];
  rest[M / 8 * V] = bits_of(((1u << OWN) - 1) * kOnes, octets[M / 8], octets[TOP] >> (7 - OWN));
  if (OWN < 7) rest[M / 8 * V] &= ((2u << OWN) - 1) * kOnes;
  if constexpr (M < 8 * TOP)  // of the exponent, the lowest bits stand in the byte below
    return bits_of(((1u << (8 * TOP - M)) - 1) * kOnes, octets[0] >> M, octets[TOP] << (8 * TOP - M));
  else
    return octets[TOP] >> (M - 8 * TOP) & ((1u << L::EXPONENT_BITS) - 1) * kOnes;
}

// From words to steps from an exponent `lo`, a byte each, and to the bytes of their rests.
template <class L>
struct Steps {
  u32 added;

  METHOD explicit Steps(u32 lo) : added(L::EXPONENT_BITS == 8 ? (256 - lo & 255) * 0x01000100u : (128 - lo) * kOnes) {}

  METHOD u32 of_group(const u32* words, u32* rest) const {
    u32 x = split_group<L, 1>(words, rest);
    if constexpr (L::EXPONENT_BITS < 8) {
      return (x + added) ^ 0x80808080u;  // exponents are so few that no byte carries
    } else {
      static_assert(L::NBYTES == 2 && L::MANTISSA_BITS == 7, "bfloat16");
      // Without signs the lower byte of a word takes the carry of the word before it.
      u32 first = words[0] & 0x7fff7fffu, second = words[1] & 0x7fff7fffu;
      return prmt(add_scaled(first, 2, added), add_scaled(second, 2, added), 0x7531);
    }
  }
};

// Not 0 if a step is no digit. It may carry from an escape into the next byte.
template <class L>
DEV u32 may_escape(u32 steps) {
  return (steps | (steps + kOnes)) & ~OneTier<L>::NAMED * kOnes;
}

// 1 in each byte whose step is no digit.
template <class L>
DEV u32 escapes_of(u32 steps) {
  return (((steps & 0x7f7f7f7fu) + (128 - OneTier<L>::NAMED) * kOnes) | steps) >> 7 & kOnes;
}

// Planes ------------------------------------------------------------------------------------------------------------

// A plane begins at a multiple of 16 bytes only if all runs are full.
template <bool WHOLE, int V>
DEV void store_groups(u32* at, const u32* groups) {
  if constexpr (WHOLE) {
    store_words<V>(at, groups);
  } else {
#pragma unroll
    for (int v = 0; v < V; v++) at[v] = groups[v];
  }
}

// One run of a plane of P bits. `numbers` of row k stand in numbers[k], a byte each. All lanes of a warp take part.
template <class Lanes, bool WHOLE, int P, int V>
DEV void store_plane(u32* plane, u32 run, u32 j, const u32 (*numbers)[V], bool here) {
  u32* to = plane + (run * (8 * P) + j);
  if constexpr (P == 8) {
#pragma unroll
    for (int k = 0; k < Lanes::ROWS; k++)
      if (here) store_groups<WHOLE, V>(to + k * Lanes::STRIDE, numbers[k]);
  } else if constexpr (P >= Lanes::LEAD) {
    constexpr int APART = P / Lanes::LEAD;  // rows of a word
#pragma unroll
    for (int r = 0; r < APART; r++) {
      u32 words[V];
#pragma unroll
      for (int v = 0; v < V; v++) {
        words[v] = numbers[Lanes::ROWS - APART + r][v];
#pragma unroll
        for (int k = Lanes::ROWS - 2 * APART + r; k >= 0; k -= APART)
          words[v] = add_scaled(words[v], 1 << P, numbers[k][v]);
      }
      if (here) store_groups<WHOLE, V>(to + r * Lanes::STRIDE, words);
    }
  } else {
    static_assert(Lanes::LEAD == 2 * P, "two lanes have the numbers of a word");
    u32 words[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      words[v] = 0;
#pragma unroll
      for (int k = 0; k < Lanes::ROWS; k++) words[v] += numbers[k][v] << Lanes::LEAD * k;
      words[v] <<= j / (8 * P) * P;
      words[v] |= __shfl_xor_sync(0xffffffffu, words[v], 8 * P / V);
    }
    if (here && j < 8 * P) store_groups<WHOLE, V>(to, words);
  }
}

// A run of a field of BITS bits, 1 to 8, of n numbers; `field` is where it begins in the block.
template <class Lanes, bool WHOLE, int BITS, int V>
DEV u32* store_field(u32* field, u32 n, u32 run, u32 j, const u32 (*numbers)[V], bool here) {
  constexpr int ROWS = Lanes::ROWS;
  if constexpr (BITS == 8) {
    store_plane<Lanes, WHOLE, 8, V>(field, run, j, numbers, here);
    return field + ((n + 3) >> 2);
  } else {
    constexpr int FIRST = leading(BITS), LEFT = BITS - FIRST;
    u32 part[ROWS][V];
#pragma unroll
    for (int k = 0; k < ROWS; k++)
#pragma unroll
      for (int v = 0; v < V; v++) part[k][v] = LEFT ? numbers[k][v] & ((1u << FIRST) - 1) * kOnes : numbers[k][v];
    store_plane<Lanes, WHOLE, FIRST, V>(field, run, j, part, here);
    field += (n * FIRST + 31) >> 5;
    if constexpr (LEFT > 0) {
#pragma unroll
      for (int k = 0; k < ROWS; k++)
#pragma unroll
        for (int v = 0; v < V; v++) part[k][v] = numbers[k][v] >> FIRST & ((1u << LEFT) - 1) * kOnes;
      return store_field<Lanes, WHOLE, LEFT, V>(field, n, run, j, part, here);
    }
    return field;
  }
}

// The same of a run of c numbers that is short, by a warp: number(i) is the i-th.
template <int BITS, class Number>
DEV void store_short_field(u32* field, u32 n, u32 c, Number number) {
#pragma unroll
  for (int p = 8, below = 0; p; p >>= 1) {
    if (!(BITS & p)) continue;
    u32 nbytes = 4 * stride_of<false>(c, p);
    u8* run = (u8*)(field + n / 256 * (8 * p));
    for (u32 b = threadIdx.x & 31; b < nbytes; b += 32) {
      u32 octet = 0;
      for (int k = 0; k * p < 8; k++)
        if (b + k * nbytes < c) octet |= (number(b + k * nbytes) >> below & ((1u << p) - 1)) << k * p;
      run[b] = (u8)octet;
    }
    field += (n * p + 31) >> 5;
    below += p;
  }
}

// Runs --------------------------------------------------------------------------------------------------------------

// A block under way, as a lane sees it.
template <class L, bool WHOLE>
struct Encoding {
  typedef OneTier<L> Tier;
  static constexpr int ROWS = Tier::ROWS, V = Tier::V, NWORDS = V * L::NBYTES;
  const u8 *words, *lane_words;
  u32 *rests, *digits;
  u32 n, lo, lane, half, j;
  Steps<L> steps_of;

  METHOD Encoding(const u8* words, u32* out, u32 n, u32 lo)
      : words(words),
        rests(kept_anywhere(out)),
        digits(kept_anywhere(out + field_nwords(n, L::REST_BITS))),
        n(n),
        lo(lo),
        lane(threadIdx.x & 31),
        half(lane >> 4),
        j(lane % 16 * V),
        steps_of(lo) {
    lane_words = kept(words + half * (256 * L::NBYTES) + j * (4 * L::NBYTES));
  }

  METHOD bool is_here(u32 pair) const { return 2 * pair + half < n >> 8; }

  // The lane's words of its run of a pair.
  METHOD void load(u32 (*own)[NWORDS], u32 pair) const {
    const u8* at = lane_words + (u64)pair * (512 * L::NBYTES);
#pragma unroll
    for (int k = 0; k < ROWS; k++) load_groups<L, WHOLE, V>(own[k], at + k * Tier::STRIDE * (4 * L::NBYTES));
  }

  METHOD void split(const u32 (*own)[NWORDS], u32 (*steps)[V], u32 (*rest)[ROWS][V]) const {
#pragma unroll
    for (int k = 0; k < ROWS; k++)
#pragma unroll
      for (int v = 0; v < V; v++) {
        u32 bytes[2];
        steps[k][v] = steps_of.of_group(own[k] + v * L::NBYTES, bytes);
#pragma unroll
        for (int b = 0; b < L::REST_NBYTES; b++) rest[b][k][v] = bytes[b];
      }
  }

  METHOD void store_rests(u32 pair, const u32 (*rest)[ROWS][V], bool here) const {
    constexpr int LAST = L::REST_NBYTES - 1;
    u32* field = rests;
    if constexpr (LAST) field = store_field<Tier, WHOLE, 8, V>(field, n, 2 * pair + half, j, rest[0], here);
    store_field<Tier, WHOLE, L::REST_BITS - 8 * LAST, V>(field, n, 2 * pair + half, j, rest[LAST], here);
  }

  METHOD void store_digits(u32 pair, const u32 (*steps)[V], bool here) const {
    store_field<Tier, WHOLE, Tier::WIDTH, V>(digits, n, 2 * pair + half, j, steps, here);
  }
};

// The sums of a piece of H, from the words that the lanes of a warp have of two runs; for words of 16 bits.
template <class L>
struct PieceSums {
  typedef OneTier<L> Tier;
  static constexpr int ROWS = Tier::ROWS, V = Tier::V;
  u64 key[ROWS][V];

  METHOD PieceSums() {
    u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < ROWS; k++)
#pragma unroll
      for (int v = 0; v < V; v++) {
        u32 group = (lane >> 4) * 64 + k * Tier::STRIDE + lane % 16 * V + v;  // of 8 bytes
        key[k][v] = secret_at(8 * (group >> 3) + 8 * (group & 7));
      }
  }

  METHOD void store(u64* sums, const u32 (*own)[2 * V], bool here) const {
    u32 lane = threadIdx.x & 31;
    u64 sum[V], plain[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      sum[v] = plain[v] = 0;
#pragma unroll
      for (int k = 0; k < ROWS; k++) {
        u64 value = pair64(own[k][2 * v], own[k][2 * v + 1]);
        if (here) sum[v] = hash_product(value, key[k][v], sum[v]), plain[v] += value;
      }
    }
    u32 at = lane;
    if constexpr (V == 2) {  // two of the eight, of which a lane keeps one
      at = 2 * (lane & 3) + (lane >> 2);
      sum[0] += plain[1], sum[1] += plain[0];
      u64 other = lane & 4 ? sum[0] : sum[1];
      sum[0] = (lane & 4 ? sum[1] : sum[0]) + __shfl_xor_sync(0xffffffffu, other, 4);
    } else {
      sum[0] += __shfl_xor_sync(0xffffffffu, plain[0], 1);
    }
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 8);
    sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 16);
    if (lane < 8) sums[at] = sum[0];
  }
};

// Pairs [pair, end), STEPS at a time until fewer are left, as if no word escaped. The next pair; and a bit in
// `escaping` for each, from `first` on, that has a word that does.
template <class L, bool WHOLE, bool SUMS, int STEPS, bool BOTH>
DEV u32 encode_pairs(const Encoding<L, WHOLE>& block, u32 pair, u32 end, u32& escaping, u64* sums) {
  typedef Encoding<L, WHOLE> Block;
  constexpr int ROWS = Block::ROWS, V = Block::V;
  PieceSums<L> piece;
#pragma unroll 1
  for (; pair + STEPS <= end; pair += STEPS) {
    u32 own[STEPS][ROWS][Block::NWORDS];
    bool here[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      here[s] = BOTH || block.is_here(pair + s);
      if (here[s]) block.load(own[s], pair + s);
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      u32 steps[ROWS][V], rest[L::REST_NBYTES][ROWS][V], any = 0;
      block.split(own[s], steps, rest);
#pragma unroll
      for (int k = 0; k < ROWS; k++)
#pragma unroll
        for (int v = 0; v < V; v++) any |= may_escape<L>(steps[k][v]);
      block.store_rests(pair + s, rest, here[s]);
      block.store_digits(pair + s, steps, here[s]);
      escaping = __funnelshift_r(escaping, __any_sync(0xffffffffu, here[s] && any != 0), 1);
      if constexpr (SUMS) piece.store(sums + 8 * (pair + s), own[s], here[s]);
    }
  }
  return pair;
}

// The escapes of a pair of runs to the list of its warp, which has `found` before; how many it has then. Their digits
// are written anew.
template <class L, bool WHOLE>
DEV u32 list_pair(const Encoding<L, WHOLE>& block, u32 pair, u8* list, u32 list_nbytes, u32 found) {
  typedef Encoding<L, WHOLE> Block;
  constexpr int ROWS = Block::ROWS, V = Block::V;
  constexpr u32 NAMED = Block::Tier::NAMED;
  bool here = block.is_here(pair);
  u32 own[ROWS][Block::NWORDS], steps[ROWS][V], rest[L::REST_NBYTES][ROWS][V], digits[ROWS][V], escapes[ROWS][V];
  if (here) block.load(own, pair);
  block.split(own, steps, rest);
  u32 count = 0;  // by rows, a byte each
#pragma unroll
  for (int k = 0; k < ROWS; k++)
#pragma unroll
    for (int v = 0; v < V; v++) {
      escapes[k][v] = here ? escapes_of<L>(steps[k][v]) : 0;
      digits[k][v] = (steps[k][v] & NAMED * kOnes) | escapes[k][v] * NAMED;
      count += __popc(escapes[k][v]) << 8 * k;
    }
  block.store_digits(pair, digits, here);
  u32 sum = count;
#pragma unroll
  for (int distance = 1; distance < 16; distance *= 2) sum = add_before<16>(sum, distance);
  u32 first = __shfl_sync(0xffffffffu, sum, 15), second = __shfl_sync(0xffffffffu, sum, 31), in_first = 0, in_both = 0;
#pragma unroll
  for (int k = 0; k < ROWS; k++) {
    in_first = add_byte(first, k, in_first);
    in_both = add_byte(first, k, add_byte(second, k, in_both));
  }
  u32 before = sum - count + (block.half ? second : first) * (kOnes << 8);  // in its run, by rows
  found += block.half ? in_first : 0;
  if (found - (block.half ? in_first : 0) + in_both <= list_nbytes) {
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      u8* to = list + add_byte(before, k, found);
#pragma unroll
      for (int v = 0; v < V; v++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (!(escapes[k][v] >> 8 * i & 1)) continue;
          *to++ = (u8)(block.lo + (steps[k][v] >> 8 * i));
        }
    }
  }
  return found - (block.half ? in_first : 0) + in_both;
}

// The run that is short, by one warp, all streams of it; how many escapes the list has then.
template <class L, bool WHOLE>
DEV u32 encode_short_run(const Encoding<L, WHOLE>& block, u32 lo, u8* list, u32 list_nbytes, u32 found) {
  constexpr u32 NAMED = OneTier<L>::NAMED;
  u32 c = block.n & 255, lane = block.lane;
  const u8* words = block.words + (u64)(block.n - c) * L::NBYTES;
#pragma unroll 1
  for (u32 begin = 0; begin < c; begin += 32) {
    u32 i = begin + lane, x = i < c ? exponent_of<L>(word_at<L>(words, i)) : lo;
    u32 escaped = __ballot_sync(0xffffffffu, x - lo >= NAMED), at = found + __popc(escaped & ((1u << lane) - 1));
    if (escaped >> lane & 1 && at < list_nbytes) list[at] = (u8)x;
    found += __popc(escaped);
  }
  store_short_field<L::REST_BITS>(block.rests, block.n, c, [&](u32 i) { return rest_of<L>(word_at<L>(words, i)); });
  store_short_field<OneTier<L>::WIDTH>(block.digits, block.n, c,
                                       [&](u32 i) { return min(exponent_of<L>(word_at<L>(words, i)) - lo, NAMED); });
  return found;
}

// The sums of whole runs, made to those of the message, by one warp: the last run, which is short, is added, or else
// the last stripe is taken away again.
template <class L, bool WHOLE>
DEV void complete_sums(const u8* words, u32 n, u64* sums) {
  u32 nbytes = n * L::NBYTES, end = hash_padded(nbytes) - kStripe, lane = threadIdx.x & 31;
  bool full = WHOLE || n % 256 == 0;
  u32 begin = full ? end : n / 256 * (256 * L::NBYTES), piece = begin / kPiece;
  u64 sum = sum_of_stripes<WHOLE>(words, nbytes, begin, full ? end + kStripe : end);
  if (lane >= 8) return;
  u64* to = sums + 8 * piece + lane;
  *to = full ? *to - sum : begin % kPiece ? *to + sum : sum;
}
