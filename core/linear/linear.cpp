// Products with a compressed weight: blocks are decoded into a thread's cache and multiplied there, or, where a target
// has kernels for it, in registers (row_taker.h).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>

#include "common/cpu.h"
#include "frame/blocks.h"
#include "frame/decode_block.h"
#include "frame/workers.h"
#include "linear/dot.h"
#include "linear/row_taker.h"

namespace tw {
namespace {

// Blocks that a thread takes at a time.
constexpr uint64_t kBlocksAtOnce = 8;
// As many times a thread should find something to take.
constexpr uint64_t kTilesAThread = 4;
// While a block is decoded and multiplied, the next one is fetched; so much of it during the product.
constexpr uint64_t kFetchShare = 2;
// The most bytes of rows that are decoded together only because kernels are faster with them.
constexpr uint64_t kTogetherNbytes = 1 << 19;
// Bytes between blocks of whole rows, once decoded: lines of a power of two bytes apart would take the same few places
// of the cache, and kernels that multiply many rows side by side would find none of them there.
constexpr uint64_t kGapNbytes = 1024;
// Dense weights that a thread takes at a time, and those that it multiplies while it fetches as many of the next.
constexpr uint64_t kDenseTileNbytes = 1 << 18, kDenseStepNbytes = 1 << 15;

bool find_format(const char* dtype, WeightFormat* format) {
  constexpr struct {
    const char* name;
    WeightFormat format;
  } kFormats[] = {{"BF16", WeightFormat::kBf16}, {"F16", WeightFormat::kF16}};
  for (const auto& row : kFormats) {
    if (std::strcmp(row.name, dtype) == 0) return *format = row.format, true;
  }
  return false;
}

// Memory that begins with a line of the cache: a vector across two of them takes two loads.
class Lines {
 public:
  // Room for so many bytes, whose content is unspecified; nullptr if there is no memory.
  uint8_t* take(uint64_t nbytes) {
    if (nbytes_ < nbytes) {
      memory_.reset();  // before the larger piece is asked for
      memory_.reset(new (std::nothrow) uint8_t[nbytes + kLine]);
      nbytes_ = memory_ == nullptr ? 0 : nbytes;
    }
    if (memory_ == nullptr) return nullptr;
    return memory_.get() + (0 - reinterpret_cast<uintptr_t>(memory_.get())) % kLine;
  }

 private:
  static constexpr uint64_t kLine = 64;
  std::unique_ptr<uint8_t[]> memory_;
  uint64_t nbytes_ = 0;
};

// Inputs as the kernels want them. Behind each is room for one more line or two, or inputs of a power of two columns
// would take the same few places of the cache.
class Inputs {
 public:
  Inputs(const DotKernels& kernels, const float* inputs, uint64_t count, uint64_t columns)
      : stride_(ceil_to(columns, kMostSums) + kPadding),
        values_(reinterpret_cast<float*>(memory_.take(std::max<uint64_t>(1, count * stride_) * sizeof(float)))) {
    if (values_ == nullptr) return;
    for (uint64_t m = 0; m < count; ++m) kernels.arrange(inputs + m * columns, columns, values_ + m * stride_);
  }
  const float* values() const { return values_; }
  uint64_t stride() const { return stride_; }

 private:
  static constexpr uint64_t kPadding = 32;
  Lines memory_;
  uint64_t stride_;
  float* values_;
};

struct Product {
  const Blocks& blocks;
  const DotKernels& kernels;
  const Inputs& inputs;
  uint64_t num_inputs;
  float* outputs;

