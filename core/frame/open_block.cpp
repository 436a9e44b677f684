#include "frame/open_block.h"

#include "transforms/steps.h"

namespace tw {
namespace {

constexpr const char* kTooLong = "expected streams that end within the block";
constexpr const char* kTooMuchPadding = "expected less padding than a block is aligned to";
constexpr const char* kBadMask = "expected a mask of the words of the block";
constexpr const char* kFiller = "expected zeros in filler bits";

// What this version does not know, and a later one may.
bool unknown(const Tag& tag, uint8_t extended) {
  if (tag.kind == kStored || tag.rest > kBytes) return true;
  return tag.kind == kExtended && (extended < kExtendedCascade || extended > kScaled);
}

// Which rest codings a kind may have in a profile (docs/format.md, "Block").
bool allowed(const BlockSpec& spec, const Tag& tag, uint8_t extended) {
  if (is_relative_kind(extended)) {
    return spec.relative && tag.rest == kVerbatim && (tag.variant == 0 || has_classes(spec.dtype));
  }
  const uint8_t profile = spec.profile;
  const bool compact = profile == kProfileCompact, resident = profile == kProfileResident;
  const bool split = spec.dtype.exponent_bits != 0;
  const bool any_rest = tag.rest == kVerbatim || tag.rest == kTrimmed || (tag.rest == kBytes && compact);
  const unsigned most = compact ? kMaskGaps : kMaxMaskLevel;  // variant of a mask
  switch (tag.kind) {
    case kConstant:
      return tag.rest == kVerbatim && tag.variant == 0;
    case kEnec:
      return !resident && split && any_rest && tag.variant >= 2 && tag.variant <= 5;
    case kCascade:
      return split && any_rest && (profile == kProfileFast || compact);
    case kEntropy:
      return split && any_rest && compact && tag.variant <= max_extra_bits(spec.dtype);
    case kPlain:
      return !resident && any_rest && tag.rest != kVerbatim && tag.variant == 0;
    case kZeros:
      return tag.rest == kVerbatim && tag.variant <= most && (profile == kProfileFast || compact);
    default:
      if (extended == kParts) return compact && tag.rest == kVerbatim && tag.variant == 0;
      if (extended == kScaled)
        return compact && spec.dtype == kScaledLayout && tag.rest == kVerbatim && tag.variant < 2;
      if (extended == kModal) return split && any_rest && tag.variant <= most && (profile == kProfileFast || compact);
      return split && (tag.rest == kVerbatim || (any_rest && !resident)) && profile != kProfileEnec;
  }
}

}  // namespace

Fault read_descriptor(const BlockSpec& spec, const uint8_t* end, size_t length, Descriptor* descriptor) {
  const Layout& dtype = spec.dtype;
  const Tag tag = Tag::from(end[-1]);
  const uint8_t extended = tag.kind == kExtended ? end[-1 - ptrdiff_t{kExtendedNbytes}] : 0;
  descriptor->tag = tag;
  descriptor->extended = extended;
  if (unknown(tag, extended))
    return Fault::unsupported("expected a kind and rest that this version knows: a newer version wrote this block");
  if (!allowed(spec, tag, extended)) return "expected a kind, rest and variant that the profile and the dtype allow";
  const size_t of_kind = kind_params_nbytes(tag.kind, extended, tag.variant, dtype) + kTagNbytes;
  const unsigned k = tag.kind == kEntropy ? tag.variant : 0;
  const bool split = tag.kind != kPlain;
  descriptor->rest_layout = split ? RestLayout{true, dtype.rest_nbytes(), dtype.rest_bits - k}
                                  : RestLayout{false, dtype.word_nbytes, 8u * dtype.word_nbytes};
  const size_t of_rest = descriptor->has_rest() ? rest_params_nbytes(tag.rest, descriptor->rest_layout.width) : 0;
  if (of_kind + of_rest > length) return "expected a descriptor no longer than the block";
  descriptor->params = end - of_kind;
  descriptor->rest_params = descriptor->params - of_rest;
  descriptor->available = length - of_kind - of_rest;
  return {};
}

Fault open_coded(size_t length, RestDecodeScratch* scratch, Coded* coded) {
  const Fault wrong = read_descriptor(coded->spec, coded->block + length, length, coded);
  if (wrong || !coded->has_rest()) return wrong;
  return coded->rest.open(coded->tag.rest, coded->rest_layout, coded->n, coded->block, coded->available,
                          coded->rest_params, scratch);
}

const char* check_streams(const Descriptor& descriptor, const BlockSpec& spec, size_t streams) {
  if (streams > descriptor.available) return kTooLong;
  return descriptor.available - streams >= spec.align ? kTooMuchPadding : nullptr;
}

const char* check_padding(const Coded& coded, size_t streams) {
  const char* const wrong = check_streams(coded, coded.spec, streams);
  if (wrong != nullptr) return wrong;
  for (size_t i = streams; i < coded.available; ++i) {
    if (coded.block[i] != 0) return "expected zeros in the padding";
  }
  return nullptr;
}

const char* open_parts(Coded* coded, Parts* parts) {
  parts->words = kMinBlockWords * size_t{load<uint16_t>(coded->params)};
  parts->count = parts->words == 0 ? 0 : ceil_div(coded->n, parts->words);
  if (parts->count < 2 || parts->count > kMaxParts) return "expected 2 to 16 parts of a block";
  const size_t lengths_nbytes = parts->count * sizeof(uint16_t);
  if (lengths_nbytes > coded->available) return "expected a descriptor no longer than the block";
  coded->available -= lengths_nbytes;
  parts->streams = 0;
  for (size_t i = 0; i < parts->count; ++i) {
    const unsigned length = load<uint16_t>(coded->block + coded->available + i * sizeof(uint16_t));
    const size_t left = coded->n - i * parts->words, nbytes = (length & ~kPartStored) * kBlockAlign;
    BlockBytes& part = parts->blocks[i];
    part = {coded->block + parts->streams, nbytes, left < parts->words ? left : parts->words,
            (length & kPartStored) != 0};
    if (nbytes == 0 && (part.stored || !coded->spec.relative)) return "expected parts with bytes";
    const char* const wrong = check_length(coded->spec.part(0), part);
    if (wrong != nullptr) return wrong;
    parts->streams += nbytes;
  }
  return parts->streams > coded->available ? kTooLong : nullptr;
}

const char* check_length(const BlockSpec& spec, const BlockBytes& block) {
  const size_t stored = stored_nbytes(spec, block.n);
  if (block.length > stored) return "expected a block no longer than its content";
  return block.stored && block.length != stored ? "expected a stored block as long as its content" : nullptr;
}

const char* read_enec(const Descriptor& descriptor, const Layout& dtype, size_t n, EnecParams* params,
                      uint32_t* num_high) {
  const uint8_t* const at = descriptor.params;
  *params = {at[0], static_cast<uint8_t>(at[1] >> 4), static_cast<uint8_t>(at[1] & 15), descriptor.tag.variant};
  *num_high = load<uint16_t>(at + 2);
  const bool sound = params->m >= 1 && params->m < params->nb && params->nb <= dtype.exponent_bits && *num_high <= n;
  return sound ? nullptr : "expected enec parameters with 1 <= m < nb <= E and num_high <= n";
}

const char* open_enec(const Coded& coded, EnecParams* params, uint32_t* num_high, size_t* nbytes) {
  const char* wrong = read_enec(coded, coded.dtype(), coded.n, params, num_high);
  if (wrong != nullptr) return wrong;
  *nbytes = enec_stream_nbytes(coded.n, *params, *num_high);
  wrong = check_padding(coded, coded.rest.streams_nbytes() + *nbytes);
  if (wrong != nullptr) return wrong;
  const size_t num_groups = ceil_div(coded.n, size_t{1} << params->log2_group);
  const uint8_t* low = coded.kind_streams();
  const uint8_t* mask = low + field_nbytes(coded.n, params->m);
  const uint8_t* high = mask + field_nbytes(num_groups, 1);
  const bool clean = filler_is_zero(low, coded.n, params->m) && filler_is_zero(mask, num_groups, 1) &&
                     filler_is_zero(high, *num_high, params->nb - params->m);
  return clean ? nullptr : kFiller;
}

const char* read_cascade(const Descriptor& descriptor, const Layout& dtype, size_t n, CascadeParams* params) {
  const uint8_t* const at = descriptor.params;
  const unsigned below = load<uint16_t>(at + 1);
  const unsigned shape = (descriptor.tag.kind == kExtended ? kExtendedShapes : 0) + descriptor.tag.variant;
  if (shape >= kNumTierShapes) return "expected a variant of cascade that has tiers";
  *params = CascadeParams{};
  params->shape = static_cast<uint8_t>(shape);
  params->lo = at[0];
  params->counts[0] = static_cast<uint32_t>(n);
  for (unsigned k = 1; k < kMaxTiers; ++k) params->below[k] = static_cast<uint8_t>(below >> (4 * k - 4) & 15);
  for (unsigned k = 1; k <= kMaxTiers; ++k) params->counts[k] = load<uint16_t>(at + 1 + 2 * k);
  for (unsigned k = 1; k < kMaxTiers; ++k) {
    const unsigned width = kTierWidths[params->shape][k];
    if (params->below[k] > (1u << width) - 1) return "expected a_k of at most the digits of its tier";
    if (width == 0 && params->counts[k + 1] != 0) return "expected count 0 for a tier that the variant lacks";
  }
  if (!cascade_in_range(*params, dtype.exponent_bits)) return "expected tiers that name exponents of the dtype alone";
  for (unsigned k = 1; k <= kMaxTiers; ++k) {
    if (params->counts[k] > params->counts[k - 1]) return "expected tiers no larger than the one before";
  }
  return nullptr;
}

const char* open_cascade(const Coded& coded, CascadeParams* params, size_t* nbytes) {
  const char* const wrong = read_cascade(coded, coded.dtype(), coded.n, params);
  if (wrong != nullptr) return wrong;
  *nbytes = cascade_nbytes(*params);
  return check_padding(coded, coded.rest.streams_nbytes() + *nbytes);
}

const char* open_entropy(const Coded& coded, EntropyDecoder* decoder, EntropyParams* params, size_t* nbytes) {
  const unsigned bits = coded.dtype().exponent_bits + coded.tag.variant;
  params->base = load<uint16_t>(coded.params);
  params->k = coded.tag.variant;
  params->num_escapes = load<uint16_t>(coded.params + 2);
  if (params->base > (bits < 8 ? 0 : (1u << bits) - 255)) return "expected a base that leaves room for all symbols";
  size_t consumed = 0;
  if (!decoder->open(coded.kind_streams(), coded.left(), coded.n, &consumed))
    return "expected a valid entropy stream of exponents";
  params->escapes = coded.kind_streams() + consumed;
  *nbytes = consumed + field_nbytes(params->num_escapes, bits);
  const char* wrong = check_padding(coded, coded.rest.streams_nbytes() + *nbytes);
  if (wrong != nullptr) return wrong;
  return filler_is_zero(params->escapes, params->num_escapes, bits) ? nullptr : kFiller;
}

const char* open_zeros(const Coded& coded, Zeros* zeros) {
  zeros->num_kept = load<uint32_t>(coded.params);
  zeros->inner_nbytes = size_t{load<uint16_t>(coded.params + 4)} * kBlockAlign;
  zeros->signs = coded.params[6] & kSignsMask;
  zeros->inner_stored = (coded.params[6] & kInnerStored) != 0;
  if (zeros->num_kept > coded.n) return "expected num_kept of at most the words of the block";
  if ((zeros->num_kept == 0) != (zeros->inner_nbytes == 0)) return "expected an inner block if words are kept";
  if (coded.params[6] > (kSignsMask | kInnerStored) || (zeros->inner_stored && zeros->num_kept == 0))
    return "expected flags that kind zeros has";
  if (zeros->signs > (coded.dtype().split == Split::kFloat ? kSignsMixed : kSignsPlus))
    return "expected signs of 0 to 2, and 0 where words have none";
  return zeros->inner_nbytes > coded.available ? kTooLong : nullptr;
}

const char* open_zero_masks(const Coded& coded, const Zeros& zeros, size_t* nbytes, MaskedScratch* scratch) {
  const uint8_t* streams = coded.block + zeros.inner_nbytes;
  const size_t left = coded.available - zeros.inner_nbytes;
  if (!read_mask(coded.tag.variant, streams, left, coded.n, scratch->mask, nbytes, &scratch->coding)) return kBadMask;
  if (count_mask(scratch->mask, coded.n) != zeros.num_kept)
    return "expected num_kept to be the number of words in the mask";
  if (zeros.signs == kSignsMixed) {
    size_t signs_nbytes = 0;
    if (!read_outside(scratch->mask, coded.n, streams + *nbytes, left - *nbytes, scratch->minus, &signs_nbytes,
                      &scratch->coding)) {
      return "expected a sign for each zero, then zeros";
    }
    *nbytes += signs_nbytes;
  }
  return check_padding(coded, zeros.inner_nbytes + *nbytes);
}

const char* open_scaled(const Coded& coded, Scaled* scaled) {
  const unsigned length = load<uint16_t>(coded.params + 8);
  scaled->codes = static_cast<Codes>(coded.tag.variant);
  scaled->width = load<uint32_t>(coded.params);
  scaled->num_scales = load<uint32_t>(coded.params + 4);
  scaled->inner = {coded.block, (length & ~kPartStored) * kBlockAlign, coded.n, (length & kPartStored) != 0};
  if (scaled->width == 0 || scaled->num_scales == 0 || scaled->num_scales > ceil_div(coded.n, scaled->width))
    return "expected a width of at least 1, and 1 to ceil(n / width) scales";
  if (scaled->inner.length == 0) return "expected an inner block of codes";
  const char* const wrong = check_length(coded.spec.inner(kLayoutsOfCodes[coded.tag.variant]), scaled->inner);
  if (wrong != nullptr) return wrong;
  scaled->scales = coded.block + scaled->inner.length;
  return scaled->inner.length > coded.available ? kTooLong : nullptr;
}

const char* open_scales(const Coded& coded, const Scaled& scaled) {
  const char* const wrong = check_padding(coded, scaled.inner.length + sizeof(float) * scaled.num_scales);
  if (wrong != nullptr) return wrong;
  for (size_t i = 0; i < scaled.num_scales; ++i) {
    const uint32_t exponent = load<uint32_t>(scaled.scales + sizeof(float) * i) >> 23;  // and the sign above it
    if (exponent < kLeastScale || exponent > kMostScale) return "expected positive scales from 2^-111 to below 2^113";
  }
  return nullptr;
}

const char* open_modal(const Coded& coded, Modal* modal, size_t* nbytes, MaskedScratch* scratch) {
  const unsigned bits = coded.dtype().exponent_bits;
  modal->mode = coded.params[0];
  modal->num_others = load<uint32_t>(coded.params + 1);
  if (modal->mode >> bits != 0) return "expected a mode that the dtype has";
  size_t mask_nbytes = 0;
  if (!read_mask(coded.tag.variant, coded.kind_streams(), coded.left(), coded.n, scratch->mask, &mask_nbytes,
                 &scratch->coding)) {
    return kBadMask;
  }
  if (count_mask(scratch->mask, coded.n) != modal->num_others)
    return "expected num_others to be the number of words in the mask";
  modal->others = coded.kind_streams() + mask_nbytes;
  *nbytes = mask_nbytes + field_nbytes(modal->num_others, bits);
  const char* wrong = check_padding(coded, coded.rest.streams_nbytes() + *nbytes);
  if (wrong != nullptr) return wrong;
  return filler_is_zero(modal->others, modal->num_others, bits) ? nullptr : kFiller;
}

}  // namespace tw
