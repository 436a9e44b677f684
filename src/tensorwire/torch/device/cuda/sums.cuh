// What products share: words as parts of an mma, and the sums of parts (thin.cuh has the order).
#pragma once

#include "frame.cuh"

// Four words of four exponents and four rests, in pairs.
DEV void join_words(u32 exponents, u32 rest, u32& first, u32& second) {
  u32 low = bits_of(0x7f7f7f7fu, rest, exponents << 7), high = bits_of(0x7f7f7f7fu, exponents >> 1, rest);
  first = prmt(low, high, 0x5140), second = prmt(low, high, 0x7362);
}

DEV u32 bf16_of(float value) {
  u32 bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
DEV float float_of_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// The nearest number of a layout of 16 bits, even on a tie, and back. The bits of NaN are always the
// same, but for its sign in F16.
template <class L>
DEV u32 number_of(float value) {
  if (L::MANTISSA_BITS == Bf16::MANTISSA_BITS) return bf16_of(value);
  u32 bits = __float_as_uint(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 & 0x8000u) | 0x7e00u : f16_of(value);
}
template <class L>
DEV float float_of(u32 bits) {
  return L::MANTISSA_BITS == Bf16::MANTISSA_BITS ? float_of_bf16(bits) : float_of_f16(bits);
}

template <class L>
DEV void mma(float* c, const u32* a, const u32* b) {
  if (L::MANTISSA_BITS == Bf16::MANTISSA_BITS)
    mma_bf16(c, a, b);
  else
    mma_f16(c, a, b);
}

// Where a lane's inputs begin, from the first one's bytes on: input g of each eight, from column 4t on. What is no
// input repeats the last one, and its sums go nowhere.
template <u32 NB>
DEV void find_inputs(u32 (&x_at)[NB], u32 count, u32 x_pitch) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (u32 b = 0; b < NB; b++) {
    u32 input = b * 8 + (lane >> 2);
    x_at[b] = (input < count ? input : count - 1) * x_pitch + (lane & 3) * 8;
  }
}

// What it has of steps, one behind the other.
template <u32 STEPS, u32 NB>
DEV void load_inputs(uint2 (&X)[STEPS][NB], const u8* inputs, const u32 (&x_at)[NB]) {
#pragma unroll
  for (u32 b = 0; b < NB; b++)
#pragma unroll
    for (u32 k = 0; k < STEPS; k++) X[k][b] = __ldg((const uint2*)(inputs + x_at[b] + k * 32));
}

// What a part of a tile sums up to, 16 rows by 8 * NB inputs, as the lanes of a warp have it in their accumulators.
template <u32 NB, bool TWO>
DEV void store_sums(float* sums, const float (*c)[NB][4]) {
  float* target = sums + (threadIdx.x & 3) * 32 + (threadIdx.x >> 2 & 7);
#pragma unroll
  for (u32 b = 0; b < NB; b++)
#pragma unroll
    for (u32 i = 0; i < 4; i++)
      target[(b * 8 + (i & 1)) * 16 + (i >> 1) * 8] = TWO ? c[0][b][i] + c[TWO ? 1 : 0][b][i] : c[0][b][i];
}

// Where a product goes, and what is done to it on the way.
struct Result {
  const u8* bias;  // or 0; like y of the weight's layout, or float32 if `wide`
  u8* y;
  u32 num_rows, count, wide;
  u32 rounded;  // whether sums of parts are rounded to that layout before they are added
};

// Add the parts of `tiles` tiles, of which each has `parts`, and store the rows [first_row, end). For all threads.
template <class L, u32 NB>
DEV void add_parts(const float* sums, u32 parts, u32 first_row, u32 end, u32 tiles, const Result& result) {
  for (u32 i = threadIdx.x; i < result.count * 16 * tiles; i += blockDim.x) {
    const u32 input = i / (16 * tiles), place = i - input * (16 * tiles), row = first_row + place;
    if (row >= end) continue;
    const float* some = sums + ((place >> 4) * parts * NB * 8 + input) * 16 + (place & 15);
    float sum = 0;
    for (u32 part = 0; part < parts; part++) {
      float value = some[part * (NB * 128)];
      if (result.rounded) value = float_of<L>(number_of<L>(value));
      sum = part ? sum + value : value;
    }
    if (result.bias)
      sum += result.wide ? ((const float*)result.bias)[row] : float_of<L>(((const u16*)result.bias)[row]);
    const u64 at = (u64)input * result.num_rows + row;
    if (result.wide)
      ((float*)result.y)[at] = sum;
    else
      ((u16*)result.y)[at] = (u16)number_of<L>(sum);
  }
}
