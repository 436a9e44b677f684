#include <cstring>

#include "coders/bit_string.h"
#include "coders/sparse.h"

namespace tw {
namespace {

// The next changed words of a class: a bit for each in `ranks`, a step of 1 or -1 for each in `steps`. *next_rank is
// that after the last one. False for an invalid string.
template <class T, unsigned kAtOnce>
bool read_some_ranks(BitReader* reader, unsigned k, size_t n, uint64_t count, uint64_t* next_rank, uint64_t* ranks,
                     uint8_t* steps) {
  uint64_t rank = *next_rank;
  uint64_t gaps[kAtOnce];
  unsigned negative[kAtOnce];
  for (uint64_t i = 0; i < count; i += kAtOnce) {
    if (kAtOnce == 1 || !reader->rices_and_bits<kAtOnce>(k, gaps, negative)) {
      for (unsigned j = 0; j < kAtOnce; ++j) gaps[j] = reader->rice_and_bit(k, &negative[j]);
    }
#pragma GCC unroll 4
    for (unsigned j = 0; j < kAtOnce; ++j) {
      if (gaps[j] >= n - rank) return false;
      rank += gaps[j];
      ranks[rank / 64] |= uint64_t{1} << rank % 64;
      store(steps + (i + j) * sizeof(T), static_cast<T>(T{1} - T{2} * negative[j]));
      ++rank;
    }
  }
  *next_rank = rank;
  return true;
}

// The changed words of a class. Returns how many words the class must have, 0 for an invalid string.
template <class T>
uint64_t read_ranks(BitReader* reader, size_t n, uint64_t count, uint64_t* ranks, uint8_t* steps) {
  constexpr unsigned kFourK = 8;  // the largest k of which one look mostly shows four codes
  const unsigned k = static_cast<unsigned>(reader->bits(kRiceBits));
  uint64_t rank = 0;
  const uint64_t fours = k <= kFourK ? count / 4 * 4 : 0;
  if (!read_some_ranks<T, 4>(reader, k, n, fours, &rank, ranks, steps)) return 0;
  if (!read_some_ranks<T, 1>(reader, k, n, count - fours, &rank, ranks, steps + fours * sizeof(T))) return 0;
  return rank;
}

// The next set, of the `count` places in scratch->members: those that it has stay.
bool read_members(BitReader* reader, size_t* count, SparseDecodeScratch* scratch) {
  const size_t before = *count;
  if (before == 0) return true;
  const bool inverted = reader->bits(1) != 0;
  const uint64_t listed = reader->golomb(0);
  if (!reader->ok() || listed > before) return false;
  const unsigned k = listed == 0 ? 0 : static_cast<unsigned>(reader->bits(kRiceBits));
  uint32_t* const members = scratch->members;
  size_t next = 0, kept = 0;
  for (uint64_t i = 0; i < listed; ++i, ++next) {
    const uint64_t gap = reader->rice(k);
    if (gap >= before - next) return false;
    if (inverted) {
      std::memmove(members + kept, members + next, gap * sizeof *members);
      kept += gap;
    }
    next += gap;
    if (!inverted) members[kept++] = members[next];
  }
  if (inverted) {
    std::memmove(members + kept, members + next, (before - next) * sizeof *members);
    kept += before - next;
  }
  *count = kept;
  return reader->ok();
}

template <class T>
bool read_sizes(BitReader* reader, size_t count, uint8_t* steps, SparseDecodeScratch* scratch) {
  constexpr uint64_t kMost = uint64_t{1} << (8 * sizeof(T) - 1);
  const auto grow = [&](size_t member, uint64_t by) {
    uint8_t* const at = steps + scratch->members[member] * sizeof(T);
    const T step = load<T>(at);
    const bool negative = step >> (8 * sizeof(T) - 1) != 0;
    store(at, static_cast<T>(negative ? step - by : step + by));
    return negative;
  };
  for (size_t i = 0; i < count; ++i) scratch->members[i] = static_cast<uint32_t>(i);
  for (unsigned size = 2; size <= kFirstLargeStep; ++size) {
    if (!read_members(reader, &count, scratch)) return false;
    if (size == kFirstLargeStep) break;
    for (size_t i = 0; i < count; ++i) grow(i, 1);
  }
  if (count == 0) return true;
  const unsigned g = static_cast<unsigned>(reader->bits(kGolombBits));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t more = reader->golomb(g);
    if (!reader->ok() || more > kMost - kFirstLargeStep) return false;
    // Steps of -3 and 3 so far: those of a set are members of the sets before.
    const bool negative = grow(i, more + 1);
    if (more == kMost - kFirstLargeStep && !negative) return false;
  }
  return true;
}

template <class T>
bool decode(const uint8_t* src, size_t available, size_t n, SparseSteps* sparse, size_t* nbytes,
            SparseDecodeScratch* scratch) {
  BitReader reader(src, available);
  size_t counts[kMaxClasses], total = 0;
  uint8_t* steps = scratch->steps;
  for (unsigned c = 0; c < sparse->classes.count; ++c) {
    const uint64_t count = reader.golomb(kCountOrder);
    if (!reader.ok() || count > n - total) return false;
    total += counts[c] = count;
    std::memset(scratch->ranks[c], 0, (ceil_div(n, 64) + 2) * sizeof(uint64_t));
    sparse->ranks[c] = scratch->ranks[c];
    sparse->steps[c] = steps;
    sparse->seen[c] = sparse->needed[c] = 0;
    if (count == 0) continue;
    sparse->needed[c] = read_ranks<T>(&reader, n, count, scratch->ranks[c], steps);
    if (sparse->needed[c] == 0 || !reader.ok()) return false;
    steps += count * sizeof(T);
  }
  steps = scratch->steps;
  for (unsigned c = 0; c < sparse->classes.count; ++c) {
    if (!read_sizes<T>(&reader, counts[c], steps, scratch)) return false;
    steps += counts[c] * sizeof(T);
  }
  return reader.finish(nbytes);
}

}  // namespace

bool sparse_decode(const Layout& dtype, const uint8_t* src, size_t available, size_t n, SparseSteps* sparse,
                   size_t* nbytes, SparseDecodeScratch* scratch) {
  return with_words(
      dtype, [&](auto word, auto) { return decode<decltype(word)>(src, available, n, sparse, nbytes, scratch); });
}

}  // namespace tw
