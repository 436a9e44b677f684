#include "frame/decode_block.h"

#include <algorithm>
#include <cstring>

#include "coders/digit_words.h"
#include "frame/open_block.h"
#include "frame/relative_decode.h"
#include "transforms/expand.h"

namespace tw {
namespace {

// How many bytes of words are woven at a time. While one such segment is decoded, the prefetches of another are under
// way. More of them than the misses that a core keeps track of would hold up the loads.
constexpr size_t kSegmentNbytes = 2048;
static_assert(kSegmentNbytes <= kSegment, "a segment of one-byte words");

// Gives the x of a block segment by segment: those decoded already, those of one of two decoders, or those of kind
// modal.
struct Exponents {
  const uint8_t* whole = nullptr;
  CascadeDecoder* cascade = nullptr;
  bool by_runs = false;  // of the cascade, with turned exponents
  EntropyDecoder* entropy = nullptr;
  // Kind modal: the mask of the words whose exponent is not the mode, the mode, and the next of these exponents.
  const uint64_t* other_mask = nullptr;
  uint8_t mode = 0;
  const uint8_t* next_other = nullptr;
  EntropyParams params;  // of kind entropy; zeros for others
  size_t escapes_used = 0;
  uint16_t* escape_buffer = nullptr;  // kSegment of them

  const uint8_t* get(size_t first, size_t count, uint8_t* buffer) {
    if (whole != nullptr) return whole + first;
    if (cascade != nullptr) {
      cascade->decode(first, count, buffer);
    } else if (other_mask != nullptr) {
      next_other += expand_kernels.expand(1, mode, other_mask + first / 64, nullptr, next_other, count, buffer);
    } else {
      entropy->decode(buffer, count);
    }
    return buffer;
  }

