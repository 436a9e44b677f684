#include <cstring>

#include "coders/rest.h"

namespace tw {
namespace {

constexpr const char* kTooLong = "the rest's streams exceed the block";
constexpr const char* kFiller = "filler bits of the rest are not zero";

}  // namespace

size_t RestDecoder::params_nbytes(uint8_t mode, unsigned width) {
  return mode == kVerbatim ? 0 : mode == kTrimmed ? 2 : ceil_div(width, 8);
}

const char* RestDecoder::open(uint8_t mode, unsigned nbytes, unsigned width, size_t n, const uint8_t* src,
                              size_t available, const uint8_t* params, RestDecodeScratch* scratch) {
  field_ = src;
  scratch_ = scratch;
  n_ = n;
  nbytes_ = nbytes;
  width_ = width;
  field_width_ = width;
  shift_ = 0;
  per_run_ = whole_ = false;
  if (mode == kBytes) return open_bytes(src, available, params);
  if (mode == kTrimmed) {
    lead_ = params[0];
    shift_ = params[1];
    per_run_ = params[1] == kTrailPerRun;
    if (unsigned{lead_} + (per_run_ ? 0 : shift_) > width) return "trimmed bits exceed the width of the rest";
    field_width_ = width - lead_ - (per_run_ ? 0 : shift_);
  }
  if (!per_run_) {
    streams_nbytes_ = field_nbytes(n, field_width_);
    if (streams_nbytes_ > available) return kTooLong;
    return filler_is_zero(src, n, field_width_) ? nullptr : kFiller;
  }
  const size_t num_runs = ceil_div(n, kRun);
  if (num_runs > available) return kTooLong;
  std::memcpy(trails_, src, num_runs);
  size_t offset = num_runs;
  for (size_t r = 0; r < num_runs; ++r) {
    if (trails_[r] > field_width_) return "trimmed bits exceed the width of the rest";
    offsets_[r] = static_cast<uint32_t>(offset);
    offset += field_nbytes(n - r * kRun < kRun ? n - r * kRun : kRun, field_width_ - trails_[r]);
  }
  streams_nbytes_ = offset;
  if (offset > available) return kTooLong;
  const size_t last = num_runs - 1;
  return filler_is_zero(src + offsets_[last], n - last * kRun, field_width_ - trails_[last]) ? nullptr : kFiller;
}

const char* RestDecoder::open_bytes(const uint8_t* src, size_t available, const uint8_t* params) {
  whole_ = true;
  const WordKernels& kernels = word_kernels();
  std::memset(scratch_->numbers, 0, n_ * nbytes_);
  size_t used = 0;
  for (unsigned s = 0; s < ceil_div(width_, 8); ++s) {
    const unsigned bits = width_ - 8 * s < 8 ? width_ - 8 * s : 8;
    const size_t left = available - used;
    const uint8_t* bytes = scratch_->bytes;
    if (params[s] == kSliceVerbatim) {
      const size_t nbytes = field_nbytes(n_, bits);
      if (nbytes > left) return kTooLong;
      if (!filler_is_zero(src + used, n_, bits)) return kFiller;
      plane_kernels().unpack_field(bits, src + used, n_, scratch_->bytes);
      used += nbytes;
    } else if (params[s] == kSliceConstant) {
      if (left == 0) return kTooLong;
      std::memset(scratch_->bytes, src[used++], n_);
    } else if (params[s] == kSliceEntropy) {
      size_t consumed = 0;
      if (!scratch_->entropy.open(src + used, left, n_, &consumed)) return "invalid entropy stream";
      scratch_->entropy.decode(scratch_->bytes, n_);
      if (!scratch_->entropy.finish()) return "entropy stream does not end where it should";
      used += consumed;
    } else {
      return "unknown coding of a slice";
    }
    if (bits < 8) {
      uint64_t all = 0;
      kernels.or_runs(1, bytes, n_ < kRun ? n_ : kRun, &all);
      for (size_t i = kRun; i < n_; i += kRun) {
        uint64_t run = 0;
        kernels.or_runs(1, bytes + i, n_ - i < kRun ? n_ - i : kRun, &run);
        all |= run;
      }
      if (all >> bits != 0) return "a slice's value does not fit its bits";
    }
    kernels.or_bytes(nbytes_, bytes, n_, 8 * s, scratch_->numbers);
  }
  streams_nbytes_ = used;
  return nullptr;
}

const uint8_t* RestDecoder::segment(size_t first, size_t count) {
  if (whole_) return scratch_->numbers + first * nbytes_;
  const WordKernels& kernels = word_kernels();
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
