// Bits per exponent of the enec coder with a group size forced and with the best of each block.
//
//   enec_groups DTYPE < words
//
// Reads the words of one tensor, cuts them into blocks of the default size, encodes, decodes and compares each, and
// prints one JSON object: bits per exponent for each group size L. No public option forces L: it exists for this
// comparison.
#include <cstdio>
#include <cstring>
#include <vector>

#include "coders/enec.h"
#include "transforms/histogram.h"
#include "transforms/words.h"

namespace {

constexpr size_t kBlockWords = 32768;

struct Scratch {
  tw::EnecScratch enec;
  alignas(64) uint8_t exponents[kBlockWords + tw::kSlack];
  alignas(64) uint8_t rests[kBlockWords * 4 + tw::kSlack];
  alignas(64) uint8_t decoded[kBlockWords + tw::kSlack];
  uint64_t runs[kBlockWords / tw::kRun];
  uint32_t histogram[256];
};

// Bytes of the streams of one block, encoded, decoded and compared; 0 if the coder has no answer or a wrong one.
size_t block_nbytes(const tw::Dtype& dtype, const uint8_t* words, size_t n, unsigned log2_group, Scratch* scratch) {
  tw::word_kernels().split(dtype, words, n, scratch->exponents, scratch->rests, scratch->runs);
  tw::histogram_kernels().bytes(scratch->exponents, n, scratch->histogram);
  tw::EnecParams params;
  size_t nbytes = 0;
  uint32_t num_high = 0;
  if (!tw::enec_choose(scratch->exponents, n, scratch->histogram, dtype.exponent_bits, log2_group, &params, &nbytes,
                       &num_high, &scratch->enec)) {
    return 0;
  }
  std::vector<uint8_t> streams(nbytes + tw::kSlack);
  tw::enec_encode(scratch->exponents, n, params, streams.data(), &scratch->enec);
  const bool valid =
      tw::enec_decode(streams.data(), n, dtype.exponent_bits, params, num_high, scratch->decoded, &scratch->enec);
  return valid && std::memcmp(scratch->decoded, scratch->exponents, n) == 0 ? nbytes : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || tw::find_dtype(argv[1]).exponent_bits == 0) {
    std::fprintf(stderr, "usage: enec_groups BF16|F16|F32|F8_E4M3|F8_E5M2 < words\n");
    return 2;
  }
  const tw::Dtype& dtype = tw::find_dtype(argv[1]);
  std::vector<uint8_t> words;
  std::vector<uint8_t> piece(1 << 20);
  for (size_t got; (got = std::fread(piece.data(), 1, piece.size(), stdin)) != 0;) {
    words.insert(words.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(got));
  }
  const size_t n = words.size() / dtype.word_nbytes;
  static Scratch scratch;
  std::printf("{\"dtype\": \"%s\", \"num_words\": %zu", dtype.name, n);
  for (const unsigned log2_group : {0u, 2u, 3u, 4u, 5u}) {
    size_t total = 0;
    for (size_t first = 0; first < n; first += kBlockWords) {
      const size_t count = n - first < kBlockWords ? n - first : kBlockWords;
      const size_t nbytes = block_nbytes(dtype, words.data() + first * dtype.word_nbytes, count, log2_group, &scratch);
      if (nbytes == 0) {
        std::fprintf(stderr, "enec_groups: block %zu does not come back with log2(L) = %u\n", first / kBlockWords,
                     log2_group);
        return 1;
      }
      total += nbytes;
    }
    const double bits = 8.0 * static_cast<double>(total) / static_cast<double>(n);
    if (log2_group == 0) {
      std::printf(", \"best\": %.4f", bits);
    } else {
      std::printf(", \"%u\": %.4f", 1u << log2_group, bits);
    }
  }
  std::printf("}\n");
  return 0;
}
