// Products with a compressed weight: blocks are decoded into a thread's cache and multiplied there.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "frame/decode_block.h"
#include "frame/layout.h"
#include "frame/workers.h"
#include "linear/dot.h"

namespace tw {
namespace {

// Blocks that a thread takes at a time; while one is multiplied, the next one's bytes are on their way.
constexpr uint64_t kBlocksAtOnce = 8;
constexpr uint64_t kDenseTileNbytes = 1 << 18;

bool find_format(const char* dtype, WeightFormat* format) {
  constexpr struct {
    const char* name;
    WeightFormat format = WeightFormat::kBf16;
  } kFormats[] = {{"BF16", WeightFormat::kBf16}, {"F16", WeightFormat::kF16}, {"F32", WeightFormat::kF32}};
  for (const auto& row : kFormats) {
    if (std::strcmp(row.name, dtype) == 0) return *format = row.format, true;
  }
  return false;
}

// Inputs as the kernels want them.
class Inputs {
 public:
  Inputs(WeightFormat format, const float* inputs, uint64_t count, uint64_t columns)
      : stride_(ceil_to(columns, kDotLanes)), values_(new (std::nothrow) float[count * stride_]) {
    if (values_ == nullptr) return;
    for (uint64_t m = 0; m < count; ++m) {
      arrange_input(format, inputs + m * columns, columns, values_.get() + m * stride_);
    }
  }
  const float* values() const { return values_.get(); }
  uint64_t stride() const { return stride_; }

 private:
  uint64_t stride_;
  std::unique_ptr<float[]> values_;
};

struct Product {
  const tw_frame& frame;
  const Index& index;
  const uint8_t* data;
  uint64_t data_nbytes;
  WeightFormat format = WeightFormat::kBf16;
  const Inputs& inputs;
  uint64_t num_inputs;
  float* outputs;
  bool verify;

  uint64_t rows() const { return frame.shape[0]; }
  uint64_t columns() const { return frame.shape[1]; }
  // Whole rows that are decoded together: those of a block, or one that is longer.
  uint64_t rows_at_once() const { return std::max<uint64_t>(1, frame.block_words / columns()); }
};

struct RowScratch {
  DecodeScratch block;
  alignas(64) uint8_t last[kMaxBlockWords * kMaxWordNbytes + kSlack];
  std::vector<uint8_t> words;
};

class FirstError {
 public:
  void note(int status, const tw_error& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_ == TW_OK || error.block < error_.block) status_ = status, error_ = error;
  }
  int report(tw_error* error) const {
    if (status_ != TW_OK && error != nullptr) *error = error_;
    return status_;
  }

 private:
  std::mutex mutex_;
  int status_ = TW_OK;
  tw_error error_{};
};

int decode_one(const Product& product, uint64_t block, uint8_t* words, RowScratch* scratch, tw_error* error) {
  const tw_frame& frame = product.frame;
  const uint64_t start = product.index.start(block), end = product.index.start(block + 1), length = end - start;
  const uint8_t* bytes = product.data + start;
  if (end + kSlack > product.data_nbytes)
    bytes = static_cast<const uint8_t*>(std::memcpy(scratch->last, bytes, length));
  if (product.verify) {
    const uint32_t checksum = static_cast<uint32_t>(hash128(bytes, length).low),
                   expected = product.index.entry(block).checksum;
    if (checksum != expected) {
      return fail(error, TW_CORRUPT, block, frame.header_nbytes + start,
                  "expected checksum %08x of the block, got %08x", expected, checksum);
    }
  }
  const uint64_t next = block + 1 < frame.num_blocks ? product.index.start(block + 2) - end : 0;
  const BlockOutput output = {words, false, product.data + end, next};
  const Fault fault =
      decode_block(spec_of(frame, nullptr), bytes, length, num_block_words(frame, block), output, &scratch->block);
  if (!fault) return TW_OK;
  return fail(error, static_cast<tw_status>(fault.status), block, frame.header_nbytes + start, "%s", fault.message);
}

// Rows [first, last): their blocks side by side, then their products.
int multiply_rows(const Product& product, uint64_t first, uint64_t last, RowScratch* scratch, tw_error* error) {
  const tw_frame& frame = product.frame;
  const uint64_t start = first * product.columns(), stop = last * product.columns();
  const uint64_t first_block = start / frame.block_words, last_block = ceil_div(stop, frame.block_words);
  const uint64_t nbytes = (last_block - first_block) * block_nbytes(frame) + kSlack;
  try {
    if (scratch->words.size() < nbytes) scratch->words.resize(nbytes);
  } catch (const std::exception&) {
    return fail(error, TW_NO_MEMORY, first_block, 0, "no memory for %llu bytes of rows", as_ull(nbytes));
  }
  for (uint64_t block = first_block; block < last_block; ++block) {
    uint8_t* const words = scratch->words.data() + (block - first_block) * block_nbytes(frame);
    const int status = decode_one(product, block, words, scratch, error);
    if (status != TW_OK) return status;
  }
  const uint8_t* weights = scratch->words.data() + (start - first_block * frame.block_words) * frame.word_nbytes;
  dot_kernels.dot(product.format, weights, last - first, product.columns(), product.inputs.values(), product.num_inputs,
                  product.inputs.stride(), product.outputs + first, product.rows());
  return TW_OK;
}

int check_frame(const tw_frame& frame, uint64_t data_nbytes, WeightFormat* format, tw_error* error) {
  if (is_relative(frame) || frame.ndim != 2 || !find_format(frame.dtype, format)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0,
                "expected a plain frame of two dimensions, BF16, F16 or F32");
  }
  if (data_nbytes < frame.data_nbytes) {
    return fail(error, TW_TRUNCATED, TW_NO_BLOCK, frame.header_nbytes + data_nbytes,
                "expected %llu bytes of blocks, got %llu", as_ull(frame.data_nbytes), as_ull(data_nbytes));
  }
  return TW_OK;
}

