// Products with compressed weights against those with the decoded ones, bit for bit: every kind of block of plain
// frames, rows that are whole in blocks and rows that are cut, all numbers of threads and pools of them. Then frames
// that are damaged, cut off or not weights, which end as they do in tw_decode, and memory that runs out.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "linear/dot.h"
#include "tests/allocations.h"
#include "tests/mutation.h"
#include "tests/quick.h"
#include "tests/target.h"

namespace {

using tests::Bytes;
using tests::FrameParts;
using tests::Random;
using tests::Source;
using tests::Type;

constexpr uint64_t kNumInputs = 2;
// Compact has larger blocks and more of them, or kind entropy would not pay.
constexpr uint32_t kBlockWords = 512, kCompactFactor = 32, kCompactRowsFactor = 8;
// Bits across exponent and mantissa, for kind plain.
constexpr auto kAcross = static_cast<tests::Content>(tests::kCounter + 1);
constexpr tests::Content kContents[] = {tests::kWeights,  tests::kZeros, tests::kNarrow, tests::kModal,
                                        tests::kConstant, tests::kNoise, kAcross};

struct Shape {
  uint64_t rows, columns;
};
// Blocks have several whole rows, or several of which some are cut; rows have whole blocks, or blocks of which some are
// cut, amid runs or between them; a row is one element.
constexpr Shape kShapes[] = {{40, 128}, {41, 100}, {3, 3072}, {3, 2000}, {23, 768}, {1700, 1}};

const Type& type_named(const char* name) {
  for (const Type& type : tests::kTypes) {
    if (std::strcmp(type.name, name) == 0) return type;
  }
  std::abort();
}

Bytes make_frame(const Type& type, uint32_t profile, tests::Content content, const std::vector<uint64_t>& shape) {
  Random random(1000 * profile + content);
  uint64_t numel = 1;
  for (const uint64_t size : shape) numel *= size;
  Bytes bytes = tests::make_words(type, content, numel, &random);
  for (uint64_t i = 0; i < numel && content == kAcross; ++i) {
    const uint64_t value = random.below(256) << (type.rest_bits - 3);
    std::memcpy(&bytes[i * type.nbytes], &value, type.nbytes);
  }
  tw_frame frame = tests::new_frame(type.name, type.bits, shape, profile,
                                    tests::BlockWords(kBlockWords * (profile == TW_COMPACT ? kCompactFactor : 1)));
  return tests::compress(&frame, bytes);
}

// Pools: threads; and what OpenMP has where it is asked for threads within threads, the caller alone.
std::atomic<int> num_pool_calls{0};

void on_threads(void (*work)(void*), void* argument, unsigned threads, unsigned) {
  ++num_pool_calls;
  std::vector<std::thread> others;
  for (unsigned t = 1; t < threads; ++t) others.emplace_back(work, argument);
  work(argument);
  for (std::thread& other : others) other.join();
}

void on_caller(void (*work)(void*), void* argument, unsigned, unsigned) { work(argument); }

tw_order order;

struct Result {
  int status;
  tw_error error;
  std::vector<float> outputs;
  uint32_t plain = 1;
};

struct Weights : tests::Opened {
  std::vector<float> inputs;

  explicit Weights(const Bytes& bytes) : Opened(bytes) {
    CHECK(status == TW_OK);
    Random random(bytes.size());
    if (frame.ndim > 1) inputs.resize(kNumInputs * frame.shape[1]);
    for (float& value : inputs) value = static_cast<float>(random.below(255)) / 64 - 2;
  }

  Result linear(uint32_t threads, tw_parallel parallel, uint32_t flags, uint64_t num_inputs = kNumInputs,
                uint8_t* checked = nullptr) const {
    Result result = {TW_OK, {}, std::vector<float>(num_inputs * frame.shape[0] + 1, 7.0f)};
    result.status = tw_linear(&frame, header.data(), data.data(), data.size(), order, inputs.data(), num_inputs,
                              result.outputs.data(), &result.plain, threads, parallel, flags, checked, &result.error);
    CHECK(result.outputs.back() == 7.0f);
    const bool in_pairs = order == TW_PAIRS_512 || order == TW_PAIRS_1024;
    bool is_plain = true;
    for (const float output : result.outputs) {
      is_plain &= output == output && (!in_pairs || output == 0 || std::fabs(output) >= std::ldexp(1.0f, -103));
    }
    CHECK(result.status != TW_OK || (result.plain == 1) == is_plain);
    return result;
  }

