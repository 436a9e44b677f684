#include "coders/bit_string.h"

#include <cstring>

namespace tw {

uint64_t BitReader::last_bytes() const {
  const uint64_t byte = at_ / 8;
  uint64_t value = 0;
  if (byte < nbytes_) std::memcpy(&value, src_ + byte, nbytes_ - byte < 8 ? nbytes_ - byte : 8);
  return value;
}

bool BitReader::finish(size_t* nbytes) {
  const uint64_t end = bit_string_nbytes(at_);
  *nbytes = end;
  const unsigned filler = static_cast<unsigned>(8 * end - at_);
  return ok() && end <= nbytes_ && bits(filler) == 0;
}

void BitWriter::store_last() {
  if (size_ < capacity_) std::memcpy(dst_ + size_, &pending_, capacity_ - size_ < 8 ? capacity_ - size_ : 8);
}

bool BitWriter::finish(size_t* nbytes) {
  *nbytes = ceil_to(size_ + (fill_ != 0), 4);
  if (*nbytes > capacity_) return false;
  if (size_ < *nbytes) std::memcpy(dst_ + size_, &pending_, *nbytes - size_);  // dst_ is null where nothing was written
  return true;
}

namespace {

// body(i) for the members of a set, or for all other numbers below n, in ascending order.
template <class Body>
void for_each(const uint64_t* mask, size_t n, bool inverted, Body&& body) {
  for (size_t first = 0; first < n; first += 64) {
    uint64_t word = inverted ? ~mask[first / 64] : mask[first / 64];
    if (n - first < 64) word &= (uint64_t{1} << (n - first)) - 1;
    for (; word != 0; word &= word - 1) body(first + trailing_zeros(word, 0));
  }
}

}  // namespace

SetPlan plan_set(const uint64_t* mask, size_t n) {
  SetPlan plan = {};
  if (n == 0) return plan;
  for (size_t w = 0; w < ceil_div(n, 64); ++w) plan.count += static_cast<size_t>(__builtin_popcountll(mask[w]));
  plan.inverted = plan.count > n / 2;
  if (plan.inverted) plan.count = n - plan.count;
  plan.nbits = 1 + golomb_bits(plan.count, 0);
  if (plan.count == 0) return plan;
  RiceChoice choice(n - plan.count, plan.count);
  size_t next = 0;
  for_each(mask, n, plan.inverted, [&](size_t i) {
    choice.add(i - next);
    next = i + 1;
  });
  plan.k = choice.k();
  plan.nbits += 5 + choice.nbits();
  return plan;
}

void write_set(BitWriter* writer, const uint64_t* mask, size_t n, const SetPlan& plan) {
  if (n == 0) return;
  writer->bits(plan.inverted, 1);
  writer->golomb(plan.count, 0);
  if (plan.count == 0) return;
  writer->bits(plan.k, 5);
  size_t next = 0;
  for_each(mask, n, plan.inverted, [&](size_t i) {
    writer->rice(i - next, plan.k);
    next = i + 1;
  });
}

bool read_set(BitReader* reader, size_t n, uint64_t* mask) {
  if (n == 0) return true;
  const size_t words = ceil_div(n, 64);
  std::memset(mask, 0, words * sizeof *mask);
  const bool inverted = reader->bits(1) != 0;
  const uint64_t count = reader->golomb(0);
  if (!reader->ok() || count > n) return false;
  const unsigned k = count == 0 ? 0 : static_cast<unsigned>(reader->bits(5));
  size_t next = 0;
  for (uint64_t m = 0; m < count; ++m) {
    const uint64_t gap = reader->rice(k);
    if (gap >= n - next) return false;
    next += gap;
    mask[next / 64] |= uint64_t{1} << next % 64;
    ++next;
  }
  if (inverted) {
    for (size_t w = 0; w < words; ++w) mask[w] = ~mask[w];
    if (n % 64 != 0) mask[words - 1] &= (uint64_t{1} << n % 64) - 1;
  }
  return reader->ok();
}

}  // namespace tw
