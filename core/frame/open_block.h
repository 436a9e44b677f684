// The descriptor of a block, taken apart and checked; nothing is decoded. Each function returns what is wrong, if
// anything.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coders/cascade.h"
#include "coders/enec.h"
#include "coders/entropy.h"
#include "coders/mask.h"
#include "coders/rest.h"
#include "common/format.h"
#include "include/tensorwire.h"
#include "transforms/scaled.h"

namespace tw {

// What is wrong with a block; nothing, if `message` is nullptr.
struct Fault {
  const char* message = nullptr;
  int status = TW_CORRUPT;

  Fault() = default;
  Fault(const char* text) : message(text) {}
  static Fault unsupported(const char* text) {
    Fault fault(text);
    fault.status = TW_UNSUPPORTED_VERSION;
    return fault;
  }
  explicit operator bool() const { return message != nullptr; }
};

// The bytes of a block, with kSlack behind them, its number of words, and whether it is stored.
struct BlockBytes {
  const uint8_t* bytes;
  size_t length, n;
  bool stored;
};

// The descriptor of a coded block, taken apart.
struct Descriptor {
  Tag tag{};
  uint8_t extended = 0;             // an ExtendedKind where the tag's kind is kExtended, else 0
  const uint8_t* params = nullptr;  // of the kind
  size_t available = 0;             // bytes before the descriptor
  RestLayout rest_layout{};         // where there is a rest
  const uint8_t* rest_params = nullptr;

  bool has_rest() const {
    return tag.kind != kConstant && tag.kind != kZeros && !is_relative_kind(extended) && extended != kParts &&
           extended != kScaled;
  }
};

// A coded block with its descriptor.
struct Coded : Descriptor {
  const BlockSpec& spec;
  const uint8_t* block;
  size_t n;
  RestDecoder rest{};

  Coded(const BlockSpec& of, const uint8_t* bytes, size_t num_words) : spec(of), block(bytes), n(num_words) {}
  const Layout& dtype() const { return spec.dtype; }
  const uint8_t* kind_streams() const { return block + rest.streams_nbytes(); }
  size_t left() const { return available - rest.streams_nbytes(); }
};

// Kind entropy: x = base + symbol has k extra bits; symbol 255 takes the next of the escapes, a field.
struct EntropyParams {
  uint16_t base = 0;
  unsigned k = 0;
  const uint8_t* escapes = nullptr;
  size_t num_escapes = 0;
};

// Kinds zeros and modal: their masks, and what decoding them takes.
struct MaskedScratch {
  uint64_t mask[kMaskNumbers], minus[kMaskNumbers];
  MaskDecodeScratch coding;
};

struct Zeros {
  size_t num_kept, inner_nbytes;
  uint8_t signs;
  bool inner_stored;
};

struct Parts {
  size_t words, count;  // of each part but the last one; of parts
  size_t streams;       // bytes of all parts
  BlockBytes blocks[kMaxParts];
};

// The layouts of codes: their rows in the table of dtypes.
constexpr Layout kLayoutsOfCodes[] = {{1, 4, 4, Split::kFloat, true}, {1, 4, 4, Split::kSigned, false}};
constexpr Layout kScaledLayout = {2, 8, 8, Split::kFloat, true};

// Exponents of scales: no product of one and a code is subnormal or infinite.
constexpr uint32_t kLeastScale = 16, kMostScale = 239;

struct Scaled {
  Codes codes;
  size_t width, num_scales;  // words that share a scale; word i has number floor(i / width) mod num_scales
  const uint8_t* scales;     // floats; open_scales() has checked them
  BlockBytes inner;
};

struct Modal {
  uint8_t mode;
  size_t num_others;
  const uint8_t* others;  // their field
};

// Functions that read take the descriptor alone: no byte before it, and none of the streams.

// A block of `length` bytes that ends at `end` and is not stored.
Fault read_descriptor(const BlockSpec& spec, const uint8_t* end, size_t length, Descriptor* descriptor);
// Kinds whose parameters say what their streams take. A block has n words.
const char* read_enec(const Descriptor& descriptor, const Layout& dtype, size_t n, EnecParams* params,
                      uint32_t* num_high);
const char* read_cascade(const Descriptor& descriptor, const Layout& dtype, size_t n, CascadeParams* params);
// Whether so many bytes of streams and less padding than a block is aligned to fill the block.
const char* check_streams(const Descriptor& descriptor, const BlockSpec& spec, size_t streams);

// A block of `length` bytes that is not stored; `coded` has its spec, bytes and number of words.
Fault open_coded(size_t length, RestDecodeScratch* scratch, Coded* coded);

// The same, and whether the padding is zero.
const char* check_padding(const Coded& coded, size_t streams);

// What is wrong with the length of a block that has bytes, if anything.
const char* check_length(const BlockSpec& spec, const BlockBytes& block);

// Kind parts, whose lengths leave coded->available; neither the parts nor the padding behind them is looked at.
const char* open_parts(Coded* coded, Parts* parts);

// The kinds; *nbytes is what their streams take.
const char* open_enec(const Coded& coded, EnecParams* params, uint32_t* num_high, size_t* nbytes);
// Kind cascade, and the extended one.
const char* open_cascade(const Coded& coded, CascadeParams* params, size_t* nbytes);
const char* open_entropy(const Coded& coded, EntropyDecoder* decoder, EntropyParams* params, size_t* nbytes);
// Kind zeros up to its inner block, and what stands behind that.
const char* open_zeros(const Coded& coded, Zeros* zeros);
const char* open_zero_masks(const Coded& coded, const Zeros& zeros, size_t* nbytes, MaskedScratch* scratch);
// Kind scaled up to its inner block, and what stands behind that.
const char* open_scaled(const Coded& coded, Scaled* scaled);
const char* open_scales(const Coded& coded, const Scaled& scaled);
const char* open_modal(const Coded& coded, Modal* modal, size_t* nbytes, MaskedScratch* scratch);

}  // namespace tw
