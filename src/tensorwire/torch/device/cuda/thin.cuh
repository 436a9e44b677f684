// Products with BF16 weights in tier shape (4): y[n][row] = sum over k of W[row][k] * x[n][k], on tensor cores.
//
// A warp takes a tile of 16 rows, a run of each at a time. Lane (g, t) is lane 4 * g + t, as PTX counts the parts of an
// mma. It has four digits of row g and of row g + 8 in a register each, and makes of them the eight words that are its
// part of A: of columns 16s + 4t to 16s + 4t + 3 in step s. The instruction has other numbers for these columns, but x
// stands in the same order, so the 16 products that it sums are those of 16 consecutive columns.
//
// The order of a sum: a row's runs are cut into parts of `part_runs` runs, the last of which may be shorter. The steps
// of a part are summed along K, from zero, in one accumulator; or in two, one for even and one for odd slices of 32
// columns, which are added at the end. Then the parts are added in order. Which inputs a call has is of no influence.
//
// What escapes stands in a list. Two lanes for each row write it to shared memory, a quarter of a run at a time, as
// what turns lo + 15 into the exponent. All words take that in, and nearly all of it is zeros, so no word asks whether
// it escapes.
#pragma once

#include "sums.cuh"

// A row of a weight. Rows of one launch may be of several frames; all are multiplied by the same inputs.
struct RowAt {
  u64 rest;     // address of the row's rest, a multiple of 16
  u64 before;   // address of u16: how many escape in the block before each of the row's runs
  u64 escapes;  // address of the list of the block: u16, the exponent and from bit 8 on the column in the run
  u32 digits;   // from `rest` to the row's digits, in bytes; a multiple of 16
  u32 facts;    // lo, at most 240; and from bit 8 on, how many escape before the row's end
};

#define SLOT_NBYTES 6144  // of a run of 16 rows in shared memory: 8 pieces of 16 bytes of digits and 16 of rest a row
#define SLOTS 2           // for each warp: one is multiplied while the other one is filled
#define CHANGES_NBYTES 1024  // for each warp: a byte for each word of a quarter of a run

