#if defined(__aarch64__)
#include <arm_neon.h>

#include "transforms/expand_portable.h"
#include "transforms/word_select.h"

namespace tw {
namespace {

// Bit j is set where byte j is all ones.
inline uint64_t mask_of(uint8x8_t bytes) { return vaddv_u8(vand_u8(bytes, vcreate_u8(0x8040201008040201))); }

// Bytes of all ones for the bits that are set, zeros for others.
inline uint8x8_t spread_bits(uint64_t bits) {
  return vtst_u8(vdup_n_u8(static_cast<uint8_t>(bits)), vcreate_u8(0x8040201008040201));
}

template <unsigned W>
struct WordLanes;

template <>
struct WordLanes<1> : Portable<1> {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const uint8x8_t bits = vdup_n_u8(static_cast<uint8_t>(magnitude)), sign = vdup_n_u8(0x80);
    uint64_t mask = 0, negative = 0;
    for (unsigned i = 0; i < kGroup; i += 8) {
      const uint8x8_t v = vld1_u8(words + i);
      mask |= mask_of(vtst_u8(v, bits)) << i;
      negative |= mask_of(vtst_u8(v, sign)) << i;
    }
    *minus = negative;
    return mask;
  }
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned i = 0; i < kGroup; i += 8) {
      const unsigned part = static_cast<uint8_t>(mask >> i);
      vst1_u8(out, vtbl1_u8(vld1_u8(words + i), vld1_u8(kSelect.compact[part])));
      out += __builtin_popcount(part);
    }
    return out;
  }
  template <bool SIGNS, bool>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    const uint8x8_t filler = vdup_n_u8(static_cast<uint8_t>(fill));
    for (unsigned i = 0; i < kGroup; i += 8) {
      const unsigned part = static_cast<uint8_t>(mask >> i);
      uint8x8_t bytes = vtbx1_u8(filler, vld1_u8(kept), vld1_u8(kSelect.expand[part]));
      if (SIGNS) bytes = vorr_u8(bytes, vand_u8(spread_bits(minus >> i), vdup_n_u8(0x80)));
      vst1_u8(out + i, bytes);
      kept += __builtin_popcount(part);
    }
  }
  static constexpr WordSelect<8, 1> kSelect = make_word_select<8, 1>();
};

// COUNT words of W bytes are a vector.
template <unsigned COUNT, unsigned W>
struct Shuffled : Portable<W> {
  static uint8x16_t signs_of(uint64_t bits) {
    if constexpr (W == 2) {
      const uint16x8_t wide = vmovl_u8(vand_u8(spread_bits(bits), vdup_n_u8(1)));
      return vreinterpretq_u8_u16(vshlq_n_u16(wide, 15));
    } else {
      const uint32x4_t one = {1, 2, 4, 8};
      const uint32x4_t set = vtstq_u32(vdupq_n_u32(static_cast<uint32_t>(bits)), one);
      return vreinterpretq_u8_u32(vshlq_n_u32(set, 31));
    }
  }
  static uint8_t* compact(uint64_t mask, const uint8_t* words, uint8_t* out) {
    for (unsigned i = 0; i < kGroup; i += COUNT) {
      const unsigned part = mask >> i & ((1u << COUNT) - 1);
      vst1q_u8(out, vqtbl1q_u8(vld1q_u8(words + W * i), vld1q_u8(kSelect.compact[part])));
      out += W * static_cast<unsigned>(__builtin_popcount(part));
    }
    return out;
  }
  template <bool SIGNS, bool>
  static void expand(uint64_t mask, uint64_t fill, uint64_t minus, const uint8_t* kept, uint8_t* out) {
    uint8_t fills[16];
    fill_words<W>(fill, COUNT, fills);
    const uint8x16_t filler = vld1q_u8(fills);
    for (unsigned i = 0; i < kGroup; i += COUNT) {
      const unsigned part = mask >> i & ((1u << COUNT) - 1);
      uint8x16_t words = vqtbx1q_u8(filler, vld1q_u8(kept), vld1q_u8(kSelect.expand[part]));
      if (SIGNS) words = vorrq_u8(words, signs_of(minus >> i));
      vst1q_u8(out + W * i, words);
      kept += W * static_cast<unsigned>(__builtin_popcount(part));
    }
  }
  static constexpr WordSelect<COUNT, W> kSelect = make_word_select<COUNT, W>();
};

template <>
struct WordLanes<2> : Shuffled<8, 2> {
  static uint64_t find(const uint8_t* words, uint64_t magnitude, uint64_t* minus) {
    const uint16x8_t bits = vdupq_n_u16(static_cast<uint16_t>(magnitude)), sign = vdupq_n_u16(0x8000);
    uint64_t mask = 0, negative = 0;
    for (unsigned i = 0; i < kGroup; i += 8) {
      const uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(words + 2 * i));
      mask |= mask_of(vmovn_u16(vtstq_u16(v, bits))) << i;
      negative |= mask_of(vmovn_u16(vtstq_u16(v, sign))) << i;
    }
    *minus = negative;
    return mask;
  }
};
template <>
struct WordLanes<4> : Shuffled<4, 4> {};
template <>
struct WordLanes<8> : Portable<8> {};

}  // namespace

extern const ExpandKernels kExpandNeon;
const ExpandKernels kExpandNeon = {find, compact, expand};

}  // namespace tw
#endif
