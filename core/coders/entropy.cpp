#include "coders/entropy.h"

#include <cstring>

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

// The final states hold between 0 and 16 bits of payload each, 8 on average.
size_t estimate(size_t tables_nbytes, uint64_t payload) {
  const uint64_t bits = payload >> kEntropyFraction, held = 8 * kRansStates;
  const size_t num_words = bits <= held ? 0 : static_cast<size_t>(ceil_div(bits - held, 16));
  return stream_nbytes(tables_nbytes, num_words);
}

}  // namespace

extern const RansKernels kRansScalar, kRansAvx2, kRansAvx2Loads, kRansAvx512;

const RansKernels& rans_kernels =
    cpu_gathers_fast() ? pick<kRansScalar, kRansAvx2, kRansAvx512>() : pick<kRansScalar, kRansAvx2Loads, kRansAvx512>();

size_t entropy_estimate(const uint32_t histogram[256], size_t n) {
  EntropyTable table;
  const EntropyCost cost = entropy_choose(histogram, n, &table);
  return estimate(cost.table_nbytes, cost.payload);
}

namespace {

// The part of a joint histogram that is a class's. An empty one gets a symbol, for a table has to have some.
void histogram_of(const uint32_t joint[256], unsigned cls, unsigned shift, uint32_t histogram[256]) {
  std::memset(histogram, 0, 256 * sizeof *histogram);
  const size_t size = size_t{1} << shift;
  uint32_t any = 0;
  for (size_t s = 0; s < size; ++s) any |= histogram[s] = joint[cls * size + s];
  if (any == 0) histogram[0] = 1;
}

size_t sum_of(const uint32_t histogram[256]) {
  size_t sum = 0;
  for (unsigned s = 0; s < 256; ++s) sum += histogram[s];
  return sum;
}

// The stream of symbols whose codes and tables are given.
size_t encode_stream(const uint8_t* symbols, size_t n, const RansCode codes[256], const uint8_t* tables,
                     size_t tables_nbytes, uint8_t* dst, size_t capacity, EntropyScratch* scratch,
                     const RansKernels& kernels) {
  uint32_t states[kRansStates];
  for (uint32_t& x : states) x = kRansLow;
  uint16_t* const end = scratch->words + kMaxEntropySymbols;
  uint16_t* next = end;  // backwards, as the decoder reads forwards
  const size_t num_groups = n / kRansStates;
  for (size_t i = n; i-- > num_groups * kRansStates;) {
    rans_encode_symbol(codes[symbols[i]], &states[i % kRansStates], &next);
  }
  next = kernels.encode(codes, symbols, num_groups, states, next);
  const uint32_t num_words = static_cast<uint32_t>(end - next);
  const size_t at_states = states_offset(tables_nbytes), nbytes = stream_nbytes(tables_nbytes, num_words);
  if (nbytes > capacity) return 0;
  store(dst, num_words);
  const size_t tables_end = sizeof num_words + tables_nbytes;
  std::memcpy(dst + sizeof num_words, tables, tables_nbytes);
  std::memset(dst + tables_end, 0, at_states - tables_end);
  std::memcpy(dst + at_states, states, kStatesNbytes);
  const size_t words_end = at_states + kStatesNbytes + num_words * sizeof(uint16_t);
  std::memcpy(dst + at_states + kStatesNbytes, next, num_words * sizeof(uint16_t));
  std::memset(dst + words_end, 0, nbytes - words_end);
  return nbytes;
}

void fill_slots(const EntropyTable& table, uint32_t* slot) {
  for (uint32_t s = table.first; s <= table.last; ++s) {
    const uint32_t frequency = table.frequencies[s];
    const uint32_t entry = frequency << 20 | s;
    for (uint32_t i = 0; i < frequency; ++i) slot[i] = entry | i << 8;
    slot += frequency;
  }
}

// The codes of symbols 0 to limit - 1.
void fill_codes(const EntropyTable& table, unsigned limit, RansCode* codes) {
  uint32_t start = 0;
  for (unsigned s = table.first; s <= table.last && s < limit; ++s) {
    if (table.frequencies[s] == 0) continue;
    codes[s] = rans_code(table.frequencies[s], start);
    start += table.frequencies[s];
  }
}

}  // namespace

size_t entropy_encode(const uint8_t* symbols, size_t n, const uint32_t histogram[256], uint8_t* dst, size_t capacity,
                      EntropyScratch* scratch, const RansKernels& kernels) {
  EntropyTable table;
  entropy_choose(histogram, n, &table);
  RansCode codes[256];
  fill_codes(table, 256, codes);
  uint8_t written[kMaxTableNbytes];
  const size_t table_nbytes = entropy_write_table(table, written);
  return encode_stream(symbols, n, codes, written, table_nbytes, dst, capacity, scratch, kernels);
}

size_t entropy_choose_classes(const uint32_t histogram[256], unsigned num_classes, unsigned shift,
                              EntropyTables* tables) {
  tables->num_classes = num_classes;
  tables->shift = shift;
  uint64_t payload = 0;
  size_t tables_nbytes = 0;
  for (unsigned c = 0; c < num_classes; ++c) {
    uint32_t of_class[256];
    histogram_of(histogram, c, shift, of_class);
    const EntropyCost cost = entropy_choose(of_class, sum_of(of_class), &tables->of_classes[c]);
    payload += cost.payload;
    tables_nbytes += cost.table_nbytes;
  }
  return estimate(tables_nbytes, payload);
}

