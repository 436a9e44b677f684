// Blocks of profile fast, encoded: kinds cascade and cascade2 with any tier shape and the rest verbatim, constant, or
// stored.
//
//   Tiers<WIDTHS> tiers = sample_tiers<L, WIDTHS>(words, n, room);
//   Encoded block = encode_tiers<L, WIDTHS, WHOLE>(words, n, tiers, align, out, capacity, room);
//
//   WIDTHS    four bits for each tier, as in words.cuh: 0x8322 for 2, 2, 3
//   room      of shared memory, by tiers_room_for
//   the rest as in encode.cuh
//
// All kEncoders threads of a block of threads take part. A warp takes four runs at a time, a lane eight neighbouring
// numbers of each row. Those that escape come to the front of eight bytes, which are set into a list: where, warps tell
// each other at each step. The next tier reads its numbers from the list, and writes its own escapes to the front of
// it.
#pragma once
#include "sample_tiers.cuh"

constexpr u32 kStepRuns = 4 * kEncodingWarps;  // runs of all warps at once

// What a lane has of a run: two groups of each of four rows.
struct Eights {
  static constexpr int LEAD = 2, ROWS = 4, V = 2;
  static constexpr u32 STRIDE = 16;
};

// Numbers of a tier -------------------------------------------------------------------------------------------------

// 0x80 in each byte that is `least` or more, of 128 at most.
DEV u32 at_least(u32 octets, u32 least) {
  return (((octets & 0x7f7f7f7fu) + (128 - least) * kOnes) | octets) & 0x80808080u;
}

// a + b, in each byte.
DEV u32 sums_of_bytes(u32 a, u32 b) { return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u); }

// What a lane has of a run: digits, a byte each, and what the list gets: steps of the exponents that escape, and zeros.
struct Numbers {
  u32 digits[Eights::ROWS][Eights::V], listed[Eights::ROWS][Eights::V];
  u32 escapes[Eights::ROWS];  // of both groups: 0x08 in bytes of the first one, 0x80 in those of the second

  // A row, from its steps. Tiers so far name the first END; `low` has the digits of those that this one names, in its
  // lowest W bits.
  template <int W, u32 END>
  METHOD void set(int k, const u32* steps, const u32* low) {
    u32 escaped[Eights::V];
#pragma unroll
    for (int v = 0; v < Eights::V; v++) {
      escaped[v] = at_least(steps[v], END);
      u32 mask = sign_bytes(escaped[v]);
      digits[k][v] = (low[v] | mask) & ((1u << W) - 1) * kOnes;
      listed[k][v] = steps[v] & mask;
    }
    escapes[k] = escaped[0] >> 4 | escaped[1];
  }

  // How many escape, by rows, a byte each.
  METHOD u32 counts() const {
    u32 first = prmt(__popc(escapes[0]), __popc(escapes[1]), 0x1140);
    u32 second = prmt(__popc(escapes[2]), __popc(escapes[3]), 0x1140);
    return prmt(first, second, 0x5410);
  }

  // Which of a row's eight do, from bit 2 on.
  METHOD u32 set_of_row(int k) const { return __umulhi(escapes[k], 0x81020400u) & 0x3fc; }
};

// Where a lane's escapes belong in the list, of STEPS times the runs of all warps; and how many all warps have. A
// barrier is in it: what was read of the list before may then be written. A warp without numbers has `any` false.
template <int STEPS>
struct Places {
  static_assert(STEPS <= 2, "counts are 16 bits each");
  u32 first[STEPS];   // of the run
  u32 before[STEPS];  // in the run, by rows, a byte each
  u32 found;

