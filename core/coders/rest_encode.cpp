#include <cstring>

#include "coders/rest.h"
#include "transforms/histogram.h"

namespace tw {
namespace {

uint64_t number_at(const Rests& rests, size_t i) {
  uint64_t value = 0;
  std::memcpy(&value, rests.numbers + i * rests.nbytes, rests.nbytes);
  return value;
}

size_t run_count(size_t n, size_t run) { return n - run * kRun < kRun ? n - run * kRun : kRun; }

// Bits that the trimmed field of a run keeps.
unsigned kept(unsigned width, unsigned lead, unsigned trail) { return width - lead - trail; }

unsigned trail_of(uint64_t run_or, unsigned width, unsigned lead) { return trailing_zeros(run_or, width - lead); }

void plan_trimmed(const Rests& rests, const uint64_t* runs, RestPlan* best) {
  const size_t num_runs = ceil_div(rests.n, kRun);
  uint64_t all = 0, common = ~uint64_t{0};
  for (size_t r = 0; r < num_runs; ++r) all |= runs[r], common &= runs[r];
  const unsigned lead = rests.width - bit_length(all);
  const unsigned trail = trail_of(all, rests.width, lead);
  RestPlan plan{};
  plan.mode = kTrimmed;
  plan.lead = static_cast<uint8_t>(lead);
  plan.trail = static_cast<uint8_t>(trail);
  plan.params_nbytes = rest_params_nbytes(kTrimmed, rests.width);
  plan.streams_nbytes = field_nbytes(rests.n, kept(rests.width, lead, trail));
  if ((common >> trail & 1) == 0) {  // else no run has more zeros than all have
    size_t per_run = plane_nbytes(8, num_runs);
    for (size_t r = 0; r < num_runs; ++r) {
      per_run += field_nbytes(run_count(rests.n, r), kept(rests.width, lead, trail_of(runs[r], rests.width, lead)));
    }
    if (per_run < plan.streams_nbytes) {
      plan.trail = kTrailPerRun;
      plan.streams_nbytes = per_run;
    }
  }
  if (plan.streams_nbytes + plan.params_nbytes < best->streams_nbytes) *best = plan;
}

// Bits 8s to 8s + 7 of all rests.
const uint8_t* slice(const Rests& rests, unsigned s, RestScratch* scratch) {
  if (rests.nbytes == 1) return rests.numbers;
  word_kernels.pack_numbers(rests.nbytes, 8, 8 * s, rests.numbers, rests.n, scratch->bytes);
  return scratch->bytes;
}

void plan_bytes(const Rests& rests, RestPlan* best, RestScratch* scratch) {
  RestPlan plan{};
  plan.mode = kBytes;
  plan.params_nbytes = rest_params_nbytes(kBytes, rests.width);
  for (unsigned s = 0; s < plan.params_nbytes; ++s) {
    const unsigned bits = slice_bits(rests.width, s);
    uint32_t* histogram = scratch->histograms[s];
    byte_histogram(slice(rests, s, scratch), rests.n, histogram);
    size_t nbytes = field_nbytes(rests.n, bits);
    const size_t coded = entropy_estimate(histogram, rests.n);
    if (histogram[number_at(rests, 0) >> (8 * s) & 255] == rests.n) {
      plan.slices[s] = kSliceConstant;
      nbytes = plane_nbytes(8, 1);
    } else if (coded < nbytes) {
      plan.slices[s] = kSliceEntropy;
      nbytes = coded;
    }
    plan.streams_nbytes += nbytes;
  }
  if (plan.streams_nbytes + plan.params_nbytes < best->streams_nbytes + best->params_nbytes) *best = plan;
}

}  // namespace

RestPlan plan_verbatim(const Rests& rests) {
  RestPlan plan{};
  plan.mode = kVerbatim;
  plan.streams_nbytes = field_nbytes(rests.n, rests.width);
  return plan;
}

RestPlan plan_rests(const Rests& rests, const uint64_t* runs, bool allow_bytes, bool allow_verbatim,
                    RestScratch* scratch) {
  RestPlan best = plan_verbatim(rests);
  if (!allow_verbatim) best.streams_nbytes = SIZE_MAX;
  plan_trimmed(rests, runs, &best);
  if (allow_bytes) plan_bytes(rests, &best, scratch);
  return best;
}

bool encode_rests(const RestPlan& plan, const Rests& rests, const uint64_t* runs, uint8_t* dst, size_t capacity,
                  size_t* written, uint8_t* params, RestScratch* scratch) {
  const WordKernels& kernels = word_kernels;
  *written = plan.streams_nbytes;
  if (plan.mode != kBytes && plan.streams_nbytes > capacity) return false;
  if (plan.mode == kVerbatim) {
    kernels.pack_numbers(rests.nbytes, rests.width, 0, rests.numbers, rests.n, dst);
    return true;
  }
  if (plan.mode == kTrimmed) {
    params[0] = plan.lead;
    params[1] = plan.trail;
    if (plan.trail != kTrailPerRun) {
      kernels.pack_numbers(rests.nbytes, kept(rests.width, plan.lead, plan.trail), plan.trail, rests.numbers, rests.n,
                           dst);
      return true;
    }
    const size_t num_runs = ceil_div(rests.n, kRun);
    uint8_t* field = dst + plane_nbytes(8, num_runs);
    std::memset(dst + num_runs, 0, plane_nbytes(8, num_runs) - num_runs);
    for (size_t r = 0; r < num_runs; ++r) {
      const unsigned trail = trail_of(runs[r], rests.width, plan.lead);
      const unsigned width = kept(rests.width, plan.lead, trail);
      dst[r] = static_cast<uint8_t>(trail);
      kernels.pack_numbers(rests.nbytes, width, trail, rests.numbers + r * kRun * rests.nbytes, run_count(rests.n, r),
                           field);
      field += field_nbytes(run_count(rests.n, r), width);
    }
    return true;
  }
  uint8_t* out = dst;
  for (unsigned s = 0; s < plan.params_nbytes; ++s) {
    const unsigned bits = slice_bits(rests.width, s);
    const size_t left = capacity - static_cast<size_t>(out - dst);
    params[s] = plan.slices[s];
    if (plan.slices[s] == kSliceVerbatim) {
      const size_t nbytes = field_nbytes(rests.n, bits);
      if (nbytes > left) return false;
      kernels.pack_numbers(rests.nbytes, bits, 8 * s, rests.numbers, rests.n, out);
      out += nbytes;
    } else if (plan.slices[s] == kSliceConstant) {
      const size_t nbytes = plane_nbytes(8, 1);
      if (nbytes > left) return false;
      store(out, static_cast<uint32_t>(number_at(rests, 0) >> (8 * s) & 255));
      out += nbytes;
    } else {
      const size_t nbytes =
          entropy_encode(slice(rests, s, scratch), rests.n, scratch->histograms[s], out, left, &scratch->entropy);
      if (nbytes == 0) return false;
      out += nbytes;
    }
  }
  *written = static_cast<size_t>(out - dst);
  return true;
}

}  // namespace tw