size_t entropy_encode_classes(const uint8_t* joint, size_t n, const EntropyTables& tables, uint8_t* dst,
                              size_t capacity, EntropyScratch* scratch, const RansKernels& kernels) {
  RansCode codes[256];
  uint8_t written[kMaxEntropyTables * kMaxTableNbytes];
  size_t tables_nbytes = 0;
  for (unsigned c = 0; c < tables.num_classes; ++c) {
    fill_codes(tables.of_classes[c], 1u << tables.shift, codes + (c << tables.shift));
    tables_nbytes += entropy_write_table(tables.of_classes[c], written + tables_nbytes);
  }
  return encode_stream(joint, n, codes, written, tables_nbytes, dst, capacity, scratch, kernels);
}

bool EntropyStream::open(const uint8_t* src, size_t available, size_t n, size_t tables_nbytes, size_t* consumed,
                         const RansKernels& kernels) {
  kernels_ = &kernels;
  const size_t num_words = load<uint32_t>(src);
  if (num_words > n) return false;
  const size_t at_states = states_offset(tables_nbytes), nbytes = stream_nbytes(tables_nbytes, num_words);
  if (nbytes > available) return false;
  next_ = src + at_states + kStatesNbytes;
  end_ = next_ + num_words * sizeof(uint16_t);
  if (!all_zero(src + sizeof(uint32_t) + tables_nbytes, src + at_states) || !all_zero(end_, src + nbytes)) return false;
  std::memcpy(states_, src + at_states, kStatesNbytes);
  for (const uint32_t x : states_) {
    if (x < kRansLow) return false;
  }
  *consumed = nbytes;
  return true;
}

void EntropyStream::decode(const uint32_t* tables, const uint8_t* classes, uint8_t* out, size_t count) {
  const size_t num_groups = count / kRansStates, whole = num_groups * kRansStates;
  RansStream groups = stream(tables, classes, out);
  kernels_->decode(&groups, num_groups);
  next_ = groups.next;
  if (next_ > end_) {
    std::memset(out + whole, 0, count - whole);
    return;
  }
  for (size_t i = whole; i < count; ++i) {
    const uint32_t* const table = tables + (classes == nullptr ? 0 : classes[i] * kRansTotal);
    out[i] = rans_decode_symbol(table, &states_[i - whole], &next_);
  }
}

size_t EntropyStream::decode_two(EntropyStream* a, RansStream a_stream, EntropyStream* b, RansStream b_stream,
                                 size_t count) {
  if (a->kernels_->decode_two == nullptr) return 0;
  const size_t num_groups = a->kernels_->decode_two(&a_stream, &b_stream, count / kRansStates);
  a->next_ = a_stream.next;
  b->next_ = b_stream.next;
  return num_groups * kRansStates;
}

bool EntropyStream::finish() const {
  uint32_t different = 0;
  for (const uint32_t x : states_) different |= x ^ kRansLow;
  return different == 0 && next_ == end_;
}

bool EntropyDecoder::open(const uint8_t* src, size_t available, size_t n, size_t* consumed,
                          const RansKernels& kernels) {
  if (available < sizeof(uint32_t)) return false;
  EntropyTable table;
  const size_t table_nbytes = entropy_read_table(src + sizeof(uint32_t), available - sizeof(uint32_t), &table);
  if (table_nbytes == 0 || !EntropyStream::open(src, available, n, table_nbytes, consumed, kernels)) return false;
  fill_slots(table, table_);
  return true;
}

void EntropyDecoder::decode(uint8_t* out, size_t count) { EntropyStream::decode(table_, nullptr, out, count); }

void EntropyDecoder::decode_two(EntropyDecoder* a, uint8_t* a_out, EntropyDecoder* b, uint8_t* b_out, size_t count) {
  const size_t done = EntropyStream::decode_two(a, a->stream(a->table_, nullptr, a_out), b,
                                                b->stream(b->table_, nullptr, b_out), count);
  a->decode(a_out + done, count - done);
  b->decode(b_out + done, count - done);
}

bool EntropyClassDecoder::open(const uint8_t* src, size_t available, size_t n, unsigned num_classes, size_t* consumed,
                               const RansKernels& kernels) {
  if (available < sizeof(uint32_t)) return false;
  size_t used = sizeof(uint32_t);
  for (unsigned c = 0; c < num_classes; ++c) {
    EntropyTable table;
    const size_t nbytes = entropy_read_table(src + used, available - used, &table);
    if (nbytes == 0) return false;
    used += nbytes;
    fill_slots(table, tables_ + c * kRansTotal);
  }
  return EntropyStream::open(src, available, n, used - sizeof(uint32_t), consumed, kernels);
}

void EntropyClassDecoder::decode(const uint8_t* classes, uint8_t* out, size_t count) {
  EntropyStream::decode(tables_, classes, out, count);
}

void EntropyClassDecoder::decode_two(EntropyClassDecoder* a, const uint8_t* a_classes, uint8_t* a_out,
                                     EntropyClassDecoder* b, const uint8_t* b_classes, uint8_t* b_out, size_t count) {
  const size_t done = EntropyStream::decode_two(a, a->stream(a->tables_, a_classes, a_out), b,
                                                b->stream(b->tables_, b_classes, b_out), count);
  a->decode(a_classes + done, a_out + done, count - done);
  b->decode(b_classes + done, b_out + done, count - done);
}

}  // namespace tw