  // The same by way of the decoded tensor.
  Result expected(uint64_t num_inputs = kNumInputs) const {
    Result result = {TW_OK, {}, std::vector<float>(num_inputs * frame.shape[0] + 1, 7.0f)};
    Bytes words(frame.uncompressed_nbytes);
    result.status = tw_decode(&frame, header.data(), data.data(), 0, data.size(), nullptr, 0, 0, 0, words.size(),
                              words.data(), 1, nullptr, TW_VERIFY, nullptr, &result.error);
    if (result.status != TW_OK) return result;
    CHECK(tw_linear_dense(frame.dtype, words.data(), frame.shape[0], frame.shape[1], order, inputs.data(), num_inputs,
                          result.outputs.data(), 1, nullptr, &result.error) == TW_OK);
    return result;
  }
};

// The same bits, or both NaN: which one depends on the order of a processor's operands.
bool same_numbers(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(a[i] != a[i] && b[i] != b[i])) return false;
  }
  return true;
}

bool same(const Result& a, const Result& b) {
  if (a.status != b.status) return false;
  if (a.status != TW_OK) return a.error.block == b.error.block && std::strcmp(a.error.message, b.error.message) == 0;
  return same_numbers(a.outputs, b.outputs, a.outputs.size());
}

void check_all_ways(const Weights& opened) {
  const Result expected = opened.expected(), of_one = opened.expected(1);
  CHECK(expected.status == TW_OK);
  for (uint32_t threads = 1; threads <= 4; ++threads) {
    CHECK(same(opened.linear(threads, &on_threads, 0, 1), of_one));
    for (const tw_parallel parallel : {static_cast<tw_parallel>(nullptr), &on_threads, &on_caller}) {
      CHECK(same(opened.linear(threads, parallel, threads % 2 * TW_VERIFY), expected));
    }
  }
}

// Damage that leaves checksums right, of one byte or several, and such that does not.
void check_damage(const Bytes& bytes, uint64_t seed) {
  Random random(seed);
  FrameParts parts(bytes);
  if (parts.data.empty()) return;
  tests::damage_bytes(parts.data.data(), parts.data.size(), bytes, &random);
  const Weights opened(parts.assemble());
  const uint64_t num_inputs = 1 + seed % kNumInputs;
  const Result expected = opened.expected(num_inputs);
  CHECK(same(opened.linear(1, nullptr, TW_VERIFY, num_inputs), expected));
  const Result shared = opened.linear(2 + seed % 3, seed % 2 == 0 ? &on_threads : nullptr, 0, num_inputs);
  CHECK((shared.status == TW_OK) == (expected.status == TW_OK));  // of several blocks any may be met first
  Weights flipped(bytes);
  flipped.data[random.below(flipped.data.size())] ^= static_cast<uint8_t>(1u << random.below(8));
  const Result refused = flipped.linear(2, nullptr, TW_VERIFY);
  CHECK(refused.status == TW_CORRUPT && same(refused, flipped.expected()));
  flipped.linear(2, nullptr, 0);  // anything may come out, but nothing may go out of bounds
}

// Blocks that have their bits are not checked again. One input and several take different ways.
void check_checked(const Bytes& bytes) {
  const Weights opened(bytes);
  const uint64_t num_blocks = opened.frame.num_blocks;
  for (const uint64_t num_inputs : {uint64_t{1}, kNumInputs}) {
    Bytes checked((num_blocks + 7) / 8);
    opened.linear(4, nullptr, 0, num_inputs, checked.data());
    CHECK(checked == Bytes(checked.size()));
    const Result result = opened.linear(4, nullptr, TW_VERIFY, num_inputs, checked.data());
    CHECK(same(result, opened.expected(num_inputs)));
    for (uint64_t k = 0; k < 8 * checked.size(); ++k) CHECK((checked[k / 8] >> k % 8 & 1) == (k < num_blocks));
    Weights damaged = opened;
    damaged.data[damaged.data.size() / 2] ^= 4;
    const Result passed = damaged.linear(1, nullptr, TW_VERIFY, num_inputs, checked.data());
    CHECK(passed.status == TW_OK || std::strstr(passed.error.message, "checksum") == nullptr);
    Bytes none(checked.size());
    const Result refused = damaged.linear(1, nullptr, TW_VERIFY, num_inputs, none.data());
    CHECK(refused.status == TW_CORRUPT && std::strstr(refused.error.message, "checksum") != nullptr);
    CHECK((none[refused.error.block / 8] >> refused.error.block % 8 & 1) == 0);
  }
}

// Another shape of as many elements, which a header may well claim.
void check_reshaped(const Bytes& bytes, uint64_t rows, uint64_t columns) {
  FrameParts parts(bytes);
  tw::store(&parts.fixed[tw::kAtShape], rows);
  tw::store(&parts.fixed[tw::kAtShape + 8], columns);
  check_all_ways(Weights(parts.assemble()));
}

void check_truncation(const Bytes& bytes) {
  const Weights whole(bytes);
  for (size_t nbytes = 0; nbytes < whole.data.size(); nbytes += 1 + nbytes / 7) {
    Weights opened = whole;
    opened.data.resize(nbytes);
    opened.data.shrink_to_fit();
    CHECK(opened.linear(2, nullptr, TW_VERIFY).status == TW_TRUNCATED);
  }
}

void check_refused(const Weights& opened) {
  const Result result = opened.linear(1, nullptr, 0);
  CHECK(result.status == TW_INVALID_ARGUMENT && result.error.message[0] != '\0');
}

