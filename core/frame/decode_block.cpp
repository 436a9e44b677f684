#include "frame/decode_block.h"

#include <cstring>

namespace tw {
namespace {

constexpr const char* kTooLong = "the streams exceed the block";
constexpr const char* kFiller = "filler bits are not zero";

// Words that are woven at a time, in bytes. While one such segment is decoded the prefetches of another are under way:
// no more of them than the misses that a core keeps track of, or they hold up the loads.
constexpr size_t kSegmentNbytes = 2048;
static_assert(kSegmentNbytes <= kSegment, "a segment of one-byte words");

// Which rest codings a kind may have in a profile (docs/format.md, "Block").
bool allowed(const BlockSpec& spec, const Tag& tag) {
  const bool compact = spec.profile == kProfileCompact;
  const bool split = spec.dtype->exponent_bits != 0;
  const bool any_rest = tag.rest == kVerbatim || tag.rest == kTrimmed || (tag.rest == kBytes && compact);
  switch (tag.kind) {
    case kConstant:
      return tag.rest == kVerbatim && tag.variant == 0;
    case kEnec:
      return split && any_rest && tag.variant >= 2 && tag.variant <= 5;
    case kCascade:
      return split && any_rest && spec.profile != kProfileEnec;
    case kEntropy:
      return split && any_rest && compact && tag.variant <= kMaxExtraBits && tag.variant <= spec.dtype->mantissa_bits;
    case kPlain:
      return any_rest && tag.rest != kVerbatim && tag.variant == 0;
    case kZeroGroups:
      return tag.rest == kVerbatim && spec.profile != kProfileEnec;
    default:
      return false;
  }
}

size_t params_nbytes(const BlockSpec& spec, uint8_t kind) {
  switch (kind) {
    case kConstant:
      return spec.dtype->word_nbytes;
    case kEnec:
    case kEntropy:
      return 4;
    case kCascade:
      return 3 + 2 * kMaxTiers;
    case kZeroGroups:
      return 6;
    default:
      return 0;
  }
}

// A coded block with its descriptor taken apart.
struct Coded {
  const BlockSpec& spec;
  const uint8_t* block;
  size_t n;
  Tag tag;
  const uint8_t* params;  // of the kind
  size_t available;       // bytes before the descriptor
  unsigned rest_width;
  RestDecoder rest;

  const Dtype& dtype() const { return *spec.dtype; }
  bool has_rest() const { return tag.kind != kConstant && tag.kind != kZeroGroups; }
  const uint8_t* kind_streams() const { return block + rest.streams_nbytes(); }
  size_t left() const { return available - rest.streams_nbytes(); }
};

const char* open_coded(size_t length, DecodeScratch* scratch, Coded* coded) {
  coded->tag = Tag::from(coded->block[length - 1]);
  if (!allowed(coded->spec, coded->tag)) return "a kind of block that this profile and dtype do not have";
  size_t descriptor = 1 + params_nbytes(coded->spec, coded->tag.kind);
  const Dtype& dtype = coded->dtype();
  const unsigned k = coded->tag.kind == kEntropy ? coded->tag.variant : 0;
  const bool split = coded->tag.kind != kPlain;
  coded->rest_width = split ? dtype.mantissa_bits + 1u - k : 8u * dtype.word_nbytes;
  const size_t rest_params = coded->has_rest() ? RestDecoder::params_nbytes(coded->tag.rest, coded->rest_width) : 0;
  if (descriptor + rest_params > length) return "the descriptor exceeds the block";
  coded->params = coded->block + length - descriptor;
  coded->available = length - descriptor - rest_params;
  if (!coded->has_rest()) return nullptr;
  return coded->rest.open(coded->tag.rest, rest_nbytes(dtype, split), coded->rest_width, coded->n, coded->block,
                          coded->available, coded->params - rest_params, &scratch->rest);
}

// After the streams: less than kBlockAlign bytes, all zero.
const char* check_padding(const Coded& coded, size_t streams) {
  if (streams > coded.available) return kTooLong;
  if (coded.available - streams >= kBlockAlign) return "more padding than alignment asks for";
  for (size_t i = streams; i < coded.available; ++i) {
    if (coded.block[i] != 0) return "padding is not zero";
  }
  return nullptr;
}

// Always inlined: GCC takes a function that only prefetches for one without effect and drops its calls.
__attribute__((always_inline)) inline void prefetch(const BlockOutput& output, size_t segment, size_t num_segments) {
  const size_t share = ceil_to(ceil_div(output.prefetch_nbytes, num_segments), 64);
  for (size_t i = segment * share; i < (segment + 1) * share && i < output.prefetch_nbytes; i += 64) {
    __builtin_prefetch(output.prefetch + i);
  }
}

// Where the x of a block come from, segment by segment: decoded already, or one of two decoders.
struct Exponents {
  const uint8_t* whole = nullptr;
  CascadeDecoder* cascade = nullptr;
  EntropyDecoder* entropy = nullptr;
  // Kind entropy: x = base + symbol has k extra bits; symbol 255 takes the next of `escapes`.
  uint16_t base = 0;
  unsigned k = 0;
  const uint8_t* escapes = nullptr;  // a field
  size_t num_escapes = 0, used = 0;
  uint16_t* escape_buffer = nullptr;  // kSegment of them

