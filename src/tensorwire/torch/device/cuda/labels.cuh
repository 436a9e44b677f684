// What headers of frames say: where, and of a layout. And which page a slot is of.
#pragma once
#include "frame.cuh"

constexpr u64 kMagic = 0x0a1a0a0d46575493;

// Where fields are in the fixed part, by numbers of 64 bits.
enum Field : u32 {
  kFieldHeader = 7,  // header_nbytes
  kFieldData = 8,    // data_nbytes
  kFieldContentHash = 10,
  kFieldBaseHash = 12,
  kFieldIndexChecksum = 14,
  kFieldHeaderChecksum = 15
};

// The extension that says who encoded a frame.
constexpr u64 kEncoderTag = 1, kEncoderNumber = 2;

// The dtype's name in a header.
template <class L>
FOLDED u64 dtype_name() {
  if (L::NBYTES == 2) return L::EXPONENT_BITS == 8 ? 0x36314642 : 0x363146;  // BF16, F16
  return L::EXPONENT_BITS == 4 ? 0x334d34455f3846 : 0x324d35455f3846;        // F8_E4M3, F8_E5M2
}

// Bytes 24 to 31 of a header.
template <class L>
FOLDED u64 layout_bytes() {
  u64 split_float = 1, ordered = 1, bits = 8 * L::NBYTES;
  return L::NBYTES | L::EXPONENT_BITS << 8 | L::REST_BITS << 16 | split_float << 24 | ordered << 32 | bits << 48;
}

DEV u64 page_id(const u8* page_ids, u32 number, u32 id_nbytes) {
  return id_nbytes == 8 ? ((const u64*)page_ids)[number] : (u64)(long long)((const int*)page_ids)[number];
}