void check_not_weights() {
  check_refused(Weights(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {40, 128, 1})));
  check_refused(Weights(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {5120})));
  check_refused(Weights(make_frame(type_named("F8_E4M3"), TW_FAST, tests::kWeights, {40, 128})));
  check_refused(Weights(make_frame(type_named("F32"), TW_FAST, tests::kWeights, {40, 128})));
  check_refused(Weights(tests::make_source(type_named("BF16"), TW_FAST, tests::kWeights, tests::kFewSteps).frame));
  const float input = 1;
  float output = 0;
  tw_error error;
  CHECK(tw_linear_dense("I8", &input, 1, 1, order, &input, 1, &output, 1, nullptr, &error) == TW_INVALID_ARGUMENT);
  CHECK(tw_linear_orders("I8") == 0 && tw_linear_orders("F32") == 0);
}

// No rows, no columns, no inputs.
void check_nothing() {
  check_all_ways(Weights(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {0, 128})));
  const Weights opened(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {9, 0}));
  const Result result = opened.linear(2, nullptr, TW_VERIFY);
  CHECK(result.status == TW_OK);
  for (size_t i = 0; i < 9 * kNumInputs; ++i) CHECK(result.outputs[i] == 0.0f);
  check_all_ways(opened);
  uint32_t plain;
  const Weights some(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {40, 128}));
  CHECK(tw_linear(&some.frame, some.header.data(), some.data.data(), some.data.size(), order, nullptr, 0, nullptr,
                  &plain, 2, nullptr, TW_VERIFY, nullptr, nullptr) == TW_OK);
}

// Whichever allocation fails: the result is right, or there is none.
void check_memory() {
  const Weights opened(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {400, 128}));
  const Result expected = opened.expected();
  std::vector<float> outputs(expected.outputs.size());
  int num_right = 0;
  for (const tw_parallel parallel : {static_cast<tw_parallel>(nullptr), &on_caller}) {
    for (int allocations = 0; allocations < 40; ++allocations) {
      tw_error error;
      uint32_t plain;
      tests::allocations_left = allocations;
      const int status =
          tw_linear(&opened.frame, opened.header.data(), opened.data.data(), opened.data.size(), order,
                    opened.inputs.data(), kNumInputs, outputs.data(), &plain, 4, parallel, 0, nullptr, &error);
      tests::allocations_left = -1;
      CHECK(status == TW_OK || status == TW_NO_MEMORY);
      CHECK(status == TW_OK || allocations < 30);
      if (status != TW_OK) continue;
      CHECK(same_numbers(outputs, expected.outputs, outputs.size() - 1));
      ++num_right;
    }
  }
  CHECK(num_right >= 20);
}

// What blocks there are matters to the first order as to all others, of which each takes a third of them. A quick
// run has half as many: of the first order, each of them with one of both dtypes.
void check_order(bool is_first) {
  std::vector<Source> sources;
  for (const char* name : {"BF16", "F16"}) {
    if ((tw_linear_orders(name) >> order & 1) == 0) continue;
    for (uint32_t profile = TW_ENEC; profile <= TW_RESIDENT; ++profile) {
      for (const tests::Content content : kContents) {
        for (size_t s = 0; s < std::size(kShapes); ++s) {
          if (!is_first && (s + content + profile) % 3 != 0) continue;
          if (!tests::runs(s + content + profile + (is_first ? name[0] == 'F' : 0), is_first ? 2 : 6)) continue;
          const Shape& shape = kShapes[s];
          const uint64_t rows = shape.rows * (profile == TW_COMPACT ? kCompactRowsFactor : 1);
          const Bytes frame = make_frame(type_named(name), profile, content, {rows, shape.columns});
          check_all_ways(Weights(frame));
          for (uint64_t i = 0; i < tests::times(5, 3); ++i) check_damage(frame, 5 * sources.size() + i);
          sources.push_back({frame, {}});
        }
      }
    }
  }
  CHECK(num_pool_calls > 100);
  CHECK(tests::kinds_of(sources) == "kinds 0 1 2 3 4 5 6 7.1 7.2");  // all of plain frames
  const Bytes frame = make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {40, 128});
  check_reshaped(frame, 128, 40);
  check_reshaped(frame, 1, 5120);
  check_reshaped(frame, 5120, 1);
  check_truncation(frame);
  check_not_weights();
  check_nothing();
  check_memory();
  check_checked(make_frame(type_named("BF16"), TW_FAST, tests::kWeights, {400, 128}));
  check_checked(make_frame(type_named("BF16"), TW_COMPACT, tests::kWeights, {400, 130}));
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  bool is_first = true;
  for (const tw_order each : tw::kOrders) {
    if ((tw_linear_orders("BF16") >> each & 1) == 0) continue;
    order = each;
    check_order(is_first);
    is_first = false;
  }
  std::printf("ok\n");
  return 0;
}