  const uint8_t* get(size_t first, size_t count, uint8_t* buffer) {
    if (whole != nullptr) return whole + first;
    if (cascade != nullptr) {
      cascade->decode(first, count, buffer);
    } else {
      entropy->decode(buffer, count);
    }
    return buffer;
  }

  unsigned escape_bits(const Dtype& dtype) const { return dtype.exponent_bits + k; }

  bool next_escape(const Dtype& dtype, uint16_t* x) {
    if (used == num_escapes) return false;
    if (used % kSegment == 0) {
      const size_t count = num_escapes - used < kSegment ? num_escapes - used : kSegment;
      word_kernels().unpack_numbers(2, escape_bits(dtype), 0, escapes, num_escapes, used, count,
                                    reinterpret_cast<uint8_t*>(escape_buffer));
    }
    *x = escape_buffer[used++ % kSegment];
    return true;
  }
};

// The words of a segment whose symbol is the escape.
const char* mend_escapes(const Dtype& dtype, Exponents& exponents, const uint8_t* symbols, const uint8_t* rests,
                         size_t count, uint8_t* words) {
  const uint8_t none = 0;
  const uint8_t* const end = symbols + count;
  const auto find = [&](const uint8_t* from) {
    return static_cast<const uint8_t*>(std::memchr(from, kEscapeSymbol, static_cast<size_t>(end - from)));
  };
  for (const uint8_t* at = find(symbols); at != nullptr; at = find(at + 1)) {
    const size_t i = static_cast<size_t>(at - symbols);
    uint16_t x = 0;
    if (!exponents.next_escape(dtype, &x)) return "num_escapes is not the number of escapes";
    word_kernels().assemble(dtype, &none, x, exponents.k, rests + i * rest_nbytes(dtype, true), 1,
                            words + i * dtype.word_nbytes);
  }
  return nullptr;
}

// Weave exponents and rests into words.
const char* weave(Coded& coded, Exponents& exponents, const BlockOutput& output, DecodeScratch* scratch) {
  const WordKernels& kernels = word_kernels();
  const Dtype& dtype = coded.dtype();
  const unsigned bits = dtype.exponent_bits + exponents.k;
  const bool entropy = coded.tag.kind == kEntropy;
  const size_t segment = kSegmentNbytes / dtype.word_nbytes;
  const size_t num_segments = ceil_div(coded.n, segment);
  for (size_t s = 0; s < num_segments; ++s) {
    prefetch(output, s, num_segments);
    const size_t first = s * segment, count = coded.n - first < segment ? coded.n - first : segment;
    const uint8_t* symbols = exponents.get(first, count, scratch->exponents);
    if (entropy && bits < 8 && !kernels.fits(symbols, count, bits)) return "an exponent wider than the dtype's";
    const uint8_t* rests = coded.rest.segment(first, count);
    uint8_t* words = output.words + first * dtype.word_nbytes;
    uint8_t* target = output.stream ? scratch->words : words;
    kernels.assemble(dtype, symbols, exponents.base, exponents.k, rests, count, target);
    if (entropy) {
      const char* wrong = mend_escapes(dtype, exponents, symbols, rests, count, target);
      if (wrong != nullptr) return wrong;
    }
    if (output.stream) kernels.stream_copy(words, scratch->words, count * dtype.word_nbytes);
  }
  return coded.rest.finish();
}

const char* decode_constant(const Coded& coded, size_t length, const BlockOutput& output) {
  if (length != kBlockAlign) return "a constant block of more than 32 bytes";
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

const char* open_enec(const Coded& coded, EnecParams* params, uint32_t* num_high, size_t* nbytes) {
  *params = {coded.params[0], static_cast<uint8_t>(coded.params[1] >> 4), static_cast<uint8_t>(coded.params[1] & 15),
             coded.tag.variant};
  *num_high = load<uint16_t>(coded.params + 2);
  if (params->m < 1 || params->m >= params->nb || params->nb > coded.dtype().exponent_bits || *num_high > coded.n) {
    return "enec parameters out of range";
  }
  *nbytes = enec_stream_nbytes(coded.n, *params, *num_high);
  const char* wrong = check_padding(coded, coded.rest.streams_nbytes() + *nbytes);
  if (wrong != nullptr) return wrong;
  const size_t num_groups = ceil_div(coded.n, size_t{1} << params->log2_group);
  const uint8_t* low = coded.kind_streams();
  const uint8_t* mask = low + field_nbytes(coded.n, params->m);
  const uint8_t* high = mask + field_nbytes(num_groups, 1);
  const bool clean = filler_is_zero(low, coded.n, params->m) && filler_is_zero(mask, num_groups, 1) &&
                     filler_is_zero(high, *num_high, params->nb - params->m);
  return clean ? nullptr : kFiller;
}

const char* decode_enec(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  EnecParams params;
  uint32_t num_high = 0;
  size_t nbytes = 0;
  const char* wrong = open_enec(coded, &params, &num_high, &nbytes);
  if (wrong != nullptr) return wrong;
  if (!enec_decode(coded.kind_streams(), coded.n, coded.dtype().exponent_bits, params, num_high, scratch->exponents,
                   &scratch->enec)) {
    return "num_high is not the number of words in flagged groups";
  }
  Exponents exponents;
  exponents.whole = scratch->exponents;
  return weave(coded, exponents, output, scratch);
}

const char* open_cascade(const Coded& coded, CascadeParams* params, size_t* nbytes) {
  const unsigned below = load<uint16_t>(coded.params + 1);
  *params = CascadeParams{};
  params->variant = coded.tag.variant;
  params->lo = coded.params[0];
  params->counts[0] = static_cast<uint32_t>(coded.n);
  for (unsigned k = 1; k < kMaxTiers; ++k) params->below[k] = static_cast<uint8_t>(below >> (3 * k - 3) & 7);
  for (unsigned k = 1; k <= kMaxTiers; ++k) params->counts[k] = load<uint16_t>(coded.params + 1 + 2 * k);
  if (below >> (3 * (kMaxTiers - 1)) != 0) return "reserved bits of a cascade block";
  for (unsigned k = 1; k < kMaxTiers; ++k) {
    const unsigned width = kTierWidths[params->variant][k];
    if (params->below[k] > (1u << width) - 1) return "a tier's interval is out of range";
    if (width == 0 && params->counts[k + 1] != 0) return "a count of a tier that does not exist";
  }
  if (!cascade_in_range(*params, coded.dtype().exponent_bits)) return "a tier names an exponent that is too wide";
  for (unsigned k = 1; k <= kMaxTiers; ++k) {
    if (params->counts[k] > params->counts[k - 1]) return "a tier larger than the one before";
  }
  *nbytes = cascade_nbytes(*params);
  return check_padding(coded, coded.rest.streams_nbytes() + *nbytes);
}

const char* decode_cascade(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  CascadeParams params;
  size_t nbytes = 0;
  const char* wrong = open_cascade(coded, &params, &nbytes);
  if (wrong != nullptr) return wrong;
  CascadeDecoder cascade;
  if (!cascade.open(coded.kind_streams(), params, coded.dtype().exponent_bits, &scratch->cascade)) {
    return "a tier's count is not its escapes, an exponent is too wide, or filler bits are not zero";
  }
  Exponents exponents;
  exponents.cascade = &cascade;
  wrong = weave(coded, exponents, output, scratch);
  if (wrong != nullptr) return wrong;
  return cascade.finish() ? nullptr : "a tier's count is not its escapes";
}

const char* open_entropy(const Coded& coded, Exponents* exponents, DecodeScratch* scratch) {
  const unsigned bits = coded.dtype().exponent_bits + coded.tag.variant;
  exponents->entropy = &scratch->entropy;
  exponents->base = load<uint16_t>(coded.params);
  exponents->k = coded.tag.variant;
  exponents->num_escapes = load<uint16_t>(coded.params + 2);
  exponents->escape_buffer = scratch->escapes;
  if (exponents->base > (bits < 8 ? 0 : (1u << bits) - 255)) return "the base leaves no room for all symbols";
  size_t consumed = 0;
  if (!scratch->entropy.open(coded.kind_streams(), coded.left(), coded.n, &consumed)) return "invalid entropy stream";
  exponents->escapes = coded.kind_streams() + consumed;
  const size_t nbytes = field_nbytes(exponents->num_escapes, bits);
  const char* wrong = check_padding(coded, coded.rest.streams_nbytes() + consumed + nbytes);
  if (wrong != nullptr) return wrong;
  return filler_is_zero(exponents->escapes, exponents->num_escapes, bits) ? nullptr : kFiller;
}

const char* decode_entropy(Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  Exponents exponents;
  const char* wrong = open_entropy(coded, &exponents, scratch);
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
  if (exponents.used != exponents.num_escapes) return "num_escapes is not the number of escapes";
  return decoder->finish() ? nullptr : "an entropy stream does not end where it should";
}

const char* decode_coded(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n,
                         const BlockOutput& output, DecodeScratch* scratch, bool inner);

const char* decode_stored(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n,
                          const BlockOutput& output) {
  const size_t nbytes = n * spec.dtype->word_nbytes;
  for (size_t i = nbytes; i < length; ++i) {
    if (block[i] != 0) return "padding is not zero";
  }
  if (output.stream) {
    word_kernels().stream_copy(output.words, block, nbytes);
  } else {
    std::memcpy(output.words, block, nbytes);
  }
  return nullptr;
}

const char* decode_any(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n, const BlockOutput& output,
                       DecodeScratch* scratch, bool inner) {
  const size_t stored = stored_nbytes(*spec.dtype, n);
  if (length > stored) return "a block longer than its content";
  if (length == stored) return decode_stored(spec, block, length, n, output);
  return decode_coded(spec, block, length, n, output, scratch, inner);
}

struct ZeroGroups {
  size_t num_words, inner_nbytes, group, num_groups, mask_nbytes;
};

const char* open_zero_groups(const Coded& coded, ZeroGroups* zeros) {
  zeros->num_words = load<uint32_t>(coded.params);
  zeros->inner_nbytes = size_t{load<uint16_t>(coded.params + 4)} * kBlockAlign;
  zeros->group = size_t{1} << coded.tag.variant;
  zeros->num_groups = ceil_div(coded.n, zeros->group);
  zeros->mask_nbytes = field_nbytes(zeros->num_groups, 1);
  if (zeros->num_words < 1 || zeros->num_words > coded.n) return "num_words out of range";
  if (zeros->inner_nbytes == 0) return "an empty inner block";
  const char* wrong = check_padding(coded, zeros->inner_nbytes + zeros->mask_nbytes);
  if (wrong != nullptr) return wrong;
  return filler_is_zero(coded.block + zeros->inner_nbytes, zeros->num_groups, 1) ? nullptr : kFiller;
}

const char* decode_zero_groups(const Coded& coded, const BlockOutput& output, DecodeScratch* scratch) {
  ZeroGroups zeros;
  const char* wrong = open_zero_groups(coded, &zeros);
  if (wrong != nullptr) return wrong;
  plane_kernels().unpack_field(1, coded.block + zeros.inner_nbytes, zeros.num_groups, scratch->flags);
  size_t kept = 0;
  for (size_t g = 0; g < zeros.num_groups; ++g) kept += scratch->flags[g];
  kept *= zeros.group;
  if (scratch->flags[zeros.num_groups - 1] != 0) kept -= zeros.num_groups * zeros.group - coded.n;
  if (kept != zeros.num_words) return "num_words is not the number of words in groups that are kept";
  const BlockOutput inner = {scratch->inner, false, nullptr, 0};
  wrong = decode_any(coded.spec, coded.block, zeros.inner_nbytes, zeros.num_words, inner, scratch, true);
  if (wrong != nullptr) return wrong;
  const size_t width = coded.dtype().word_nbytes;
  const uint8_t* next = scratch->inner;
  for (size_t g = 0; g < zeros.num_groups; ++g) {
    const size_t first = g * zeros.group, count = coded.n - first < zeros.group ? coded.n - first : zeros.group;
    if (scratch->flags[g] != 0) {
      std::memcpy(output.words + first * width, next, count * width);
      next += count * width;
    } else {
      std::memset(output.words + first * width, 0, count * width);
    }
  }
  return nullptr;
}

const char* decode_coded(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n,
                         const BlockOutput& output, DecodeScratch* scratch, bool inner) {
  Coded coded{spec, block, n, {}, nullptr, 0, 0, {}};
  const char* wrong = open_coded(length, scratch, &coded);
  if (wrong != nullptr) return wrong;
  switch (coded.tag.kind) {
    case kConstant:
      wrong = check_padding(coded, 0);
      return wrong != nullptr ? wrong : decode_constant(coded, length, output);
    case kEnec:
      return decode_enec(coded, output, scratch);
    case kCascade:
      return decode_cascade(coded, output, scratch);
    case kEntropy:
      return decode_entropy(coded, output, scratch);
    case kPlain:
      return decode_plain(coded, output);
    default:
      return inner ? "zero groups within zero groups" : decode_zero_groups(coded, output, scratch);
  }
}

}  // namespace

const char* decode_block(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n,
                         const BlockOutput& output, DecodeScratch* scratch) {
  return decode_any(spec, block, length, n, output, scratch, false);
}

void decode_symbols_ahead(const BlockSpec& spec, const BlockBytes& a, const BlockBytes& b, DecodeScratch* scratch) {
  const BlockBytes* const blocks[] = {&a, &b};
  for (size_t i = 0; i < 2; ++i) {
    const BlockBytes& block = *blocks[i];
    if (block.length >= stored_nbytes(*spec.dtype, block.n)) return;
    const Tag tag = Tag::from(block.bytes[block.length - 1]);
    if (tag.kind != kEntropy) return;
    Coded coded{spec, block.bytes, block.n, {}, nullptr, 0, 0, {}};
    size_t consumed = 0;
    if (open_coded(block.length, scratch, &coded) != nullptr ||
        !scratch->ahead[i].entropy.open(coded.kind_streams(), coded.left(), block.n, &consumed)) {
      return;
    }
  }
  SymbolsAhead &first = scratch->ahead[0], &second = scratch->ahead[1];
  const size_t together = (a.n < b.n ? a.n : b.n) / kRansStates * kRansStates;
  EntropyDecoder::decode_two(&first.entropy, first.symbols, &second.entropy, second.symbols, together);
  first.entropy.decode(first.symbols + together, a.n - together);
  second.entropy.decode(second.symbols + together, b.n - together);
  first.block = a.bytes;
  second.block = b.bytes;
}

const char* inspect_block(const BlockSpec& spec, const uint8_t* block, size_t length, size_t n, BlockFacts* facts,
                          DecodeScratch* scratch) {
  *facts = BlockFacts{};
  const size_t stored = stored_nbytes(*spec.dtype, n);
  if (length > stored) return "a block longer than its content";
  if (length == stored) {
    facts->rest_nbytes = n * spec.dtype->word_nbytes;
    return nullptr;
  }
  Coded coded{spec, block, n, {}, nullptr, 0, 0, {}};
  const char* wrong = open_coded(length, scratch, &coded);
  if (wrong != nullptr) return wrong;
  facts->kind = coded.tag.kind;
  facts->rest = coded.tag.rest;
  facts->variant = coded.tag.variant;
  facts->rest_nbytes = coded.has_rest() ? coded.rest.streams_nbytes() : 0;
  switch (coded.tag.kind) {
    case kEnec: {
      EnecParams params;
      uint32_t num_high = 0;
      return open_enec(coded, &params, &num_high, &facts->kind_nbytes);
    }
    case kCascade: {
      CascadeParams params;
      return open_cascade(coded, &params, &facts->kind_nbytes);
    }
    case kEntropy: {
      Exponents exponents;
      wrong = open_entropy(coded, &exponents, scratch);
      if (wrong != nullptr) return wrong;
      facts->kind_nbytes = static_cast<size_t>(exponents.escapes - coded.kind_streams()) +
                           field_nbytes(exponents.num_escapes, exponents.escape_bits(*spec.dtype));
      return nullptr;
    }
    case kZeroGroups: {
      ZeroGroups zeros;
      wrong = open_zero_groups(coded, &zeros);
      facts->kind_nbytes = zeros.inner_nbytes + zeros.mask_nbytes;
      return wrong;
    }
    default:
      return nullptr;
  }
}

}  // namespace tw
