#include <cstring>

#include "coders/rest.h"

namespace tw {

// What is wrong, by the name that the stream has for whoever reads it.
struct RestMessages {
  const char *too_long, *filler, *trimmed, *misfit;
};

namespace {

constexpr RestMessages kOfSignMantissa = {
    "expected streams of sign_mantissa that end within the block", "expected zeros in the filler bits of sign_mantissa",
    "expected no more bits to trim than sign_mantissa has", "expected slices of sign_mantissa that fit their bits"};
constexpr RestMessages kOfWords = {
    "expected streams of words that end within the block", "expected zeros in the filler bits of words",
    "expected no more bits to trim than words have", "expected slices of words that fit their bits"};

const RestMessages* messages_of(const RestLayout& layout) {
  return layout.sign_mantissa ? &kOfSignMantissa : &kOfWords;
}

}  // namespace

const char* RestField::read(uint8_t mode, const RestLayout& layout, const uint8_t* params) {
  *this = {layout.width, 0, false};
  if (mode == kVerbatim) return nullptr;
  const unsigned lead = params[0], below = params[1];
  per_run = below == kTrailPerRun;
  trail = per_run ? 0 : below;
  if (lead + trail > layout.width) return messages_of(layout)->trimmed;
  width = layout.width - lead - trail;
  return nullptr;
}

const char* RestDecoder::open(uint8_t mode, const RestLayout& layout, size_t n, const uint8_t* src, size_t available,
                              const uint8_t* params, RestDecodeScratch* scratch) {
  const unsigned width = layout.width;
  messages_ = messages_of(layout);
  field_ = src;
  scratch_ = scratch;
  n_ = n;
  nbytes_ = layout.nbytes;
  width_ = width;
  field_width_ = width;
  shift_ = 0;
  per_run_ = misfit_ = false;
  num_slices_ = 0;
  if (mode == kBytes) return open_bytes(src, available, params);
  RestField field;
  const char* const wrong = field.read(mode, layout, params);
  if (wrong != nullptr) return wrong;
  field_width_ = field.width;
  shift_ = field.trail;
  per_run_ = field.per_run;
  if (!per_run_) {
    streams_nbytes_ = field_nbytes(n, field_width_);
    if (streams_nbytes_ > available) return messages_->too_long;
    return filler_is_zero(src, n, field_width_) ? nullptr : messages_->filler;
  }
  const size_t num_runs = ceil_div(n, kRun);
  size_t offset = plane_nbytes(8, num_runs);
  if (offset > available) return messages_->too_long;
  if (!filler_is_zero(src, num_runs, 8)) return messages_->filler;
  std::memcpy(trails_, src, num_runs);
  for (size_t r = 0; r < num_runs; ++r) {
    if (trails_[r] > field_width_) return messages_->trimmed;
    offsets_[r] = static_cast<uint32_t>(offset);
    offset += field_nbytes(n - r * kRun < kRun ? n - r * kRun : kRun, field_width_ - trails_[r]);
  }
  streams_nbytes_ = offset;
  if (offset > available) return messages_->too_long;
  const size_t last = num_runs - 1;
  return filler_is_zero(src + offsets_[last], n - last * kRun, field_width_ - trails_[last]) ? nullptr
                                                                                             : messages_->filler;
}

const char* RestDecoder::open_bytes(const uint8_t* src, size_t available, const uint8_t* params) {
  num_slices_ = static_cast<unsigned>(rest_params_nbytes(kBytes, width_));
  size_t used = 0;
  for (unsigned s = 0; s < num_slices_; ++s) {
    const unsigned bits = slice_bits(width_, s);
    const size_t left = available - used;
    Slice& slice = slices_[s];
    slice = {params[s], static_cast<uint8_t>(bits), 0, src + used};
    if (slice.coding == kSliceVerbatim) {
      const size_t nbytes = field_nbytes(n_, bits);
      if (nbytes > left) return messages_->too_long;
      if (!filler_is_zero(slice.field, n_, bits)) return messages_->filler;
      used += nbytes;
    } else if (slice.coding == kSliceConstant) {
      if (left < plane_nbytes(8, 1)) return messages_->too_long;
      if (!filler_is_zero(slice.field, 1, 8)) return messages_->filler;
      slice.value = *slice.field;
      used += plane_nbytes(8, 1);
      if (slice.value >> bits != 0) return messages_->misfit;
    } else if (slice.coding == kSliceEntropy) {
      size_t consumed = 0;
      if (!scratch_->entropy[s].open(src + used, left, n_, &consumed))
        return "expected a valid entropy stream in a slice";
      used += consumed;
    } else {
      return "expected a coding of a slice of 0 to 2";
    }
  }
  streams_nbytes_ = used;
  return nullptr;
}

const uint8_t* RestDecoder::slice_bytes(unsigned s, size_t first, size_t count) {
  const Slice& slice = slices_[s];
  const WordKernels& kernels = word_kernels;
  uint8_t* const bytes = scratch_->bytes;
  if (slice.coding == kSliceConstant) {
    std::memset(bytes, slice.value, count);
  } else if (slice.coding == kSliceEntropy) {
    scratch_->entropy[s].decode(bytes, count);
    uint64_t runs[kSegment / kRun] = {};
    if (slice.bits < 8) kernels.or_runs(1, bytes, count, runs);
    for (const uint64_t run : runs) misfit_ |= run >> slice.bits != 0;
  } else if (slice.bits == 8) {
    return slice.field + first;
  } else {
    kernels.unpack_numbers(1, slice.bits, 0, slice.field, n_, first, count, bytes);
  }
  return bytes;
}

const char* RestDecoder::finish() const {
  if (misfit_) return messages_->misfit;
  for (unsigned s = 0; s < num_slices_; ++s) {
    if (slices_[s].coding == kSliceEntropy && !scratch_->entropy[s].finish()) {
      return "expected the entropy stream of a slice to end with its symbols";
    }
  }
  return nullptr;
}

const uint8_t* RestDecoder::segment(size_t first, size_t count) {
  const WordKernels& kernels = word_kernels;
  if (num_slices_ != 0) {
    std::memset(scratch_->segment, 0, count * nbytes_);
    for (unsigned s = 0; s < num_slices_; ++s) {
      kernels.or_bytes(nbytes_, slice_bytes(s, first, count), count, 8 * s, scratch_->segment);
    }
    return scratch_->segment;
  }
  if (!per_run_) {
    if (field_width_ == 8 * nbytes_) return field_ + first * nbytes_;
    kernels.unpack_numbers(nbytes_, field_width_, shift_, field_, n_, first, count, scratch_->segment);
    return scratch_->segment;
  }
  for (size_t i = 0; i < count; i += kRun) {
    const size_t run = (first + i) / kRun;
    const size_t in_run = count - i < kRun ? count - i : kRun;
    kernels.unpack_numbers(nbytes_, field_width_ - trails_[run], trails_[run], field_ + offsets_[run], in_run, 0,
                           in_run, scratch_->segment + i * nbytes_);
  }
  return scratch_->segment;
}

}  // namespace tw
