#include "coders/entropy_table.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "coders/rans.h"
#include "common/bits.h"

namespace tw {
namespace {

constexpr unsigned kMaxLength = 12;  // of a written frequency in bits
constexpr unsigned kMaxTopBits = 3;  // written below its leading one
constexpr size_t kTableHeadNbytes = 3;

// log2(1 + i / 256) in units of 2^-16, rounded down; by squaring, one bit at a time.
constexpr std::array<uint32_t, 257> make_logs() {
  std::array<uint32_t, 257> logs{};
  for (uint64_t i = 0; i <= 256; ++i) {
    uint64_t x = (256 + i) << 22;  // in [1, 2] with 30 bits of fraction
    uint32_t log = 0;
    if (i == 256) log = 1, x >>= 1;
    for (unsigned bit = 0; bit < kEntropyFraction; ++bit) {
      x = x * x >> 30;
      const uint32_t carry = x >> 31 != 0;
      x >>= carry;
      log = log << 1 | carry;
    }
    logs[i] = log;
  }
  return logs;
}
constexpr std::array<uint32_t, 257> kLogs = make_logs();

// log2(value) in units of 2^-16, for 1 to 4096; off by less than 2^-15.
inline uint32_t fixed_log2(uint32_t value) {
  const unsigned exponent = bit_length(value) - 1;
  const uint32_t mantissa = (value << (kRansBits - exponent)) % kRansTotal;
  const uint32_t below = kLogs[mantissa >> 4], above = kLogs[(mantissa >> 4) + 1];
  return (exponent << kEntropyFraction) + below + ((above - below) * (mantissa & 15) >> 4);
}

// The frequencies that can be written, in rising order: those of at most 4 significant bits. A level is a place in it.
struct Level {
  uint16_t frequency;
  uint8_t length;    // in bits
  uint8_t top_bits;  // written below the leading one
  uint32_t log;      // log2(frequency) in units of 2^-16; 0 for frequency 0, whose symbols do not occur
};
constexpr unsigned kNumLevels = 80;

constexpr std::array<Level, kNumLevels> make_levels() {
  std::array<Level, kNumLevels> levels{};
  for (unsigned i = 1; i < kNumLevels; ++i) {
    const unsigned frequency = i < 16 ? i : (8 + i % 8) << (i / 8 - 1);
    unsigned length = 1;
    while (frequency >> length != 0) ++length;
    const unsigned top_bits = length - 1 < kMaxTopBits ? length - 1 : kMaxTopBits;
    levels[i] = {static_cast<uint16_t>(frequency), static_cast<uint8_t>(length), static_cast<uint8_t>(top_bits),
                 ((length - 1) << kEntropyFraction) + kLogs[(frequency << (kMaxLength - length) >> 3) & 255]};
  }
  return levels;
}
constexpr std::array<Level, kNumLevels> kLevels = make_levels();
static_assert(kLevels[kNumLevels - 1].frequency == 3840);

// The highest level whose frequency is at most `frequency`, 0 to 4095.
unsigned level_below(uint32_t frequency) {
  if (frequency < 16) return frequency;
  const unsigned length = bit_length(frequency);
  return (length - 3) * 8 + (frequency >> (length - 4)) % 8;
}

// Unary bits for the step from one bit length to the next.
unsigned step_bits(unsigned previous, unsigned length) {
  return length >= previous ? 2 * (length - previous) + 1 : 2 * (previous - length);
}

// A table under construction: a level for each symbol from first to last but the implied one, which gets what is left.
class Chooser {
 public:
  Chooser(const uint32_t histogram[256], size_t n) {
    while (histogram[first_] == 0) ++first_;
    while (histogram[last_] == 0) --last_;
    const uint32_t* most = std::max_element(histogram + first_, histogram + last_ + 1);
    implied_ = static_cast<unsigned>(most - histogram);
    implied_count_ = *most;
    absent_stay_ = n >= 16384;  // where a slot is worth more than that
    const bool single = first_ == last_;
    if (single) first_ == 0 ? ++last_ : --first_;  // the implied symbol may not have all 4096
    for (unsigned s = first_; s <= last_; ++s) {
      if (s == implied_) continue;
      const unsigned lowest = single || histogram[s] != 0 ? 1 : 0;
      // The nearest level to the symbol's share.
      const uint32_t twice = static_cast<uint32_t>(2 * uint64_t{histogram[s]} * kRansTotal / n);
      unsigned level = level_below(twice / 2);
      if (level + 1 < kNumLevels && twice > kLevels[level].frequency + kLevels[level + 1].frequency) ++level;
      counts_[size_] = histogram[s];
      lowest_[size_] = static_cast<uint8_t>(lowest);
      levels_[size_] = static_cast<uint8_t>(std::max(level, lowest));
      left_ -= kLevels[levels_[size_]].frequency;
      ++size_;
    }
    // Rare symbols were given more than their share: where that leaves nothing, take it from the most frequent.
    while (left_ < 1) {
      uint8_t& level = *std::max_element(levels_, levels_ + size_);
      left_ += kLevels[level].frequency - kLevels[level - 1].frequency;
      --level;
    }
    left_log_ = fixed_log2(static_cast<uint32_t>(left_));
  }

