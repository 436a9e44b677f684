// BF16 words of codes of 8 bits: each is a scale times a code, rounded to float and then to BF16, to the nearest, ties
// to even. `columns` words of a row take a scale each `width` of them.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t rounded(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Its bits as those of a float have an exponent that is too small by 120, subnormal ones too.
static inline float of_f8_e4m3(uint8_t code) {
  return of_bits((uint32_t)(code & 0x80) << 24 | (uint32_t)(code & 0x7f) << 20) * 0x1p120f;
}

static inline float of_i8(uint8_t code) { return (float)(int8_t)code; }

#define DEQUANTIZE(name)                                                                                       \
  void dequantize_##name(const uint8_t* codes, const float* scales, size_t rows, size_t columns, size_t width, \
                         uint16_t* restrict words) {                                                           \
    for (size_t row = 0; row < rows; ++row) {                                                                  \
      for (size_t first = 0; first < columns; first += width) {                                                \
        const size_t count = columns - first < width ? columns - first : width;                                \
        const float scale = *scales++;                                                                         \
        for (size_t i = 0; i < count; ++i) words[i] = rounded(of_##name(codes[i]) * scale);                    \
        codes += count;                                                                                        \
        words += count;                                                                                        \
      }                                                                                                        \
    }                                                                                                          \
  }

DEQUANTIZE(f8_e4m3)
DEQUANTIZE(i8)