  METHOD Places(const Numbers* numbers, bool any, u32 begin, u32* counts) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, earlier = 0, total = 0;
    if (any) {
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        u32 own = numbers[s].counts(), rows = own;
#pragma unroll
        for (int distance = 1; distance < 8; distance *= 2) rows = add_before<8>(rows, distance);
        before[s] = rows - own;
        rows = __shfl_sync(kAll, rows, lane | 7);
        before[s] += rows * (kOnes << 8);
        earlier += add_bytes(rows, 0) << 16 * s;
      }
      u32 sum = add_before<32>(add_before<32>(earlier, 8), 16);
      total = __shfl_sync(kAll, sum, 31);
      earlier = sum - earlier;
    }
    if (lane == 0) counts[warp] = total;
    __syncthreads();
    u32 count = lane < kEncodingWarps ? counts[lane] : 0;
    earlier += __reduce_add_sync(kAll, lane < warp ? count : 0);
    total = __reduce_add_sync(kAll, count);
    found = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      first[s] = begin + found + (earlier >> 16 * s & 0xffff);
      found += total >> 16 * s & 0xffff;
    }
  }
};

// Set what escapes into the list, whose bytes are zero there.
DEV void list_escapes(const Numbers& numbers, shared_at first, u32 before, const u32* selectors) {
  u32 selector[Eights::ROWS], behind[Eights::ROWS];
  shared_at words[Eights::ROWS];
#pragma unroll
  for (int k = 0; k < Eights::ROWS; k++) selector[k] = *(const u32*)((const u8*)selectors + numbers.set_of_row(k));
#pragma unroll
  for (int k = 0; k < Eights::ROWS; k++) {
    u32 low = prmt(numbers.listed[k][0], numbers.listed[k][1], selector[k]);
    u32 high = prmt(numbers.listed[k][0], numbers.listed[k][1], selector[k] >> 16);
    shared_at at = add_byte(before, k, first);
    words[k] = at & ~3u;
    or_shared<0>(words[k], __funnelshift_l(0, low, at * 8));
    or_shared<4>(words[k], __funnelshift_l(low, high, at * 8));
    behind[k] = __funnelshift_l(high, 0, at * 8);
  }
  if ((behind[0] | behind[1] | behind[2] | behind[3]) == 0) return;  // so it is up to 5 of 8
#pragma unroll
  for (int k = 0; k < Eights::ROWS; k++) or_shared<8>(words[k], behind[k]);
}

// Tiers -------------------------------------------------------------------------------------------------------------

// How far a tier is: the next run, what escapes of those before, and where warps tell that next.
struct Progress {
  u32 begin, found, turn;

  METHOD u32* counts(const TiersRoom& room) { return room.found + ((turn ^= kEncodingWarps) ^ kEncodingWarps); }
};

// Runs of tier 1 that are full, STEPS times those of all warps at once: as long as there are as many (ALL), or until
// the end. `stored`: else only what escapes is found out.
template <class L, int W, bool WHOLE, int STEPS, bool ALL>
DEV void encode_words(const u8* words, u32 n, u32 lo, u32* out, bool stored, const TiersRoom& room, Progress& at) {
  constexpr int ROWS = Eights::ROWS, V = Eights::V, LAST = L::REST_NBYTES - 1;
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, runs = n >> 8;
  u32 j = kept(lane % 8 * V), first_run = kept(warp * 4 + lane / 8);
  u32* field = out + field_nwords(n, L::REST_BITS);
  shared_at list = shared_address(room.list);
  Steps<L> steps_of(lo);
#pragma unroll 1
  for (; ALL ? at.begin + STEPS * kStepRuns <= runs : at.begin < runs; at.begin += STEPS * kStepRuns) {
    bool any = ALL || at.begin + warp * 4 < runs;
    Numbers numbers[STEPS];
    if (any) {
      u32 own[STEPS][ROWS][V * L::NBYTES];
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        u32 run = at.begin + s * kStepRuns + first_run;
        const u8* from = words + (ALL ? run : min(run, runs - 1)) * (256 * L::NBYTES) + j * (4 * L::NBYTES);
#pragma unroll
        for (int k = 0; k < ROWS; k++) load_groups<L, WHOLE, V>(own[s][k], from + k * Eights::STRIDE * (4 * L::NBYTES));
      }
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        u32 run = at.begin + s * kStepRuns + first_run, rest[L::REST_NBYTES][ROWS][V];
        bool here = ALL || run < runs;
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
          u32 steps[V];
#pragma unroll
          for (int v = 0; v < V; v++) {
            u32 bytes[2];
            steps[v] = steps_of.of_group(own[s][k] + v * L::NBYTES, bytes);
#pragma unroll
            for (int b = 0; b <= LAST; b++) rest[b][k][v] = bytes[b];
          }
          numbers[s].template set<W, TierOf<W, 1>::NAMED>(k, steps, steps);
          if (!here) numbers[s].escapes[k] = numbers[s].listed[k][0] = 0;  // of no escapes the first byte is listed
        }
        here &= stored;
        u32* rests = out;
        if constexpr (LAST > 0) rests = store_field<Eights, WHOLE, 8, V>(rests, n, run, j, rest[0], here);
        store_field<Eights, WHOLE, L::REST_BITS - 8 * LAST, V>(rests, n, run, j, rest[LAST], here);
        store_field<Eights, WHOLE, W, V>(field, n, run, j, numbers[s].digits, here);
      }
    }
    Places<STEPS> places(numbers, any, at.found, at.counts(room));