  // Move single symbols up or down a level for as long as that makes payload and table together smaller.
  void improve() {
    bool moved = true;
    for (unsigned pass = 0; moved && pass < kMaxPasses; ++pass) {
      moved = false;
      for (unsigned i = 0; i < size_; ++i) {
        if (counts_[i] == 0 && absent_stay_) continue;
        while (levels_[i] + 1u < kNumLevels && move(i, levels_[i] + 1u)) moved = true;
        while (levels_[i] > lowest_[i] && move(i, levels_[i] - 1u)) moved = true;
      }
    }
  }

  EntropyCost finish(EntropyTable* table) const {
    table->first = static_cast<uint8_t>(first_);
    table->last = static_cast<uint8_t>(last_);
    table->implied = static_cast<uint8_t>(implied_);
    std::memset(table->frequencies, 0, sizeof table->frequencies);
    uint64_t payload = implied_count_ * uint64_t{(kRansBits << kEntropyFraction) - left_log_};
    size_t table_bits = 0;
    unsigned symbol = first_, previous = 0;
    for (unsigned i = 0; i < size_; ++i, ++symbol) {
      if (symbol == implied_) ++symbol;
      const Level& level = kLevels[levels_[i]];
      table->frequencies[symbol] = level.frequency;
      payload += counts_[i] * uint64_t{(kRansBits << kEntropyFraction) - level.log};
      table_bits += step_bits(previous, level.length) + level.top_bits;
      previous = level.length;
    }
    table->frequencies[implied_] = static_cast<uint16_t>(left_);
    return {kTableHeadNbytes + static_cast<size_t>(ceil_div(table_bits, 8)), payload};
  }

 private:
  static constexpr unsigned kMaxPasses = 2;  // the third saves a byte in 50,000

  bool move(unsigned i, unsigned to) {
    const Level &old = kLevels[levels_[i]], &now = kLevels[to];
    const int32_t left = left_ + old.frequency - now.frequency;
    if (left < 1 || left >= static_cast<int32_t>(kRansTotal)) return false;
    int64_t saved = counts_[i] * (int64_t{now.log} - old.log);
    const uint32_t left_log = fixed_log2(static_cast<uint32_t>(left));
    saved += implied_count_ * (int64_t{left_log} - left_log_);
    const unsigned previous = i == 0 ? 0 : kLevels[levels_[i - 1]].length;
    unsigned old_bits = step_bits(previous, old.length) + old.top_bits;
    unsigned now_bits = step_bits(previous, now.length) + now.top_bits;
    if (i + 1 < size_) {
      const unsigned next = kLevels[levels_[i + 1]].length;
      old_bits += step_bits(old.length, next);
      now_bits += step_bits(now.length, next);
    }
    saved += (int64_t{old_bits} - int64_t{now_bits}) * (int64_t{1} << kEntropyFraction);
    if (saved <= 0) return false;
    levels_[i] = static_cast<uint8_t>(to);
    left_ = left;
    left_log_ = left_log;
    return true;
  }