  bool next_escape(const Layout& dtype, uint16_t* x) {
    const size_t used = escapes_used, left = params.num_escapes - used;
    if (left == 0) return false;
    if (used % kSegment == 0) {
      word_kernels.unpack_numbers(2, dtype.exponent_bits + params.k, 0, params.escapes, params.num_escapes, used,
                                  left < kSegment ? left : kSegment, reinterpret_cast<uint8_t*>(escape_buffer));
    }
    *x = escape_buffer[escapes_used++ % kSegment];
    return true;
  }
};

// Puts together the words of a segment whose symbol is the escape.
const char* mend_escapes(const Layout& dtype, Exponents& exponents, const uint8_t* symbols,
                         const uint8_t* sign_mantissas, size_t count, uint8_t* words) {
  const uint8_t none = 0;
  const uint8_t* const end = symbols + count;
  const auto find = [&](const uint8_t* from) {
    return static_cast<const uint8_t*>(std::memchr(from, kEscapeSymbol, static_cast<size_t>(end - from)));
  };
  for (const uint8_t* at = find(symbols); at != nullptr; at = find(at + 1)) {
    const size_t i = static_cast<size_t>(at - symbols);
    uint16_t x = 0;
    if (!exponents.next_escape(dtype, &x)) return "expected num_escapes to be the number of symbols 255";
    word_kernels.assemble(dtype, &none, x, exponents.params.k, sign_mantissas + i * dtype.rest_nbytes(), 1,
                          words + i * dtype.word_nbytes);
  }
  return nullptr;
}

// Weave exponents and sign_mantissas into words.
const char* weave(Coded& coded, Exponents& exponents, const BlockOutput& output, DecodeScratch* scratch) {
  const WordKernels& kernels = word_kernels;
  const Layout& dtype = coded.dtype();
  const unsigned bits = dtype.exponent_bits + exponents.params.k;
  const bool entropy = coded.tag.kind == kEntropy;
  const size_t segment = kSegmentNbytes / dtype.word_nbytes;
  const size_t num_segments = ceil_div(coded.n, segment);
  const uint8_t* const field = entropy ? nullptr : coded.rest.untrimmed();
  Prefetcher<kFirstLevel> prefetcher(output.next, num_segments);
  for (size_t s = 0; s < num_segments; ++s) {
    prefetcher.step();
    const size_t first = s * segment, count = coded.n - first < segment ? coded.n - first : segment;
    uint8_t* words = output.words + first * dtype.word_nbytes;
    uint8_t* target = output.stream || output.taker != nullptr ? scratch->words : words;
    if (exponents.by_runs) {
      CascadeDecoder* const cascade = exponents.cascade;
      cascade->took(digit_word_kernels.weave_runs(cascade->runs(first), field + first, count / kRun, target));
    } else if (const uint8_t* const symbols = exponents.get(first, count, scratch->exponents); field != nullptr) {
      kernels.weave(dtype, symbols, field, coded.n, first, count, target);
    } else {
      if (entropy && bits < 8 && !kernels.fits(symbols, count, bits)) return "expected exponents that the dtype has";
      const uint8_t* sign_mantissas = coded.rest.segment(first, count);
      kernels.assemble(dtype, symbols, exponents.params.base, exponents.params.k, sign_mantissas, count, target);
      const char* wrong = entropy ? mend_escapes(dtype, exponents, symbols, sign_mantissas, count, target) : nullptr;
      if (wrong != nullptr) return wrong;
    }
    if (output.taker != nullptr) {
      output.taker->take(output.taker, target, count);
    } else if (output.stream) {
      kernels.stream_copy(words, scratch->words, count * dtype.word_nbytes);
    }
  }
  return coded.rest.finish();
}

const char* decode_constant(const Coded& coded, size_t length, const BlockOutput& output) {
  const char* wrong = check_padding(coded, 0);
  if (wrong != nullptr) return wrong;
  if (length != coded.spec.align) return "expected a constant block no longer than its alignment";
  const size_t width = coded.dtype().word_nbytes, nbytes = coded.n * width;
  std::memcpy(output.words, coded.params, width);
  for (size_t done = width; done < nbytes;) {
    const size_t more = done < nbytes - done ? done : nbytes - done;
    std::memcpy(output.words + done, output.words, more);
    done += more;
  }
  return nullptr;
}

const char* decode_plain(Coded& coded, const BlockOutput& output) {
  const char* wrong = check_padding(coded, coded.rest.streams_nbytes());
  if (wrong != nullptr) return wrong;
  const size_t width = coded.dtype().word_nbytes;
  for (size_t first = 0; first < coded.n; first += kSegment) {
    const size_t count = coded.n - first < kSegment ? coded.n - first : kSegment;
    std::memcpy(output.words + first * width, coded.rest.segment(first, count), count * width);
  }
  return coded.rest.finish();
}

const char* decode_enec(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  EnecParams params;
  uint32_t num_high = 0;
  size_t nbytes = 0;
  const char* wrong = open_enec(coded, &params, &num_high, &nbytes);
  if (wrong != nullptr) return wrong;
  if (!enec_decode(coded.kind_streams(), coded.n, coded.dtype().exponent_bits, params, num_high, scratch->exponents,
                   &scratch->enec)) {
    return "expected num_high to be the number of words in flagged groups";
  }
  Exponents exponents;
  exponents.whole = scratch->exponents;
  return weave(coded, exponents, output, scratch);
}

// Whether words are made of digits and rests in one pass.
bool goes_by_runs(const Coded& coded, const CascadeParams& params) {
  const Layout& dtype = coded.dtype();
  const bool bf16 = dtype.split == Split::kFloat && dtype.word_nbytes == 2 && dtype.exponent_bits == 8;
  return digit_word_kernels.weave_runs != nullptr && bf16 && coded.rest.untrimmed() != nullptr && has_runs(params);
}

const char* decode_cascade(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  CascadeParams params;
  size_t nbytes = 0;
  const char* wrong = open_cascade(coded, &params, &nbytes);
  if (wrong != nullptr) return wrong;
  Taker* const taker = output.taker;
  const bool by_runs = goes_by_runs(coded, params);
  CascadeDecoder cascade;
  if (!cascade.open(coded.kind_streams(), params, coded.dtype().exponent_bits, &scratch->cascade,
                    by_runs ? ExponentForm::kTurned : ExponentForm::kPlain)) {
    return "expected counts of tiers to be their escapes, exponents of the dtype, zeros in filler bits";
  }
  if (by_runs && taker != nullptr && taker->take_runs != nullptr) {
    taker->take_runs(taker, &cascade, coded.rest.untrimmed(), coded.n);
  } else {
    Exponents exponents;
    exponents.cascade = &cascade;
    exponents.by_runs = by_runs;
    wrong = weave(coded, exponents, output, scratch);
    if (wrong != nullptr) return wrong;
  }
  return cascade.finish() ? nullptr : "expected the count of tier 2 to be the escapes of tier 1";
}

const char* decode_entropy(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  Exponents exponents;
  exponents.entropy = &scratch->entropy;
  exponents.escape_buffer = scratch->escapes;
  size_t nbytes = 0;
  const char* wrong = open_entropy(coded, &scratch->entropy, &exponents.params, &nbytes);
  if (wrong != nullptr) return wrong;
  const EntropyDecoder* decoder = &scratch->entropy;
  for (SymbolsAhead& ahead : scratch->ahead) {
    if (ahead.block != coded.block) continue;
    exponents.whole = ahead.symbols;
    decoder = &ahead.entropy;
    ahead.block = nullptr;
  }
  wrong = weave(coded, exponents, output, scratch);
  if (wrong != nullptr) return wrong;
  if (exponents.escapes_used != exponents.params.num_escapes)
    return "expected num_escapes to be the number of symbols 255";
  return decoder->finish() ? nullptr : "expected the entropy stream to end with its symbols";
}

Fault decode_coded(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n, const BlockOutput& output,
                   DecodeScratch* scratch, Place place);

// The words of the base. The output may be the base's own memory.
const char* decode_same(const BlockSpec& spec, size_t n, const BlockOutput& output) {
  const size_t nbytes = n * spec.dtype.word_nbytes;
  output.hasher->update(spec.base, nbytes);
  if (output.words == spec.base) return nullptr;
  if (output.stream) {
    word_kernels.stream_copy(output.words, spec.base, nbytes);
  } else {
    std::memcpy(output.words, spec.base, nbytes);
  }
  return nullptr;
}

const char* decode_stored(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n,
                          const BlockOutput& output) {
  const size_t nbytes = n * spec.dtype.word_nbytes;
  for (size_t i = nbytes; i < length; ++i) {
    if (block[i] != 0) return "expected zeros in the padding";
  }
  if (output.stream) {
    word_kernels.stream_copy(output.words, block, nbytes);
  } else {
    std::memcpy(output.words, block, nbytes);
  }
  return nullptr;
}

Fault decode_any(const BlockSpec& spec, const BlockBytes& block, const BlockOutput& output, DecodeScratch* scratch,
                 Place place) {
  if (block.length == 0 && spec.relative) return decode_same(spec, block.n, output);
  const char* const wrong = check_length(spec, block);
  if (wrong != nullptr) return wrong;
  if (block.stored) return decode_stored(spec, block.bytes, block.length, block.n, output);
  return decode_coded(spec, block.bytes, block.length, block.n, output, scratch, place);
}

Fault decode_zeros(const Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  Zeros zeros;
  Fault wrong = open_zeros(coded, &zeros);
  if (wrong) return wrong;
  if (zeros.num_kept != 0) {
    const BlockOutput inner = {scratch->inner, false, {}};
    const BlockBytes block = {coded.block, zeros.inner_nbytes, zeros.num_kept, zeros.inner_stored};
    wrong = decode_any(coded.spec.inner(), block, inner, scratch, Place::kInner);
    if (wrong) return wrong;
  }
  size_t nbytes = 0;
  wrong = open_zero_masks(coded, zeros, &nbytes, &scratch->zeros);
  if (wrong) return wrong;
  const unsigned width = coded.dtype().word_nbytes;
  const uint64_t fill = zeros.signs == kSignsMinus ? uint64_t{1} << (8 * width - 1) : 0;
  const size_t segment = kSegmentNbytes / width, num_segments = ceil_div(coded.n, segment);
  const uint8_t* next = scratch->inner;
  Prefetcher<kFirstLevel> prefetcher(output.next, num_segments);
  for (size_t s = 0; s < num_segments; ++s) {
    prefetcher.step();
    const size_t first = s * segment, count = coded.n - first < segment ? coded.n - first : segment;
    uint8_t* words = output.words + first * width;
    uint8_t* target = output.stream ? scratch->words : words;
    const uint64_t* minus = zeros.signs == kSignsMixed ? scratch->zeros.minus + first / 64 : nullptr;
    next += width * expand_kernels.expand(width, fill, scratch->zeros.mask + first / 64, minus, next, count, target);
    if (output.stream) word_kernels.stream_copy(words, target, count * width);
  }
  return {};
}

const char* decode_modal(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  Modal modal;
  size_t nbytes = 0;
  const char* wrong = open_modal(coded, &modal, &nbytes, &scratch->modal);
  if (wrong != nullptr) return wrong;
  plane_kernels.unpack_field(coded.dtype().exponent_bits, modal.others, modal.num_others, scratch->others);
  Exponents exponents;
  exponents.other_mask = scratch->modal.mask;
  exponents.mode = modal.mode;
  exponents.next_other = scratch->others;
  return weave(coded, exponents, output, scratch);
}

Fault decode_parts(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  Parts parts;
  const char* const wrong = open_parts(&coded, &parts);
  if (wrong != nullptr) return wrong;
  const auto spec = [&](size_t i) { return coded.spec.part(i * parts.words); };
  for (size_t i = 0; i < parts.count; ++i) {
    if (i % 2 == 0 && i + 1 < parts.count) {
      decode_symbols_ahead(spec(i), parts.blocks[i], spec(i + 1), parts.blocks[i + 1], scratch);
    }
    // No part gives its words to a taker: the block does, once it has them all.
    const BlockSpec of = spec(i);
    const size_t width = coded.dtype().word_nbytes;
    const BlockOutput of_part = {output.words + i * parts.words * width, output.stream, {}, output.hasher};
    const uint64_t hashed = output.hasher == nullptr ? 0 : output.hasher->position();
    const Fault fault = decode_any(of, parts.blocks[i], of_part, scratch, Place::kPart);
    if (fault) return fault;
    // Kinds that do not look at the base leave that to be done.
    if (output.hasher != nullptr && output.hasher->position() == hashed) {
      output.hasher->update(of_part.words, parts.blocks[i].n * width);
    }
  }
  return check_padding(coded, parts.streams);
}

Fault decode_scaled(const Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  Scaled scaled;
  const char* wrong = open_scaled(coded, &scaled);
  if (wrong != nullptr) return wrong;
  const BlockSpec spec = coded.spec.inner(kLayoutsOfCodes[coded.tag.variant]);
  const Fault fault = decode_any(spec, scaled.inner, {scratch->inner, false, {}}, scratch, Place::kInner);
  if (fault) return fault;
  wrong = open_scales(coded, scaled);
  if (wrong != nullptr) return wrong;
  const RoundingToNearest rounding;
  constexpr size_t kWidth = sizeof(uint16_t), kSegmentWords = kSegmentNbytes / kWidth;
  const size_t num_segments = ceil_div(coded.n, kSegmentWords);
  Prefetcher<kFirstLevel> prefetcher(output.next, num_segments);
  size_t left = scaled.width, scale = 0;  // words that the scale still has
  for (size_t s = 0; s < num_segments; ++s) {
    prefetcher.step();
    const size_t first = s * kSegmentWords, count = std::min(kSegmentWords, coded.n - first);
    uint8_t* words = output.words + first * kWidth;
    uint8_t* target = output.stream ? scratch->words : words;
    for (size_t i = 0; i < count;) {
      if (left == 0) left = scaled.width, scale = scale + 1 == scaled.num_scales ? 0 : scale + 1;
      const size_t more = std::min(left, count - i);
      const float factor = load<float>(scaled.scales + sizeof(float) * scale);
      if (!scaled_kernels.multiply(scaled.codes, scratch->inner + first + i, more, factor, target + i * kWidth))
        return "expected codes that are numbers";
      i += more;
      left -= more;
    }
    if (output.stream) word_kernels.stream_copy(words, target, count * kWidth);
  }
  return {};
}

// open_coded() lets no other through.
Fault decode_extended(Coded& coded, const BlockOutput& output, DecodeScratch* scratch, Place place) {
  switch (coded.extended) {
    case kParts:
      return place == Place::kFrame ? decode_parts(coded, output, scratch) : "expected parts that have none themselves";
    case kModal:
      return decode_modal(coded, output, scratch);
    case kScaled:
      return place == Place::kInner ? "expected an inner block that is not of kind scaled"
                                    : decode_scaled(coded, output, scratch);
    case kSparse:
    case kDense:
      return decode_relative(coded, output, &scratch->relative);
    default:
      return decode_cascade(coded, output, scratch);
  }
}

Fault decode_coded(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n, const BlockOutput& output,
                   DecodeScratch* scratch, Place place) {
  Coded coded(spec, block, n);
  Fault wrong = open_coded(length, &scratch->rest, &coded);
  if (wrong) return wrong;
  switch (coded.tag.kind) {
    case kConstant:
      return decode_constant(coded, length, output);
    case kEnec:
      return decode_enec(coded, output, scratch);
    case kCascade:
      return decode_cascade(coded, output, scratch);
    case kEntropy:
      return decode_entropy(coded, output, scratch);
    case kPlain:
      return decode_plain(coded, output);
    case kZeros:
      return place == Place::kInner ? "expected an inner block that is not of kind zeros itself"
                                    : decode_zeros(coded, output, scratch);
    default:
      return decode_extended(coded, output, scratch, place);
  }
}

}  // namespace

Fault decode_block(const BlockSpec& spec, const BlockBytes& block, const BlockOutput& output, DecodeScratch* scratch) {
  return decode_any(spec, block, output, scratch, Place::kFrame);
}

namespace {

void decode_entropy_ahead(const Coded& a, const Coded& b, DecodeScratch* scratch) {
  SymbolsAhead &first = scratch->ahead[0], &second = scratch->ahead[1];
  size_t consumed = 0;
  if (!first.entropy.open(a.kind_streams(), a.left(), a.n, &consumed)) return;
  if (!second.entropy.open(b.kind_streams(), b.left(), b.n, &consumed)) return;
  const size_t together = (a.n < b.n ? a.n : b.n) / kRansStates * kRansStates;
  EntropyDecoder::decode_two(&first.entropy, first.symbols, &second.entropy, second.symbols, together);
  first.entropy.decode(first.symbols + together, a.n - together);
  second.entropy.decode(second.symbols + together, b.n - together);
  first.block = a.block;
  second.block = b.block;
}

// Take apart a block that may have symbols. False if it has none, or is not valid.
bool open_symbols(const BlockBytes& block, RestDecodeScratch* scratch, Coded* coded) {
  if (block.length == 0 || block.stored) return false;
  const uint8_t kind = Tag::from(block.bytes[block.length - 1]).kind;
  return (kind == kEntropy || kind == kExtended) && !open_coded(block.length, scratch, coded);
}

// The inner blocks, which are of no such kind themselves.
void decode_codes_ahead(const Coded& a, const Coded& b, DecodeScratch* scratch) {
  Scaled first, second;
  if (open_scaled(a, &first) != nullptr || open_scaled(b, &second) != nullptr) return;
  const auto spec = [](const Coded& coded) { return coded.spec.inner(kLayoutsOfCodes[coded.tag.variant]); };
  decode_symbols_ahead(spec(a), first.inner, spec(b), second.inner, scratch);
}

}  // namespace

void decode_symbols_ahead(const BlockSpec& a_spec, const BlockBytes& a, const BlockSpec& b_spec, const BlockBytes& b,
                          DecodeScratch* scratch) {
  Coded first(a_spec, a.bytes, a.n), second(b_spec, b.bytes, b.n);
  if (!open_symbols(a, &scratch->rest, &first) || !open_symbols(b, &scratch->rest, &second)) return;
  if (first.tag.kind == kEntropy && second.tag.kind == kEntropy) decode_entropy_ahead(first, second, scratch);
  if (first.extended == kDense && second.extended == kDense) decode_dense_ahead(first, second, &scratch->relative);
  if (first.extended == kScaled && second.extended == kScaled) decode_codes_ahead(first, second, scratch);
}

}  // namespace tw