  uint64_t rows() const { return blocks.frame.shape[0]; }
  uint64_t columns() const { return blocks.frame.shape[1]; }
  bool takes_single_rows() const { return num_inputs == 1 && RowTaker::is_faster(kernels, columns()); }
  bool has_whole_rows() const { return blocks.frame.block_words % columns() == 0; }  // in each block
  // Rows that are decoded together: those of a block, or of as many as the kernels want; of several where blocks cut
  // rows, since a block at the border of two such steps is decoded twice.
  uint64_t rows_at_once() const {
    const uint64_t words = blocks.frame.block_words, some = std::max<uint64_t>(1, words * kBlocksAtOnce / columns());
    const uint64_t nbytes = kernels.num_rows * columns() * kWeightNbytes;
    const uint64_t together = nbytes <= kTogetherNbytes ? kernels.num_rows : ceil_div(kernels.num_rows, 2);
    return has_whole_rows() ? ceil_to(together, words / columns()) : ceil_to(some, together);
  }
  // Rows that a thread takes at a time. If possible they end with a block, or two threads would decode that one.
  uint64_t rows_of_tile(uint32_t threads) const {
    const uint64_t words = blocks.frame.block_words, some = std::max<uint64_t>(1, words * kBlocksAtOnce / columns());
    if (!takes_single_rows()) return ceil_to(some, rows_at_once());
    const uint64_t whole = ceil_to(some, words / std::gcd(words, columns()));
    return whole <= rows() / (kTilesAThread * std::max(threads, 1u)) ? whole : some;
  }
};

struct RowScratch {
  DecodeScratch block;
  alignas(64) uint8_t last[kMaxBlockWords * kMaxWordNbytes + kSlack];
  Lines words;
};

// The bytes of the block behind this one, which is the next that the thread needs, mostly.
Fetch next_block(const Blocks& blocks, uint64_t block) {
  if (block + 1 == blocks.frame.num_blocks) return {};
  return {blocks.data.at(blocks.end_of(block)), blocks.end_of(block + 1) - blocks.end_of(block)};
}

int no_memory(uint64_t block, uint64_t nbytes, tw_error* error) {
  return fail(error, TW_NO_MEMORY, block, 0, "no memory for %llu bytes", as_ull(nbytes));
}

int decode_one(const Product& product, uint64_t block, Fetch next, uint8_t* words, RowScratch* scratch, Taker* taker,
               tw_error* error) {
  const Blocks& blocks = product.blocks;
  const int status = blocks.check(block, error);
  if (status != TW_OK) return status;
  const BlockOutput output = {words, false, next, nullptr, taker};
  const Fault fault =
      decode_block(spec_of(blocks.frame, nullptr), blocks.bytes(block, scratch->last), output, &scratch->block);
  return fault ? blocks.report(fault, block, error) : TW_OK;
}

// Rows [first, last) one by one, while their blocks are decoded.
int multiply_single_rows(const Product& product, uint64_t first, uint64_t last, RowScratch* scratch, tw_error* error) {
  const tw_frame& frame = product.blocks.frame;
  const uint64_t start = first * product.columns(), stop = last * product.columns();
  const uint64_t first_block = start / frame.block_words, last_block = ceil_div(stop, frame.block_words);
  const uint64_t nbytes = block_nbytes(frame) + kSlack;
  uint8_t* const words = scratch->words.take(nbytes);
  if (words == nullptr) return no_memory(first_block, nbytes, error);
  RowTaker taker(product.kernels, product.columns(), product.inputs.values(), start - first_block * frame.block_words,
                 last - first, product.outputs + first);
  for (uint64_t block = first_block; block < last_block; ++block) {
    const Fetch next = next_block(product.blocks, block);
    taker.begin(next);
    const int status = decode_one(product, block, next, words, scratch, &taker, error);
    if (status != TW_OK) return status;
    if (taker.has_none()) taker.add(words, num_block_words(frame, block));
  }
  return TW_OK;
}

// Rows [first, last): their blocks side by side, then their products.
int multiply_rows(const Product& product, uint64_t first, uint64_t last, RowScratch* scratch, tw_error* error) {
  const tw_frame& frame = product.blocks.frame;
  const uint64_t start = first * product.columns(), stop = last * product.columns();
  const uint64_t first_block = start / frame.block_words, last_block = ceil_div(stop, frame.block_words);
  const bool whole = product.has_whole_rows();
  const uint64_t step = block_nbytes(frame) + (whole ? kGapNbytes : 0);
  const uint64_t nbytes = (last_block - first_block) * step + kSlack;
  uint8_t* const words = scratch->words.take(nbytes);
  if (words == nullptr) return no_memory(first_block, nbytes, error);
  Fetch left;  // for the product, so that memory has something to do meanwhile
  for (uint64_t block = first_block; block < last_block; ++block) {
    Fetch next = next_block(product.blocks, block);
    if (block + 1 == last_block) {
      left.nbytes = next.nbytes / kFetchShare;
      next.nbytes -= left.nbytes;
      left.bytes = next.bytes + next.nbytes;
    }
    uint8_t* const of_block = words + (block - first_block) * step;
    const int status = decode_one(product, block, next, of_block, scratch, nullptr, error);
    if (status != TW_OK) return status;
  }
  Weights weights = {words + (start - first_block * frame.block_words) * kWeightNbytes, last - first,
                     product.columns()};
  if (whole) weights.together = frame.block_words / product.columns(), weights.gap = kGapNbytes;
  product.kernels.dot(weights, product.inputs.values(), product.num_inputs, product.inputs.stride(),
                      product.outputs + first, product.rows(), left);
  return TW_OK;
}

int check_frame(const tw_frame& frame, uint64_t data_nbytes, WeightFormat* format, tw_error* error) {
  // The layout says what was decoded, the dtype only what it is called.
  const bool known =
      find_format(frame.dtype, format) && frame.layout.word_nbytes == kWeightNbytes && frame.bits == 8 * kWeightNbytes;
  if (is_relative(frame) || frame.ndim != 2 || !known) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0, "expected a plain frame of two dimensions, BF16 or F16");
  }
  if (data_nbytes < frame.data_nbytes) {
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, frame.header_nbytes + data_nbytes,
                "expected %llu bytes of blocks, got %llu", as_ull(frame.data_nbytes), as_ull(data_nbytes));
  }
  return TW_OK;
}