// Grid: any number of blocks; a block takes `together` tiles at once, and every so many of them. Threads: 32 * together
// for each of the warps that share the parts of a tile, 256 at most. Shared memory: for each warp SLOTS * SLOT_NBYTES
// and CHANGES_NBYTES, then for each part of each tile NB * 128 floats. `count` is 1 to 8 * NB, `columns` a multiple of
// 256; rows of x begin at multiples of 8 bytes, every `x_pitch` bytes. `bias` (or 0) and y are BF16, or float32 if
// `wide`. `rounded` says that the sums of parts are rounded to BF16 before they are added.
template <u32 NB, bool TWO>
GLOBAL void BOUNDS(256, NB == 8 ? 1 : 2)
    thin(const RowAt* __restrict__ rows, const u8* __restrict__ x, const u8* __restrict__ bias, u8* __restrict__ y,
         u32 num_rows, u32 columns, u32 part_runs, u32 together, u32 x_pitch, u32 count, u32 wide, u32 rounded) {
  SHARED(u8, shared);
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  const u32 runs = columns >> 8, parts = (runs + part_runs - 1) / part_runs, tiles = (num_rows + 15) >> 4;
  const u32 ways = warps / together, own_part = warp % ways, own_tile = warp / ways;
  const shared_at slots = shared_address(shared) + warp * (SLOTS * SLOT_NBYTES);
  const u32 changes = warps * (SLOTS * SLOT_NBYTES) + warp * CHANGES_NBYTES;
  float* sums = (float*)(shared + warps * (SLOTS * SLOT_NBYTES + CHANGES_NBYTES));

  // Pieces of number c, of 8 rows, stand together, row g at place g ^ 2 * (c & 3): so neither the 8 lanes that write at
  // once nor the 32 that read a word of each row meet in a bank.
  const shared_at to = slots + t * 128 + (g * 16 ^ t * 32);
  u32 next_tile = blockIdx.x * together + own_tile, next_part = own_part, next_run = own_part * part_runs,
      next_slot = 0;
  const u8 *digits0 = 0, *digits1 = 0, *rest0 = 0, *rest1 = 0;
  auto copy_next = [&] {
    if (next_tile < tiles) {
      if (next_run == next_part * part_runs) {
        u32 r0 = next_tile * 16 + g, r1 = r0 + 8, last = num_rows - 1;
        const RowAt *row0 = rows + (r0 < last ? r0 : last), *row1 = rows + (r1 < last ? r1 : last);
        rest0 = (const u8*)row0->rest + t * 16, digits0 = rest0 + row0->digits + next_run * 128;
        rest1 = (const u8*)row1->rest + t * 16, digits1 = rest1 + row1->digits + next_run * 128;
        rest0 += next_run * 256, rest1 += next_run * 256;
      }
      shared_at at = to + next_slot;
#pragma unroll
      for (u32 c = 0; c < 2; c++) copy16(at + c * 512, digits0 + c * 64), copy16(at + 1024 + c * 512, digits1 + c * 64);
#pragma unroll
      for (u32 c = 0; c < 4; c++)
        copy16(at + 2048 + c * 512, rest0 + c * 64), copy16(at + 4096 + c * 512, rest1 + c * 64);
      digits0 += 128, digits1 += 128, rest0 += 256, rest1 += 256;
      if (++next_run == runs || next_run == (next_part + 1) * part_runs) {
        next_part += ways;
        if (next_part >= parts) next_part = own_part, next_tile += gridDim.x * together;
        next_run = next_part * part_runs;
      }
    }
    copies_commit();
    next_slot ^= SLOT_NBYTES;
  };

  u32 x_at[NB];
  find_inputs(x_at, count, x_pitch);
  constexpr u32 AT_ONCE = NB <= 2 ? 4 : NB == 4 ? 2 : 1;  // steps whose inputs are loaded together
  // A row has 64 bytes of changes, step j at 16 * (j ^ row / 2 % 4), so that here, too, no two lanes meet.
  const u32 to_change = changes + (lane >> 1) * 64 + (lane >> 2 & 3) * 16;
  const shared_at changed = shared_address(shared) + changes + g * 64 + (g >> 1) * 16 + t * 4;
  uint4* const cleared = (uint4*)(shared + changes) + lane;
  cleared[0] = cleared[32] = uint4{0, 0, 0, 0};
  u32 slot = 0;
  copy_next();
#pragma unroll 1
  for (u32 first = blockIdx.x * together; first < tiles; first += gridDim.x * together) {
    const u32 tile = first + own_tile;
#pragma unroll 1
    for (u32 part = own_part; part < parts && tile < tiles; part += ways) {
      const u32 r0 = tile * 16 + g, r1 = r0 + 8, r2 = tile * 16 + (lane >> 1), last = num_rows - 1;
      const u32 lo0 = (rows[r0 < last ? r0 : last].facts & 255) * 0x01010101u;
      const u32 lo1 = (rows[r1 < last ? r1 : last].facts & 255) * 0x01010101u;
      u32 run = part * part_runs;
      const u32 stop = runs - run < part_runs ? runs : run + part_runs;
      // The list of row r2, every other number of it: `entry` is number `rank`, and `end` ends the list of the run.
      const RowAt of_list = rows[r2 < last ? r2 : last];
      const u16 *before = (const u16*)of_list.before, *list = (const u16*)of_list.escapes;
      const u32 row_end = of_list.facts >> 8, escape = of_list.facts + 15;
      u32 rank = __ldg(before + run) + (lane & 1), next_end = run + 1 < runs ? __ldg(before + run + 1) : row_end;
      u32 entry = __ldg(list + rank);
      float c[TWO ? 2 : 1][NB][4] = {};
#pragma unroll 1
      for (; run < stop; run++) {
        copies_wait<SLOTS - 2>();
        __syncwarp();  // what all lanes copied is there, and all have done with what the next copy takes the place of
        copy_next();
        const u32 end = next_end;
        if (run + 1 < stop) next_end = run + 2 < runs ? __ldg(before + run + 2) : row_end;
        shared_at at[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) at[j] = slots + slot + j * 128 + (lane * 4 ^ j * 32);
        slot ^= SLOT_NBYTES;
        const u8* inputs = x + run * 512;
#pragma unroll 1
        for (u32 quarter = 0; quarter < 4; quarter++) {
          bool any = rank < end && entry >> 14 == quarter;
          any = __any_sync(0xffffffffu, any);
          if (any) {
            __syncwarp();  // all have read the zeros of the quarter before
            while (rank < end && entry >> 14 == quarter) {
              shared[to_change ^ (entry >> 8 & 63)] = (u8)(entry ^ escape);
              entry = __ldg(list + (rank += 2));
            }
            __syncwarp();
          }
          u32 D0[4], D1[4], S0[4], S1[4], E0[4], E1[4];
#pragma unroll
          for (u32 j = 0; j < 4; j++) {
            shared_at from = at[j] + (quarter & 1) * 512, rest = at[j] + quarter * 512;
            D0[j] = lds32(from), D1[j] = lds32(from + 1024), S0[j] = lds32(rest + 2048), S1[j] = lds32(rest + 4096);
            E0[j] = lds32(changed ^ j * 16), E1[j] = lds32((changed ^ j * 16) + 512);
          }
          if (any) {
            __syncwarp();
            cleared[0] = cleared[32] = uint4{0, 0, 0, 0};
            __syncwarp();
          }
          uint2 X[AT_ONCE][NB];
#pragma unroll
          for (u32 j = 0; j < 4; j++) {
            if (j % AT_ONCE == 0) load_inputs(X, inputs + j * 32, x_at);
            u32 x0 = (D0[j] >> (quarter & 2) * 2 & 0x0f0f0f0fu) + lo0 ^ E0[j];
            u32 x1 = (D1[j] >> (quarter & 2) * 2 & 0x0f0f0f0fu) + lo1 ^ E1[j];
            u32 a[4];
            join_words(x0, S0[j], a[0], a[2]), join_words(x1, S1[j], a[1], a[3]);
#pragma unroll
            for (u32 b = 0; b < NB; b++) {
              u32 of_inputs[2] = {X[j % AT_ONCE][b].x, X[j % AT_ONCE][b].y};
              mma_bf16(c[TWO ? j >> 1 : 0][b], a, of_inputs);
            }
          }
          inputs += 128;
        }
      }
      store_sums<NB, TWO>(sums + (own_tile * parts + part) * (NB * 128), c);
    }
    __syncthreads();
    const Result result = {bias, y, num_rows, count, wide, rounded};
    add_parts<Bf16, NB>(sums, parts, first * 16, num_rows, together, result);
    __syncthreads();
  }
}
