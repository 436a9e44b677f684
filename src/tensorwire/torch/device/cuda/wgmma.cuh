// Products as those of thin.cuh, for 17 to 64 inputs on Hopper: the same sums in the same orders, by wgmma.
//
// Four warps are a warpgroup, and take a tile of 64 rows: each warp has 16 of them as a warp of thin.cuh has, and makes
// the same registers of their words. One instruction multiplies the 64 rows with all inputs; its other factor is read
// from shared memory, which a warpgroup fills for itself. So an input is read once for 64 rows, where thin.cuh reads
// it for each 16, and there is one instruction a step instead of two for every eight inputs.
//
// What PTX says of that factor, "K-major" and without swizzle: it consists of matrices of 8 inputs by 16 bytes, that is
// eight numbers of the step; each is 128 bytes in one piece, an input after the other. A descriptor of 64 bits has a
// 16th of: the address, in bits 0 to 13; the distance of the two matrices of the same inputs, in bits 16 to 29
// ("leading dimension"); the distance of those of one eight of inputs and the next, in bits 32 to 45 ("stride
// dimension"). Bits 62 and 63 name the swizzle, 0 is none. The instruction reads through the asynchronous proxy: what
// threads stored must be fenced for it, and then meet at a barrier. Registers that it reads or adds to are its own
// until it was waited for.
//
// A lane needs the numbers 2t, 2t + 1, 2t + 8 and 2t + 9 of a step to be its four consecutive columns. So inputs are
// permuted on their way to shared memory: of four columns the first two go to the first matrix, the others to the
// second. No bulk copy does that; and each lane copies just the pieces of weights that thin.cuh would, so that these
// need no tensor map that the host would have to make for each weight.
#pragma once

#include "dev.h"
#include "thin.cuh"

#define WARP_NBYTES 9216    // of shared memory: digits of two runs, the rest of one, and changes as in thin.cuh
#define DIGITS_NBYTES 2048  // of a run of 16 rows
#define REST_AT 4096        // in those of a warp
#define CHANGES_AT 8192
#define SUMS_PITCH 68  // floats from an input to the next: so lanes meet in no bank

DEV u64 matrices_at(shared_at at, u32 inputs) {
  return (u64)8 << 32 | (u64)inputs << 16 | (at >> 4);  // 128 bytes; 16 * inputs
}

// A value that all lanes have: it then needs no register of each.
DEV u32 same(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }

// How many warpgroups the registers of a processor allow.
FOLDED u32 most_groups(u32 nb, bool two) { return nb << two <= 8 ? 4 : nb << two <= 12 ? 3 : 2; }

// What a lane has of the sums: the number of the accumulator, and its place behind that of the lane's first one.
template <u32 NB, class F>
DEV void each_sum(F f) {
#pragma unroll
  for (u32 b = 0; b < NB; b++)
#pragma unroll
    for (u32 i = 0; i < 4; i++) f(b, i, (b * 8 + (i & 1)) * SUMS_PITCH + (i >> 1) * 8);
}

