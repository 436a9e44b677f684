// Decode arbitrary bytes. The first byte of an input is a set of flags, the rest is given to the decoder as a frame.
// With kBase two bytes come before that, a size, and so many bytes, which are repeated to make the base of a relative
// frame.
//
// Mutated frames would all die at the first checksum, so with kRepair the checksums are made right first: then the
// mutation reaches the parsers behind them.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.h"
#include "tests/repair.h"
#include "tests/tails.h"

namespace {

constexpr uint8_t kRepair = 1, kBase = 2;
// The bytes of a content and of a product's inputs and outputs: a few blocks of the largest size. A shape says more
// rows or columns in a few bytes than fit into memory, also where it has no words.
constexpr uint64_t kMaxNbytes = 4u << 20;

// A product with the frame is that with the decoded words, if they are weights.
void check_linear(const tw_frame& frame, const std::vector<uint8_t>& header, const std::vector<uint8_t>& data,
                  const std::vector<uint8_t>& words) {
  constexpr uint64_t kNumInputs = 2;
  const uint64_t rows = frame.shape[0], columns = frame.shape[1];
  if (frame.ndim != 2 || std::max(rows, columns) > kMaxNbytes / (kNumInputs * sizeof(float))) return;
  uint32_t bits;
  tw_layout layout;
  const bool known = tw_find_dtype(frame.dtype, &bits, &layout) == TW_OK && frame.bits == bits &&
                     frame.layout.word_nbytes == layout.word_nbytes;
  uint32_t plain;
  tw_error error;
  std::vector<float> inputs(kNumInputs * columns), outputs(kNumInputs * rows), expected(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(i % 7) - 2.5f;
  const uint32_t orders = tw_linear_orders(frame.dtype);
  const auto order = static_cast<tw_order>(tw::trailing_zeros(orders, TW_SUMS_64));
  const int dense = !known ? TW_INVALID_ARGUMENT
                           : tw_linear_dense(frame.dtype, words.data(), rows, columns, order, inputs.data(), kNumInputs,
                                             expected.data(), 1, nullptr, &error);
  const int status = tw_linear(&frame, header.data(), data.data(), data.size(), order, inputs.data(), kNumInputs,
                               outputs.data(), &plain, 2, nullptr, TW_VERIFY, nullptr, &error);
  CHECK(status == (frame.features != 0 ? TW_INVALID_ARGUMENT : dense));
  for (size_t i = 0; status == TW_OK && i < outputs.size(); ++i) {
    const bool both_nan = outputs[i] != outputs[i] && expected[i] != expected[i];
    CHECK(both_nan || same(&outputs[i], &expected[i], sizeof(float)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  size_t at = 1;
  std::vector<uint8_t> pattern(input, input + size);
  if ((input[0] & kBase) != 0 && size >= 3) {
    const size_t nbytes = tw::load<uint16_t>(input + 1);
    at = nbytes < size - 3 ? 3 + nbytes : 3;
    if (at > 3) pattern.assign(input + 3, input + at);
  }
  std::vector<uint8_t> bytes(input + at, input + size);
  if ((input[0] & kRepair) != 0) tests::repair(&bytes);

  const tests::Opened opened(bytes);
  const tw_frame& frame = opened.frame;
  const std::vector<uint8_t>&header = opened.header, &data = opened.data;
  tw_error error;
  if (opened.status != TW_OK) {
    tests::check_refusal(opened.status, opened.error);
    return 0;
  }
  CHECK(frame.header_nbytes <= bytes.size());
  if (frame.uncompressed_nbytes > kMaxNbytes) return 0;  // which bounds the blocks too: none is without content

  const uint64_t nbytes = frame.uncompressed_nbytes;
  std::vector<uint8_t> verified(nbytes), unverified(nbytes), base(nbytes);
  for (uint64_t i = 0; i < nbytes; ++i) base[i] = pattern[i % pattern.size()];
  const auto decode = [&](uint64_t start, uint64_t stop, std::vector<uint8_t>& out, uint32_t threads, uint32_t flags) {
    const int result = tw_decode(&frame, header.data(), data.data(), 0, data.size(), base.data(), 0, base.size(), start,
                                 stop, out.data(), threads, nullptr, flags, nullptr, &error);
    if (result != TW_OK) tests::check_refusal(result, error);
    return result == TW_OK;
  };
  const bool good = decode(0, nbytes, verified, 1, TW_VERIFY);
  const bool parsed = decode(0, nbytes, unverified, 2, 0);
  if (frame.features == 0 && data.size() >= frame.data_nbytes) {
    const tests::OnDevice found(frame, header.data(), data.data());
    if (found.status != TW_OK) {
      tests::check_refusal(found.status, found.error);
      CHECK(!parsed);
    }
  }
  if (!good) return 0;

  // What passes its checksums and parses decodes the same in every way.
  CHECK(parsed && verified == unverified);
  if (frame.features != 0) {
    CHECK(tw_decode(&frame, header.data(), data.data(), 0, data.size(), base.data(), 0, nbytes, 0, nbytes, base.data(),
                    2, nullptr, 0, nullptr, &error) == TW_OK);
    CHECK(base == verified);
    for (uint64_t i = 0; i < nbytes; ++i) base[i] = pattern[i % pattern.size()];
    std::vector<uint8_t> hash(16);
    CHECK(tw_decode_and_hash(&frame, header.data(), data.data(), data.size(), base.data(), nbytes, unverified.data(), 2,
                             hash.data(), nullptr, &error) == TW_OK);
    CHECK(unverified == verified && hash == tests::hash_of(verified));
  }
  check_linear(frame, header, data, verified);
  const uint64_t start = nbytes == 0 ? 0 : (input[0] >> 1) * 997u % nbytes;
  const uint64_t stop = start + (nbytes - start) / 2;
  std::vector<uint8_t> part(stop - start);
  CHECK(decode(start, stop, part, 1, TW_VERIFY));
  CHECK(same(part.data(), verified.data() + start, part.size()));
  uint64_t num_words = 0;
  for (const tw_block_info& info : tests::infos_of(frame, bytes)) num_words += info.num_words;
  CHECK(num_words == frame.num_words);
  return 0;
}