int no_kernels(tw_error* error) {
  return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0, "expected BF16 or F16 in an order of tw_linear_orders()");
}

int no_memory(tw_error* error) {
  return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for a product's scratch");
}

// Whether any of so many threads flushes denormals, also one that would come too late for a tile: others share rows out
// among all of them.
bool any_flushes_denormals(uint32_t threads, tw_parallel parallel) {
  std::atomic<bool> any{cpu_flushes_denormals()};  // threads of our own are like this one
  if (parallel == nullptr || threads < 2 || any) return any;
  const auto look = [](void* found) {
    if (cpu_flushes_denormals()) *static_cast<std::atomic<bool>*>(found) = true;
  };
  parallel(look, &any, threads, 0);
  return any;
}

// Whether the products of rows [first, last) have no NaN, nor what may become denormal with a bias if `flushed`.
bool is_plain(const Product& product, uint64_t first, uint64_t last, bool flushed) {
  constexpr float kTiny = 0x1p-103f;
  bool plain = true;
  for (uint64_t m = 0; m < product.num_inputs; ++m) {
    const float* const outputs = product.outputs + m * product.rows();
    for (uint64_t r = first; r < last; ++r) plain &= outputs[r] == outputs[r];
    for (uint64_t r = first; flushed && r < last; ++r) plain &= outputs[r] == 0 || std::fabs(outputs[r]) >= kTiny;
  }
  return plain;
}

}  // namespace
}  // namespace tw

using namespace tw;

uint32_t tw_linear_orders(const char* dtype) {
  WeightFormat format = WeightFormat::kBf16;
  uint32_t orders = 0;
  if (!find_format(dtype, &format)) return orders;
  for (const tw_order order : kOrders) {
    if (find_dot(order, format) != nullptr) orders |= 1u << order;
  }
  return orders;
}