// Grid: any number of blocks; a block takes `together` tiles at once, and every so many of them. Threads: 128 *
// together for each of the warpgroups that share the parts of a tile. Shared memory: for each warpgroup 4 * WARP_NBYTES
// and NB * 2048, then for each tile NB * 8 * SUMS_PITCH floats. NB is even, rows of x begin at multiples of 16 bytes;
// all else is as in thin.cuh.
template <u32 NB, bool TWO>
GLOBAL void BOUNDS(128 * most_groups(NB, TWO), 1)
    wgmma(const RowAt* __restrict__ rows, const u8* __restrict__ x, const u8* __restrict__ bias, u8* __restrict__ y,
          u32 num_rows, u32 columns, u32 part_runs, u32 together, u32 x_pitch, u32 count, u32 wide, u32 rounded) {
  SHARED(u8, shared);
  constexpr u32 X_NBYTES = NB * 1024, STEP_NBYTES = NB * 256;  // of inputs: a quarter of a run, a step
  constexpr u32 GROUP_NBYTES = 4 * WARP_NBYTES + 2 * X_NBYTES;
  const u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, in_group = threadIdx.x & 127;
  const u32 group = same(threadIdx.x >> 7), groups = blockDim.x >> 7;
  const u32 runs = columns >> 8, parts = same((runs + part_runs - 1) / part_runs), tiles = (num_rows + 63) >> 6;
  const u32 ways = same(groups / together), own_part = same(group % ways), own_tile = same(group / ways);
  const u32 own = group * GROUP_NBYTES + (in_group >> 5) * WARP_NBYTES;
  const shared_at base = shared_address(shared), weights = base + own;
  const shared_at x_base = base + group * GROUP_NBYTES + 4 * WARP_NBYTES;
  const u32 first_row = (in_group >> 5) * 16, last = num_rows - 1;

  // A place of each quarter of a run is filled anew, for the next run, as soon as the quarter is read; digits serve two
  // quarters, and so there are two places for them. Pieces stand as in thin.cuh.
  const shared_at to = weights + t * 128 + (g * 16 ^ t * 32);
  const u32 first_run = own_part * part_runs;
  u32 next_tile = own_part < parts ? blockIdx.x * together + own_tile : tiles;
  u32 next_run = first_run, next_stop = 0, next_digits = 0;
  const u8 *rest0 = 0, *rest1 = 0;
  u32 digits0 = 0, digits1 = 0;  // from there on
  auto find_next = [&] {         // the first run of a part
    if (next_tile >= tiles) return;
    next_stop = runs - next_run < part_runs ? runs : next_run + part_runs;
    u32 r0 = next_tile * 64 + first_row + g, r1 = r0 + 8;
    const RowAt *row0 = rows + (r0 < last ? r0 : last), *row1 = rows + (r1 < last ? r1 : last);
    rest0 = (const u8*)row0->rest + t * 16 + next_run * 256, digits0 = row0->digits - next_run * 128;
    rest1 = (const u8*)row1->rest + t * 16 + next_run * 256, digits1 = row1->digits - next_run * 128;
  };
  auto copy_next = [&](u32 quarter) {
    if (next_tile < tiles) {
      if (quarter < 2) {
        shared_at at = to + next_digits + quarter * 512;
        copy16(at, rest0 + digits0 + quarter * 64), copy16(at + 1024, rest1 + digits1 + quarter * 64);
      }
      shared_at at = to + REST_AT + quarter * 1024;
      copy16(at, rest0 + quarter * 64), copy16(at + 512, rest1 + quarter * 64);
    }
    copies_commit();
  };
  auto go_on = [&] {  // to the run behind the next one
    next_digits ^= DIGITS_NBYTES;
    rest0 += 256, rest1 += 256, digits0 -= 128, digits1 -= 128;
    if (++next_run < next_stop) return;
    next_run += (ways - 1) * part_runs;
    if (next_run >= runs) next_run = first_run, next_tile += gridDim.x * together;
    find_next();
  };

  // A warp brings two steps of every other eight of inputs, lane (g, t) four columns of input g of each. What is no
  // input repeats the last one, and its sums go nowhere.
  const u32 steps = in_group >> 5 & 1, odd = in_group >> 6;
  constexpr u32 LAST = NB / 2 - 1;  // only of these may some be no input
  const u32 x_at = (8 * odd + g) * x_pitch + steps * 64 + t * 8, last_input = LAST * 16 + 8 * odd + g;
  const u32 x_at_last = (last_input < count ? last_input : count - 1) * x_pitch + steps * 64 + t * 8;
  const shared_at x_to = x_base + (2 * steps + (lane >> 4)) * STEP_NBYTES + (lane >> 3 & 1) * (STEP_NBYTES / 2) +
                         odd * 128 + (lane & 7) * 16;
  uint2 X[NB / 2][2];
  auto load_inputs = [&](u32 run, u32 quarter) {
    const u8* inputs = x + run * 512 + quarter * 128;
#pragma unroll
    for (u32 i = 0; i < NB / 2; i++) {
      const uint2* at = (const uint2*)(i == LAST ? inputs + x_at_last : inputs + x_at + (u64)x_pitch * (16 * i));
      X[i][0] = __ldg(at), X[i][1] = __ldg(at + 4);
    }
  };

  // A lane names a row of 16 bytes, and gets a word of each of four. Changes stand as a quarter's rest does.
  const u32 own_row = own + (lane >> 3) * 128 + ((lane & 7) * 16 ^ (lane >> 3) * 32);
  const shared_at from = base + own_row;
  const u32 to_change = own + CHANGES_AT + (lane >> 4) * 512 + (lane >> 1 & 7) * 16;
  uint4* const cleared = (uint4*)(shared + own_row + CHANGES_AT);
  cleared[0] = cleared[32] = uint4{0, 0, 0, 0};
  if (next_tile < tiles) load_inputs(next_run, 0);
  find_next();
#pragma unroll 1
  for (u32 quarter = 0; quarter < 4; quarter++) copy_next(quarter);
  go_on();
#pragma unroll 1
  for (u32 first = blockIdx.x * together; first < tiles; first += gridDim.x * together) {
    const u32 tile = first + own_tile;
#pragma unroll 1
    for (u32 part = own_part; part - own_part < parts; part += ways) {
      const bool works = part < parts && tile < tiles;
      float c[TWO ? 2 : 1][NB][4];
      if (works) {
#pragma unroll
        for (u32 b = 0; b < NB; b++)
#pragma unroll
          for (u32 i = 0; i < 4; i++) c[0][b][i] = c[TWO ? 1 : 0][b][i] = 0;
        const u32 r0 = tile * 64 + first_row + g, r1 = r0 + 8, r2 = tile * 64 + first_row + (lane >> 1);
        const u32 lo0 = (rows[r0 < last ? r0 : last].facts & 255) * 0x01010101u;
        const u32 lo1 = (rows[r1 < last ? r1 : last].facts & 255) * 0x01010101u;
        u32 run = part * part_runs;
        const u32 stop = runs - run < part_runs ? runs : run + part_runs;
        const RowAt* of_list = rows + (r2 < last ? r2 : last);
        // How many escape before a run; behind the last one, before the row's end.
        auto before = [&](u32 run) {
          return run < runs ? __ldg((const u16*)of_list->before + run) : of_list->facts >> 8;
        };
        const u16* list = (const u16*)of_list->escapes;
        const u32 escape = of_list->facts + 15;
        u32 rank = before(run) + (lane & 1), next_end = before(run + 1), entry = __ldg(list + rank);
        u32 A[4][4];
#pragma unroll 1
        for (; run < stop; run++) {
          const u32 end = next_end;
          next_end = before(run + 2);
#pragma unroll
          for (u32 quarter = 0; quarter < 4; quarter++) {
#pragma unroll
            for (u32 i = 0; i < NB / 2; i++)
              sts_matrices(x_to + (quarter & 1) * X_NBYTES + i * 256, X[i][0].x, X[i][0].y, X[i][1].x, X[i][1].y);
            copies_wait<3>();
            bool any = rank < end && entry >> 14 == quarter;
            any = __any_sync(0xffffffffu, any);
            __syncwarp();  // what all lanes copied is there, and all have read the zeros of the quarter before
            if (any) {
              while (rank < end && entry >> 14 == quarter) {
                shared[to_change ^ (entry >> 12 & 3) * 160 ^ (entry >> 8 & 15)] = (u8)(entry ^ escape);
                entry = __ldg(list + (rank += 2));
              }
              __syncwarp();
            }
            u32 D0[4], D1[4], S0[4], S1[4], E0[4], E1[4];
            lds_matrices(D0, from + (next_digits ^ DIGITS_NBYTES) + (quarter & 1) * 512);
            lds_matrices(D1, from + (next_digits ^ DIGITS_NBYTES) + (quarter & 1) * 512 + 1024);
            lds_matrices(S0, from + REST_AT + quarter * 1024), lds_matrices(S1, from + REST_AT + quarter * 1024 + 512);
            lds_matrices(E0, from + CHANGES_AT), lds_matrices(E1, from + CHANGES_AT + 512);
            fence_for_wgmma();
            __syncwarp();  // all have read
            if (any) cleared[0] = cleared[32] = uint4{0, 0, 0, 0};
            copy_next(quarter);
            wgmma_wait<0>();
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
              u32 x0 = (D0[j] >> (quarter & 2) * 2 & 0x0f0f0f0fu) + lo0 ^ E0[j];
              u32 x1 = (D1[j] >> (quarter & 2) * 2 & 0x0f0f0f0fu) + lo1 ^ E1[j];
              join_words(x0, S0[j], A[j][0], A[j][2]), join_words(x1, S1[j], A[j][1], A[j][3]);
            }
            quarter < 3 ? load_inputs(run, quarter + 1) : load_inputs(next_run, 0);
            sync_some(1 + group, 128);  // the inputs of this quarter are there, and all have done with those before
            wgmma_fence();
#pragma unroll
            for (u32 j = 0; j < 4; j++)
              wgmma_bf16<NB>(c[TWO ? j >> 1 : 0], A[j],
                             matrices_at(x_base + (quarter & 1) * X_NBYTES + j * STEP_NBYTES, NB * 8));
            wgmma_commit();
          }
          go_on();
        }
        wgmma_wait<0>();
#pragma unroll
        for (u32 b = 0; b < NB; b++) wgmma_done(c[0][b]), wgmma_done(c[TWO ? 1 : 0][b]);
        if (TWO) each_sum<NB>([&](u32 b, u32 i, u32) { c[0][b][i] += c[TWO ? 1 : 0][b][i]; });
        if (rounded) each_sum<NB>([&](u32 b, u32 i, u32) { c[0][b][i] = float_of_bf16(bf16_of(c[0][b][i])); });
      }
#pragma unroll 1
      for (u32 turn = 0; turn < ways; turn++) {  // parts are added in order
        if (works && turn == own_part) {
          float* target = (float*)(shared + groups * GROUP_NBYTES) + (own_tile * NB * 8 + t * 2) * SUMS_PITCH;
          target += first_row + g;
          if (part == 0)
            each_sum<NB>([&](u32 b, u32 i, u32 at) { target[at] = c[0][b][i]; });
          else
            each_sum<NB>([&](u32 b, u32 i, u32 at) { target[at] += c[0][b][i]; });
        }
        __syncthreads();
      }
    }
    for (u32 i = threadIdx.x; i < count * 64 * together; i += blockDim.x) {
      const u32 input = i / (64 * together), in_block = i - input * (64 * together), row = first * 64 + in_block;
      if (row >= num_rows) continue;
      float sum =
          ((float*)(shared + groups * GROUP_NBYTES))[((in_block >> 6) * NB * 8 + input) * SUMS_PITCH + (in_block & 63)];
      if (bias) sum += wide ? ((const float*)bias)[row] : float_of_bf16(((const u16*)bias)[row]);
      const u64 place = (u64)input * num_rows + row;
      if (wide)
        ((float*)y)[place] = sum;
      else
        ((u16*)y)[place] = (u16)bf16_of(sum);
    }
    __syncthreads();
  }
}