#pragma unroll
    for (int s = 0; s < STEPS; s++)
      if (any) list_escapes(numbers[s], list + places.first[s], places.before[s], room.selectors);
    at.found += places.found;
  }
}

// The run of tier 1 that is short, by one warp.
template <class L, int W>
DEV u32 encode_short_words(const u8* words, u32 n, u32 lo, u32* out, bool stored, const TiersRoom& room, u32 found) {
  constexpr u32 ESCAPE = (1 << W) - 1;
  u32 c = n & 255, lane = threadIdx.x & 31;
  words += (u64)(n - c) * L::NBYTES;
  auto steps_of = [&](u32 i) { return exponent_of<L>(word_at<L>(words, i)) - lo & 255; };
#pragma unroll 1
  for (u32 begin = 0; begin < c; begin += 32) {
    u32 i = begin + lane, steps = i < c ? steps_of(i) : 0, escaped = __ballot_sync(kAll, steps >= ESCAPE);
    u32 at = found + __popc(escaped & ((1u << lane) - 1));
    if (steps >= ESCAPE) or_shared<0>(shared_address(room.list) + (at & ~3u), steps << (at * 8 & 31));
    found += __popc(escaped);
  }
  if (!stored) return found;
  store_short_field<L::REST_BITS>(out, n, c, [&](u32 i) { return rest_of<L>(word_at<L>(words, i)); });
  store_short_field<W>(out + field_nwords(n, L::REST_BITS), n, c, [&](u32 i) { return min(steps_of(i), ESCAPE); });
  return found;
}

// The run of a tier that is short: its digits, a byte each, behind which anything may stand.
template <int W>
DEV void store_last_run(u32* field, u32 count, const u8* digits) {
#pragma unroll
  for (int p = 4, below = 0; p; p >>= 1) {
    if (!(W & p)) continue;
    u32 c = count & 255, stride = stride_of<false>(c, p);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < stride; i += kEncoders) {
      u32 word = 0;
#pragma unroll
      for (int k = 0; k < 8 / p; k++) {
        u32 group = k * stride + i, mask = ((1u << p) - 1) * kOnes;
        if (4 * group >= c) continue;
        if (c - 4 * group < 4) mask &= (1u << (c - 4 * group) * 8) - 1;
        word |= (((const u32*)digits)[group] >> below & mask) << p * k;
      }
      field[(count >> 8) * (8 * p) + i] = word;
    }
    field += (count * p + 31) >> 5;
    below += p;
  }
}

