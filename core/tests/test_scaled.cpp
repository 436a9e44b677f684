// Products of scales and codes on the target that TENSORWIRE_CPU names, against arithmetic in double, which is exact.
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/check.h"
#include "tests/random.h"
#include "tests/sources.h"
#include "tests/target.h"
#include "transforms/scaled.h"

namespace {

double number(tw::Codes codes, unsigned code) {
  if (codes == tw::Codes::kI8) return static_cast<int8_t>(code);
  const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Of a product of at most 32 bits, none of which is lost on the way to float but by that rounding.
uint16_t word(double product) {
  const float rounded = static_cast<float>(product);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float scale_of(uint32_t bits) {
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}

void test_products(tw::Codes codes, const std::vector<uint8_t>& numbers, float scale) {
  for (size_t n = 0; n <= numbers.size(); n = n < 40 ? n + 1 : n + 97) {
    std::vector<uint8_t> words(2 * n + 2, 0xee);
    CHECK(tw::scaled_kernels.multiply(codes, numbers.data(), n, scale, words.data() + 1));
    CHECK(words[0] == 0xee && words[2 * n + 1] == 0xee);
    for (size_t i = 0; i < n; ++i) {
      uint16_t found;
      std::memcpy(&found, words.data() + 1 + 2 * i, sizeof found);
      CHECK(found == word(number(codes, numbers[i]) * static_cast<double>(scale)));
    }
  }
}

void test_what_is_no_number() {
  std::vector<uint8_t> numbers(50, 0x7e), words(100);
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (const uint8_t code : {0x7f, 0xff}) {
      numbers[i] = code;
      CHECK(!tw::scaled_kernels.multiply(tw::Codes::kF8E4M3, numbers.data(), numbers.size(), 1, words.data()));
      CHECK(tw::scaled_kernels.multiply(tw::Codes::kI8, numbers.data(), numbers.size(), 1, words.data()));
    }
    numbers[i] = 0x7e;
  }
}

tests::Bytes encoded(const tests::Bytes& words) {
  tw_frame frame = tests::new_frame("BF16", 16, {words.size() / 2}, TW_COMPACT, tests::BlockWords(1280));
  return tests::compress(&frame, words);
}

tests::Bytes decoded(const tests::Bytes& bytes) {
  const tw_frame frame = tests::frame_of(bytes);
  tests::Bytes words(frame.uncompressed_nbytes);
  tw_error error;
  CHECK(tw_decode(&frame, bytes.data(), bytes.data() + frame.header_nbytes, 0, frame.data_nbytes, nullptr, 0, 0, 0,
                  words.size(), words.data(), 1, nullptr, 0, nullptr, &error) == TW_OK);
  return words;
}

// A thread may round as it likes: frames and words are the same, and it goes on as it did.
void test_rounding_of_the_thread() {
  for (const tw::Codes codes : {tw::Codes::kF8E4M3, tw::Codes::kI8}) {
    const tests::Bytes words = decoded(tests::make_scaled_source(codes).frame), bytes = encoded(words);
    CHECK(tests::infos_of(tests::frame_of(bytes), bytes)[0].extended == tw::kScaled);
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      std::fesetround(mode);
      const bool same = encoded(words) == bytes && decoded(bytes) == words, kept = std::fegetround() == mode;
      std::fesetround(FE_TONEAREST);
      CHECK(same && kept);
    }
  }
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  tests::Random random(1);
  for (const tw::Codes codes : {tw::Codes::kF8E4M3, tw::Codes::kI8}) {
    std::vector<uint8_t> numbers;
    for (unsigned code = 0; code < 256; ++code) {
      if (codes == tw::Codes::kI8 || (code & 0x7f) != 0x7f) numbers.push_back(static_cast<uint8_t>(code));
    }
    for (const uint32_t bits : {16u << 23, (240u << 23) - 1, 127u << 23}) test_products(codes, numbers, scale_of(bits));
    for (int i = 0; i < 300; ++i) {
      test_products(codes, numbers, scale_of((16u << 23) + static_cast<uint32_t>(random.below(224u << 23))));
    }
  }
  test_what_is_no_number();
  test_rounding_of_the_thread();
  std::printf("ok\n");
  return 0;
}
