#include "frame/relative_decode.h"

#include <cstring>

namespace tw {
namespace {

// Words that are put together at a time; they stay in the first-level cache on their way around the others.
constexpr size_t kTileWords = kSegment;
static_assert(kTileWords == kDenseTile);

const char* read_classes(const Coded& coded, const uint8_t* thresholds, StepClasses* classes) {
  Thresholds read;
  read.num_classes = coded.tag.variant + 1u;
  std::memcpy(read.thresholds, thresholds, coded.tag.variant);
  for (unsigned c = 1; c < coded.tag.variant; ++c) {
    if (read.thresholds[c] <= read.thresholds[c - 1]) return "expected thresholds that ascend";
  }
  // Kernels compare a threshold where the exponent stands in a word: one of more bits would reach into the sign.
  if (coded.tag.variant != 0 && read.thresholds[coded.tag.variant - 1] >> coded.dtype().exponent_bits != 0) {
    return "expected thresholds among the exponents of the dtype";
  }
  *classes = classes_of(coded.dtype(), read);
  return nullptr;
}

// body(base, count, words) for each tile of the block. False if the body says so.
template <class Body>
bool for_tiles(const Coded& coded, const BlockOutput& output, uint8_t* buffer, Body&& body) {
  const size_t width = coded.dtype().word_nbytes;
  for (size_t first = 0; first < coded.n; first += kTileWords) {
    const size_t count = coded.n - first < kTileWords ? coded.n - first : kTileWords;
    uint8_t* const words = output.words + first * width;
    uint8_t* target = output.stream ? buffer : words;
    if (!body(coded.spec.base + first * width, count, target)) return false;
    output.hasher->update(target, count * width);
    if (output.stream) word_kernels.stream_copy(words, buffer, count * width);
  }
  return true;
}

Fault decode_sparse(const Coded& coded, const BlockOutput& output, RelativeDecodeScratch* scratch) {
  const Layout& dtype = coded.dtype();
  SparseSteps sparse;
  const char* wrong = read_classes(coded, coded.params, &sparse.classes);
  if (wrong != nullptr) return wrong;
  size_t nbytes = 0;
  if (!sparse_decode(dtype, coded.block, coded.available, coded.n, &sparse, &nbytes, &scratch->sparse)) {
    return "expected a valid bit string of changed words and steps";
  }
  wrong = check_padding(coded, nbytes);
  if (wrong != nullptr) return wrong;
  for_tiles(coded, output, scratch->tile, [&](const uint8_t* base, size_t count, uint8_t* words) {
    step_kernels.apply_sparse(dtype, base, count, &sparse, words);
    return true;
  });
  return sparse.complete() ? Fault() : Fault("expected changed words that their class has");
}

const char* open_dense(const Coded& coded, DenseDecoder* dense) {
  StepClasses classes;
  const char* wrong = read_classes(coded, coded.params + sizeof(uint32_t), &classes);
  if (wrong != nullptr) return wrong;
  const uint32_t num_changed = load<uint32_t>(coded.params);
  if (dense->open(coded.dtype(), coded.block, coded.available, coded.n, classes, num_changed)) return nullptr;
  return "expected a valid entropy stream of symbols, and signs of as many as num_changed";
}

// The decoder that has the block's symbols.
const char* find_symbols(const Coded& coded, RelativeDecodeScratch* scratch, DenseDecoder** found) {
  for (DenseAhead& ahead : scratch->dense) {
    if (ahead.block != coded.block) continue;
    ahead.block = nullptr;
    *found = &ahead.decoder;
    return nullptr;
  }
  *found = &scratch->dense[0].decoder;
  const char* wrong = open_dense(coded, *found);
  if (wrong == nullptr) (*found)->decode_symbols(coded.spec.base);
  return wrong;
}

Fault decode_dense(const Coded& coded, const BlockOutput& output, RelativeDecodeScratch* scratch) {
  DenseDecoder* dense = nullptr;
  const char* wrong = find_symbols(coded, scratch, &dense);
  if (wrong != nullptr) return wrong;
  const bool valid = for_tiles(coded, output, scratch->tile, [&](const uint8_t* base, size_t count, uint8_t* words) {
    return dense->decode(base, count, words);
  });
  size_t nbytes = 0;
  if (!valid || !dense->finish(&nbytes)) return "expected num_changed steps that words can make, and streams that end";
  return check_padding(coded, nbytes);
}

}  // namespace

Fault decode_relative(const Coded& coded, const BlockOutput& output, RelativeDecodeScratch* scratch) {
  return coded.extended == kSparse ? decode_sparse(coded, output, scratch) : decode_dense(coded, output, scratch);
}

void decode_dense_ahead(const Coded& a, const Coded& b, RelativeDecodeScratch* scratch) {
  DenseAhead &first = scratch->dense[0], &second = scratch->dense[1];
  if (open_dense(a, &first.decoder) != nullptr || open_dense(b, &second.decoder) != nullptr) return;
  DenseDecoder::decode_symbols_of_two(&first.decoder, a.spec.base, &second.decoder, b.spec.base);
  first.block = a.block;
  second.block = b.block;
}

}  // namespace tw