// A tier from the second on: `count` numbers from the list, to a field. What is listed are steps from the exponent that
// the tiers before begin with. This one begins `below` exponents farther down, and behind these has a gap of GAP.
template <int W, u32 GAP>
DEV u32 encode_list(u32 count, u32 below, u32* field, bool stored, const TiersRoom& room) {
  constexpr int ROWS = Eights::ROWS, V = Eights::V;
  constexpr u32 NAMED = (1 << W) - 1, END = GAP + NAMED, LIMIT = END < 8 ? 8 : END < 16 ? 16 : 64;
  constexpr u32 CLOSED = -GAP & NAMED;  // what makes digits of steps behind the gap, in their lowest bits
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, runs = num_runs(count), j = lane % 8 * V;
  u32 below4 = below * kOnes, above4 = (LIMIT - below) * kOnes;
  Progress at = {};
  shared_at list = shared_address(room.list);
#pragma unroll 1
  for (; at.begin < runs; at.begin += kStepRuns) {
    u32 run = at.begin + warp * 4 + lane / 8;
    bool any = at.begin + warp * 4 < runs, here = run < runs, full = run < count >> 8;
    Numbers numbers;
    if (any) {
      u32* from = (u32*)(room.list + run * 256) + j;
#pragma unroll
      for (int k = 0; k < ROWS; k++) {
        u32 steps[V] = {}, low[V];  // 0 does not escape
        if (here) load_words<V>(steps, from + k * Eights::STRIDE);
        if (here) *(uint2*)(from + k * Eights::STRIDE) = {0, 0};
#pragma unroll
        for (int v = 0; v < V; v++) {
          steps[v] = ((steps[v] & 0x7f7f7f7fu) + below4) ^ (steps[v] & 0x80808080u);
          low[v] = steps[v] & (LIMIT - 1) * kOnes;
          low[v] += ((low[v] + above4) / LIMIT & kOnes) * CLOSED;
        }
        numbers.template set<W, END>(k, steps, low);
      }
      if (here && !full)
#pragma unroll
        for (int k = 0; k < ROWS; k++) store_words<V>((u32*)room.digits + k * Eights::STRIDE + j, numbers.digits[k]);
      store_field<Eights, false, W, V>(field, count, run, j, numbers.digits, full && stored);
    }
    Places<1> places(&numbers, any, at.found, at.counts(room));
    if (any) list_escapes(numbers, list + places.first[0], places.before[0], room.selectors);
    at.found += places.found;
    if (at.begin + kStepRuns < runs) __syncthreads();  // the next numbers stand right behind what is written
  }
  if (stored && count % 256) store_last_run<W>(field, count, room.digits);
  return at.found;
}

// Streams of a block so far.
template <u32 WIDTHS>
struct Streams {
  u32 counts[7];  // n_k for tier k; 0 behind the bytes
  u32 nwords;
  u32 most, room;  // bytes that they may take, else the block is stored; that may be written
};

// Tiers from T on, and the bytes. What is listed are steps from `start`. Whether they take no more than they may.
template <u32 WIDTHS, int T>
DEV bool encode_later(const Tiers<WIDTHS>& tiers, u32 start, u32* out, Streams<WIDTHS>& streams,
                      const TiersRoom& room) {
  typedef TierOf<WIDTHS, T> Tier;
  u32 count = streams.counts[T];
  u32* field = out + streams.nwords;
  streams.nwords += field_nwords(count, Tier::WIDTH);
  bool stored = streams.nwords * 4 <= streams.room;
  if (streams.nwords * 4 > streams.most || count > kMostEscapes) return false;
  if constexpr (T <= last_tier(WIDTHS)) {
    u32 below = tiers.below[T];
    __syncthreads();
    streams.counts[T + 1] = encode_list<Tier::WIDTH, Tier::BEFORE>(count, below, field, stored, room);
    return encode_later<WIDTHS, T + 1>(tiers, start - below, out, streams, room);
  } else {
    __syncthreads();
    u32 starts = (start & 255) * kOnes;
#pragma unroll 1
    for (u32 i = 4 * threadIdx.x; stored && i < count; i += 4 * kEncoders) {
      u32 steps = *(const u32*)(room.list + i), x = sums_of_bytes(steps, starts);
      field[i / 4] = count - i < 4 ? x & ((1u << (count - i) * 8) - 1) : x;
    }
    return true;
  }
}