int no_memory(tw_error* error) {
  return fail(error, TW_NO_MEMORY, TW_NO_BLOCK, 0, "no memory for a product's scratch");
}

}  // namespace
}  // namespace tw

using namespace tw;

int tw_linear(const tw_frame* frame, const void* header, const void* data, uint64_t data_nbytes, const float* inputs,
              uint64_t num_inputs, float* outputs, uint32_t threads, tw_parallel parallel, uint32_t flags,
              tw_error* error) {
  WeightFormat format = WeightFormat::kBf16;
  const int status = check_frame(*frame, data_nbytes, &format, error);
  if (status != TW_OK) return status;
  if (frame->num_words == 0) return std::fill(outputs, outputs + num_inputs * frame->shape[0], 0.0f), TW_OK;
  const Index index(*frame, header);
  const Inputs arranged(format, inputs, num_inputs, frame->shape[1]);
  if (arranged.values() == nullptr) return no_memory(error);
  const Product product = {*frame,     index,   static_cast<const uint8_t*>(data), data_nbytes, format, arranged,
                           num_inputs, outputs, (flags & TW_VERIFY) != 0};
  const uint64_t step = product.rows_at_once(), per_tile = step * kBlocksAtOnce;
  FirstError failure;
  const bool ran = run_tiles<RowScratch>(
      ceil_div(product.rows(), per_tile), Workers(threads, parallel), [&](RowScratch& scratch, uint64_t tile) {
        const uint64_t stop = std::min((tile + 1) * per_tile, product.rows());
        for (uint64_t row = tile * per_tile; row < stop; row += step) {
          tw_error why;
          const int result = multiply_rows(product, row, std::min(row + step, stop), &scratch, &why);
          if (result == TW_OK) continue;
          failure.note(result, why);
          return false;
        }
        return true;
      });
  return ran ? failure.report(error) : no_memory(error);
}

int tw_linear_dense(const char* dtype, const void* weights, uint64_t rows, uint64_t columns, const float* inputs,
                    uint64_t num_inputs, float* outputs, uint32_t threads, tw_parallel parallel, tw_error* error) {
  WeightFormat format = WeightFormat::kBf16;
  if (!find_format(dtype, &format)) {
    return fail(error, TW_INVALID_ARGUMENT, TW_NO_BLOCK, 0, "expected weights of BF16, F16 or F32");
  }
  const Inputs arranged(format, inputs, num_inputs, columns);
  if (arranged.values() == nullptr) return no_memory(error);
  const uint64_t row_nbytes = columns * weight_nbytes(format);
  const uint64_t per_tile = std::max<uint64_t>(1, kDenseTileNbytes / std::max<uint64_t>(row_nbytes, 1));
  struct Nothing {};
  const bool ran =
      run_tiles<Nothing>(ceil_div(rows, per_tile), Workers(threads, parallel), [&](Nothing&, uint64_t tile) {
        const uint64_t first = tile * per_tile, last = std::min(first + per_tile, rows);
        dot_kernels.dot(format, static_cast<const uint8_t*>(weights) + first * row_nbytes, last - first, columns,
                        arranged.values(), num_inputs, arranged.stride(), outputs + first, rows);
        return true;
      });
  return ran ? TW_OK : no_memory(error);
}
