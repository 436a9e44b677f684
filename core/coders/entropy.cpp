#include "coders/entropy.h"

#include <cstring>

#include "coders/entropy_table.h"
#include "common/cpu.h"

namespace tw {
namespace {

constexpr size_t kStatesNbytes = kRansStates * sizeof(uint32_t);

// Where the states stand: after the count of words and the table.
size_t states_offset(size_t table_nbytes) { return ceil_to(sizeof(uint32_t) + table_nbytes, kStreamAlign); }
size_t stream_nbytes(size_t table_nbytes, size_t num_words) {
  return ceil_to(states_offset(table_nbytes) + kStatesNbytes + num_words * sizeof(uint16_t), kStreamAlign);
}

bool all_zero(const uint8_t* from, const uint8_t* to) {
  while (from < to && *from == 0) ++from;
  return from >= to;
}

RansCode rans_code(uint32_t frequency, uint32_t start) {
  const uint32_t reciprocal = frequency == 1 ? UINT32_MAX : static_cast<uint32_t>((uint64_t{1} << 32) / frequency);
  return {reciprocal, static_cast<uint16_t>(frequency), static_cast<uint16_t>(start)};
}

}  // namespace

extern const RansKernels kRansScalar, kRansAvx2, kRansAvx2Loads, kRansAvx512, kRansNeon;

const RansKernels& rans_kernels = cpu_gathers_fast() ? pick<kRansScalar, kRansAvx2, kRansAvx512, kRansNeon>()
                                                     : pick<kRansScalar, kRansAvx2Loads, kRansAvx512, kRansNeon>();

size_t entropy_estimate(const uint32_t histogram[256], size_t n) {
  EntropyTable table;
  const EntropyCost cost = entropy_choose(histogram, n, &table);
  // The final states hold between 0 and 16 bits of payload each, 8 on average.
  const uint64_t bits = cost.payload >> kEntropyFraction, held = 8 * kRansStates;
  const size_t num_words = bits <= held ? 0 : static_cast<size_t>(ceil_div(bits - held, 16));
  return stream_nbytes(cost.table_nbytes, num_words);
}

size_t entropy_encode(const uint8_t* symbols, size_t n, const uint32_t histogram[256], uint8_t* dst, size_t capacity,
                      EntropyScratch* scratch, const RansKernels& kernels) {
  EntropyTable table;
  entropy_choose(histogram, n, &table);
  RansCode codes[256];
  uint32_t start = 0;
  for (unsigned s = table.first; s <= table.last; ++s) {
    if (table.frequencies[s] == 0) continue;
    codes[s] = rans_code(table.frequencies[s], start);
    start += table.frequencies[s];
  }
  uint32_t states[kRansStates];
  for (uint32_t& x : states) x = kRansLow;
  uint16_t* const end = scratch->words + kMaxEntropySymbols;
  uint16_t* next = end;  // backwards, as the decoder reads forwards
  const size_t num_groups = n / kRansStates;
  for (size_t i = n; i-- > num_groups * kRansStates;) {
    rans_encode_symbol(codes[symbols[i]], &states[i % kRansStates], &next);
  }
  next = kernels.encode(codes, symbols, num_groups, states, next);
  uint8_t written[kMaxTableNbytes];
  const size_t table_nbytes = entropy_write_table(table, written);
  const uint32_t num_words = static_cast<uint32_t>(end - next);
  const size_t at_states = states_offset(table_nbytes), nbytes = stream_nbytes(table_nbytes, num_words);
  if (nbytes > capacity) return 0;
  store(dst, num_words);
  const size_t table_end = sizeof num_words + table_nbytes;
  std::memcpy(dst + sizeof num_words, written, table_nbytes);
  std::memset(dst + table_end, 0, at_states - table_end);
  std::memcpy(dst + at_states, states, kStatesNbytes);
  const size_t words_end = at_states + kStatesNbytes + num_words * sizeof(uint16_t);
  std::memcpy(dst + at_states + kStatesNbytes, next, num_words * sizeof(uint16_t));
  std::memset(dst + words_end, 0, nbytes - words_end);
  return nbytes;
}

bool EntropyDecoder::open(const uint8_t* src, size_t available, size_t n, size_t* consumed,
                          const RansKernels& kernels) {
  kernels_ = &kernels;
  if (available < sizeof(uint32_t)) return false;
  const size_t num_words = load<uint32_t>(src);
  EntropyTable table;
  const size_t table_nbytes = entropy_read_table(src + sizeof(uint32_t), available - sizeof(uint32_t), &table);
  if (table_nbytes == 0 || num_words > n) return false;
  const size_t at_states = states_offset(table_nbytes), nbytes = stream_nbytes(table_nbytes, num_words);
  if (nbytes > available) return false;
  const uint8_t* const words = src + at_states + kStatesNbytes;
  const uint8_t* const words_end = words + num_words * sizeof(uint16_t);
  if (!all_zero(src + sizeof(uint32_t) + table_nbytes, src + at_states) || !all_zero(words_end, src + nbytes))
    return false;
  std::memcpy(states_, src + at_states, kStatesNbytes);
  for (uint32_t x : states_) {
    if (x < kRansLow) return false;
  }
  uint32_t* slot = table_;
  for (uint32_t s = table.first; s <= table.last; ++s) {
    const uint32_t frequency = table.frequencies[s];
    const uint32_t entry = frequency << 20 | s;
    for (uint32_t i = 0; i < frequency; ++i) slot[i] = entry | i << 8;
    slot += frequency;
  }
  next_ = words;
  end_ = words_end;
  *consumed = nbytes;
  return true;
}

void EntropyDecoder::decode(uint8_t* out, size_t count) {
  const size_t num_groups = count / kRansStates, rest = count % kRansStates;
  next_ = kernels_->decode(table_, states_, next_, end_, num_groups, out);
  out += num_groups * kRansStates;
  if (next_ > end_) {
    std::memset(out, 0, rest);
    return;
  }
  for (size_t i = 0; i < rest; ++i) out[i] = rans_decode_symbol(table_, &states_[i], &next_);
}

void EntropyDecoder::decode_two(EntropyDecoder* a, uint8_t* a_out, EntropyDecoder* b, uint8_t* b_out, size_t count) {
  size_t done = 0;
  if (a->kernels_->decode_two != nullptr) {
    RansStream first = {a->table_, a->states_, a->next_, a->end_, a_out};
    RansStream second = {b->table_, b->states_, b->next_, b->end_, b_out};
    done = a->kernels_->decode_two(&first, &second, count / kRansStates) * kRansStates;
    a->next_ = first.next;
    b->next_ = second.next;
  }
  a->decode(a_out + done, count - done);
  b->decode(b_out + done, count - done);
}

bool EntropyDecoder::finish() const {
  for (uint32_t x : states_) {
    if (x != kRansLow) return false;
  }
  return next_ == end_;
}

}  // namespace tw