  unsigned first_ = 0, last_ = 255, implied_;
  uint32_t implied_count_;
  int32_t left_ = kRansTotal;  // the implied symbol's frequency
  uint32_t left_log_;          // its log2 in units of 2^-16
  unsigned size_ = 0;
  uint32_t counts_[255];
  uint8_t levels_[255], lowest_[255];
  // A slot for a symbol that does not occur may shorten the written table by 4 bits.
  bool absent_stay_;
};

}  // namespace

uint64_t entropy_bits(const uint32_t histogram[256], size_t n) {
  const auto rough_log2 = [](uint64_t value) {  // in units of 2^-16, rounded down
    const unsigned exponent = bit_length(value) - 1;
    return (uint64_t{exponent} << kEntropyFraction) + kLogs[(value << (63 - exponent) >> 55) & 255];
  };
  if (n == 0) return 0;
  uint64_t of_counts = 0;
  for (unsigned first = 0; first < 256; first += 8) {  // most often all symbols lie close together
    uint32_t any = 0;
    for (unsigned s = first; s < first + 8; ++s) any |= histogram[s];
    if (any == 0) continue;
    for (unsigned s = first; s < first + 8; ++s) {
      if (histogram[s] != 0) of_counts += histogram[s] * rough_log2(histogram[s]);
    }
  }
  return (n * (rough_log2(n) + 256) - of_counts) >> kEntropyFraction;
}

EntropyCost entropy_choose(const uint32_t histogram[256], size_t n, EntropyTable* table) {
  Chooser chooser(histogram, n);
  chooser.improve();
  return chooser.finish(table);
}

size_t entropy_write_table(const EntropyTable& table, uint8_t* dst) {
  dst[0] = table.first;
  dst[1] = table.last;
  dst[2] = table.implied;
  uint8_t* out = dst + kTableHeadNbytes;
  uint64_t bits = 0;
  unsigned num_bits = 0, previous = 0;
  for (unsigned s = table.first; s <= table.last; ++s) {
    if (s == table.implied) continue;
    const Level& level = kLevels[level_below(table.frequencies[s])];
    const unsigned step = step_bits(previous, level.length);
    const uint64_t top = level.frequency >> (level.length == 0 ? 0 : level.length - 1 - level.top_bits);
    bits |= uint64_t{1} << (num_bits + step - 1);
    bits |= (top & ((1u << level.top_bits) - 1)) << (num_bits + step);
    num_bits += step + level.top_bits;
    previous = level.length;
    for (; num_bits >= 8; num_bits -= 8, bits >>= 8) *out++ = static_cast<uint8_t>(bits);
  }
  if (num_bits != 0) *out++ = static_cast<uint8_t>(bits);
  return static_cast<size_t>(out - dst);
}

size_t entropy_read_table(const uint8_t* src, size_t available, EntropyTable* table) {
  if (available < kTableHeadNbytes) return 0;
  table->first = src[0];
  table->last = src[1];
  table->implied = src[2];
  if (table->first > table->implied || table->implied > table->last) return 0;
  std::memset(table->frequencies, 0, sizeof table->frequencies);
  const size_t end = available * 8;
  size_t at = kTableHeadNbytes * 8;
  unsigned length = 0;
  uint32_t sum = 0;
  for (unsigned s = table->first; s <= table->last; ++s) {
    if (s == table->implied) continue;
    if (at >= end) return 0;
    uint64_t bits = load<uint64_t>(src + at / 8) >> at % 8;
    const unsigned step = trailing_zeros(bits, 64);
    if (step > 2 * kMaxLength) return 0;
    // Odd steps lead down, even ones up; what falls below 0 wraps to more than kMaxLength.
    length += step % 2 == 0 ? step / 2 : 0u - (step + 1) / 2;
    if (length > kMaxLength) return 0;
    bits >>= step + 1;
    at += step + 1;
    if (length == 0) continue;
    const unsigned top_bits = std::min(length - 1, kMaxTopBits);
    const uint32_t top = static_cast<uint32_t>(bits) & ((1u << top_bits) - 1);
    at += top_bits;
    table->frequencies[s] = static_cast<uint16_t>((1u << top_bits | top) << (length - 1 - top_bits));
    sum += table->frequencies[s];
  }
  const size_t nbytes = static_cast<size_t>(ceil_div(at, 8));
  if (at > end || (at % 8 != 0 && src[nbytes - 1] >> at % 8 != 0)) return 0;
  if (sum == 0 || sum >= kRansTotal) return 0;
  table->frequencies[table->implied] = static_cast<uint16_t>(kRansTotal - sum);
  return nbytes;
}

}  // namespace tw