// Blocks ------------------------------------------------------------------------------------------------------------

// The parameters of a cascade and its tag.
template <u32 WIDTHS>
struct CascadeEnd {
  static constexpr u32 VARIANT = variant_of(WIDTHS), NBYTES = 14 + (VARIANT >= 8);
  u32 words[4];

  METHOD CascadeEnd(const Tiers<WIDTHS>& tiers, const u32* counts) {
    u32 below = 0;
#pragma unroll
    for (int t = 2; t <= last_tier(WIDTHS); t++) below |= tiers.below[t] << 4 * (t - 2);
    words[0] = tiers.lo | below << 8 | counts[2] << 24;
    words[1] = counts[2] >> 8 | counts[3] << 8 | counts[4] << 24;
    words[2] = counts[4] >> 8 | counts[5] << 8 | counts[6] << 24;
    constexpr u32 ENDS =
        VARIANT < 8 ? tag_of(kKindCascade, VARIANT) : kExtendedCascade2 | tag_of(kKindExtended, VARIANT - 8) << 8;
    words[3] = counts[6] >> 8 | ENDS << 8;
  }

  METHOD u32 operator()(u32 i) const {
    return (i < 8 ? i < 4 ? words[0] : words[1] : i < 12 ? words[2] : words[3]) >> i % 4 * 8;
  }
};

template <class L, u32 WIDTHS, bool WHOLE>
DEV Encoded encode_tiers(const u8* words, u32 n, const Tiers<WIDTHS>& tiers, u32 align, u8* out, u32 capacity,
                         const TiersRoom& room) {
  typedef CascadeEnd<WIDTHS> End;
  constexpr int W = TierOf<WIDTHS, 1>::WIDTH;
  u32 raw = (n * L::NBYTES + align - 1) & ~(align - 1);
  if (tiers.alike && raw > align && is_constant<L>(words, n, room.samples)) {
    u32 word = word_at<L>(words, 0);
    if (align <= capacity)
      finish_block(out, 0, align, L::NBYTES + 1,
                   [&](u32 i) -> u32 { return i == L::NBYTES ? tag_of(kKindConstant) : word >> 8 * i; });
    return {align, 0, 0};
  }
  Streams<WIDTHS> streams = {{0, n}, field_nwords(n, L::REST_BITS) + field_nwords(n, W)};
  streams.most = max(raw - align, End::NBYTES) - End::NBYTES;
  streams.room = max(capacity & ~(align - 1), End::NBYTES) - End::NBYTES;
  bool coded = streams.nwords * 4 <= streams.most, stored = streams.nwords * 4 <= streams.room;
  if (coded) {
    Progress at = {};
    encode_words<L, W, WHOLE, 2, true>(words, n, tiers.lo, (u32*)out, stored, room, at);
    encode_words<L, W, WHOLE, 1, false>(words, n, tiers.lo, (u32*)out, stored, room, at);
    if (!WHOLE && n % 256) {
      if (threadIdx.x < 32) {
        at.found = encode_short_words<L, W>(words, n, tiers.lo, (u32*)out, stored, room, at.found);
        if (threadIdx.x == 0) room.samples.counters[kFound] = at.found;
      }
      __syncthreads();
      at.found = room.samples.counters[kFound];
    }
    streams.counts[2] = at.found;
    coded = encode_later<WIDTHS, 2>(tiers, tiers.lo, (u32*)out, streams, room);
  }
  if (coded) {
    u32 end = streams.nwords * 4, nbytes = (end + End::NBYTES + align - 1) & ~(align - 1);
    if (nbytes <= capacity) finish_block(out, end, nbytes, End::NBYTES, End(tiers, streams.counts));
    return {nbytes, 0, streams.counts[2]};
  }
  __syncthreads();  // all have written what they wrote of streams
  if (raw <= capacity) store_block<L, WHOLE>(words, n, out, raw);
  return {raw, 1, streams.counts[2]};
}
