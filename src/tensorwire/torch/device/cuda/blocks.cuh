// What a frame says of its blocks: entries of its index, and the last bytes of coded blocks. docs/format.md has both.
#pragma once
#include "dev.h"

// Entries of the index ----------------------------------------------------------------------------------------------

constexpr u32 kIsStored = 1u << 31;  // above a block's place

struct alignas(8) Entry {
  u32 where, checksum;

  METHOD u32 place() const { return where & ~kIsStored; }  // behind the header, in units
  METHOD bool is_stored() const { return where & kIsStored; }
};

// Kinds -------------------------------------------------------------------------------------------------------------

enum BlockKind : u32 { kKindConstant = 1, kKindCascade = 3, kKindExtended = 7 };
enum ExtendedKind : u32 { kExtendedCascade2 = 1, kExtendedSparse = 3, kExtendedDense = 4, kExtendedLast = 6 };

// The last byte of a coded block whose rest is verbatim, or that has none.
FOLDED u32 tag_of(u32 kind, u32 variant = 0) { return kind | variant << 5; }

// The last four bytes of a coded block, and what they say.
DEV u32 tail_of(const u8* bytes, u32 nbytes) { return *(const u32*)(bytes + nbytes - 4); }
DEV u32 kind_of(u32 tail) { return tail >> 24 & 7; }
DEV u32 rest_coding_of(u32 tail) { return tail >> 27 & 3; }
DEV u32 extended_of(u32 tail) { return tail >> 16 & 255; }
DEV bool is_of(u32 tail, ExtendedKind extended) {
  return kind_of(tail) == kKindExtended && extended_of(tail) == extended;
}

// Whether only a later version of the format may have such a block.
DEV bool is_unknown(u32 tail) {
  return kind_of(tail) == 0 || rest_coding_of(tail) == 3 ||
         (kind_of(tail) == kKindExtended && extended_of(tail) - 1 >= kExtendedLast);
}