int tw_linear(const tw_frame* frame, const void* header, const void* data, uint64_t data_nbytes, tw_order order,
              const float* inputs, uint64_t num_inputs, float* outputs, uint32_t* plain, uint32_t threads,
              tw_parallel parallel, uint32_t flags, uint8_t* checked, tw_error* error) {
  *plain = 1;
  WeightFormat format = WeightFormat::kBf16;
  const int status = check_frame(*frame, data_nbytes, &format, error);
  if (status != TW_OK) return status;
  const DotKernels* const kernels = find_dot(order, format);
  if (kernels == nullptr) return no_kernels(error);
  if (num_inputs == 0) return TW_OK;
  if (frame->num_words == 0) return std::fill(outputs, outputs + num_inputs * frame->shape[0], 0.0f), TW_OK;
  const Index index(*frame, header);
  const Data have = {static_cast<const uint8_t*>(data), 0, data_nbytes};
  const Blocks blocks = {*frame, index, have, {(flags & TW_VERIFY) != 0, checked}};
  const Inputs arranged(*kernels, inputs, num_inputs, frame->shape[1]);
  if (arranged.values() == nullptr) return no_memory(error);
  const Product product = {blocks, *kernels, arranged, num_inputs, outputs};
  if (any_flushes_denormals(threads, parallel)) return *plain = 0, TW_OK;
  const bool singly = product.takes_single_rows(), in_pairs = order == TW_PAIRS_512 || order == TW_PAIRS_1024;
  const uint64_t per_tile = product.rows_of_tile(threads), step = singly ? per_tile : product.rows_at_once();
  FirstFailure failure;
  std::atomic<bool> all_plain{true};
  const bool ran = run_tiles<RowScratch>(
      ceil_div(product.rows(), per_tile), Workers(threads, parallel), [&](RowScratch& scratch, uint64_t tile) {
        const uint64_t stop = std::min((tile + 1) * per_tile, product.rows());
        for (uint64_t row = tile * per_tile; row < stop; row += step) {
          tw_error why;
          const uint64_t last = std::min(row + step, stop);
          const int result = (singly ? multiply_single_rows : multiply_rows)(product, row, last, &scratch, &why);
          if (result == TW_OK) continue;
          failure.note(result, why);
          return false;
        }
        if (!is_plain(product, tile * per_tile, stop, in_pairs)) all_plain = false;
        return true;
      });
  if (!all_plain) *plain = 0;
  return ran ? failure.report(error) : no_memory(error);
}

int tw_linear_dense(const char* dtype, const void* weights, uint64_t rows, uint64_t columns, tw_order order,
                    const float* inputs, uint64_t num_inputs, float* outputs, uint32_t threads, tw_parallel parallel,
                    tw_error* error) {
  WeightFormat format = WeightFormat::kBf16;
  const DotKernels* const kernels = find_format(dtype, &format) ? find_dot(order, format) : nullptr;
  if (kernels == nullptr) return no_kernels(error);
  if (columns == 0) return std::fill(outputs, outputs + num_inputs * rows, 0.0f), TW_OK;
  const Inputs arranged(*kernels, inputs, num_inputs, columns);
  if (arranged.values() == nullptr) return no_memory(error);
  const uint64_t row_nbytes = columns * kWeightNbytes;
  const auto rows_in = [&](uint64_t nbytes) {
    return ceil_to(std::max<uint64_t>(1, nbytes / std::max<uint64_t>(row_nbytes, 1)), kernels->num_rows);
  };
  const uint64_t per_tile = rows_in(kDenseTileNbytes), step = rows_in(kDenseStepNbytes);
  const uint8_t* const bytes = static_cast<const uint8_t*>(weights);
  struct Nothing {};
  const bool ran =
      run_tiles<Nothing>(ceil_div(rows, per_tile), Workers(threads, parallel), [&](Nothing&, uint64_t tile) {
        const uint64_t stop = std::min((tile + 1) * per_tile, rows);
        for (uint64_t first = tile * per_tile; first < stop; first += step) {
          const uint64_t last = std::min(first + step, stop), next = std::min(last + step, rows);
          kernels->dot({bytes + first * row_nbytes, last - first, columns}, arranged.values(), num_inputs,
                       arranged.stride(), outputs + first, rows,
                       {bytes + last * row_nbytes, (next - last) * row_nbytes});
        }
        return true;
      });
  return ran ? TW_OK : no_memory(error);
}
