// Mutated frames whose checksums are right: `test_mutations [COUNT [FIRST]]`, of 5,000 cases by default. Frames of all
// layouts and profiles, plain and relative, are damaged in header, index, extensions, blocks, descriptors, padding and
// base, or read as if they had another layout. The decoder may refuse the result, by a status of the format; or decode
// it, then in every way the same. Case i depends on i alone. Prints how many were refused and a hash of all results,
// which must be the same on every target (cmake/on_every_target.cmake). `make sanitize` runs a million of them under
// the sanitizers.
//
// `test_mutations COUNT FIRST write` writes the cases instead, for another decoder (tests/mutants.py): the sizes of
// frame and base, 8 bytes each, then these two.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "common/hash.h"
#include "tests/mutation.h"
#include "tests/tails.h"
#include "tests/target.h"

namespace {

using tests::Bytes;
using tests::check_refusal;
using tests::Random;
using tests::Source;

// What came of a frame: the status, the block that was at fault, the content.
struct Result {
  int status;
  uint64_t block;
  Bytes content;
};

struct Mutant : tests::Opened {
  Bytes base;

  using Opened::Opened;
  Result decode(uint64_t start, uint64_t stop, uint32_t threads, uint32_t flags, Bytes out) const {
    tw_error error;
    const int status = tw_decode(&frame, header.data(), data.data(), 0, data.size(), base.data(), 0, base.size(), start,
                                 stop, out.data(), threads, nullptr, flags, nullptr, &error);
    if (status == TW_OK) return {status, 0, std::move(out)};
    check_refusal(status, error);
    return {status, error.block, {}};
  }
  // The output in the place of the base.
  Result decode_in_place() const {
    tw_error error;
    Bytes memory = base;
    const int status = tw_decode(&frame, header.data(), data.data(), 0, data.size(), memory.data(), 0, memory.size(), 0,
                                 memory.size(), memory.data(), 1, nullptr, 0, nullptr, &error);
    if (status == TW_OK) return {status, 0, std::move(memory)};
    check_refusal(status, error);
    return {status, error.block, {}};
  }
};

// What decodes, decodes the same in every way.
void check_all_ways(const Mutant& opened, const Result& result, Random* random) {
  const uint64_t nbytes = opened.frame.uncompressed_nbytes;
  CHECK(opened.decode(0, nbytes, 2, 0, Bytes(nbytes)).content == result.content);
  if (opened.frame.features != 0) CHECK(opened.decode_in_place().content == result.content);
  const uint64_t start = nbytes == 0 ? 0 : random->below(nbytes), stop = start + random->below(nbytes - start + 1);
  const Result part = opened.decode(start, stop, 1, TW_VERIFY, Bytes(stop - start));
  CHECK(part.status == TW_OK);
  CHECK(std::equal(part.content.begin(), part.content.end(), result.content.begin() + static_cast<ptrdiff_t>(start)));
  tw_error error;
  std::vector<tw_block_info> infos(opened.frame.num_blocks);
  CHECK(tw_block_infos(&opened.frame, opened.header.data(), opened.data.data(), 0, opened.data.size(), 0, infos.size(),
                       infos.data(), &error) == TW_OK);
  uint64_t num_words = 0;
  for (const tw_block_info& info : infos) num_words += info.num_words;
  CHECK(num_words == opened.frame.num_words);
}

// What a device's host reads of the tails: of descriptors it refuses nothing that the decoder does not.
void check_on_device(const Mutant& opened, const Result& result) {
  if (opened.frame.features != 0) return;
  const tests::OnDevice found(opened.frame, opened.header.data(), opened.data.data());
  if (found.status == TW_OK) return;
  check_refusal(found.status, found.error);
  CHECK(result.status != TW_OK && found.error.block >= result.block);
}

Result run(const Source& mutant, Random* random) {
  Mutant opened(mutant.frame);
  if (opened.status != TW_OK) {
    check_refusal(opened.status, opened.error);
    return {opened.status, opened.error.block, {}};
  }
  const uint64_t nbytes = opened.frame.uncompressed_nbytes;
  // A caller compares sizes before it allocates: a plain frame has its blocks, a relative one a base of its size.
  if (nbytes > tests::kMaxContent) return {TW_LIMIT_EXCEEDED, 0, {}};
  opened.base = tests::repeated(mutant.base, nbytes);
  Result result = opened.decode(0, nbytes, 1, TW_VERIFY, Bytes(nbytes));
  if (result.status == TW_OK) check_all_ways(opened, result, random);
  if (result.status != TW_TRUNCATED) check_on_device(opened, result);
  return result;
}

// As much of a base as the frame claims; none if no caller would have so much.
Bytes whole_base(const Source& mutant) {
  tw_frame frame;
  const bool decodes = tw_decode_header(mutant.frame.data(), mutant.frame.size(), &frame, nullptr) == TW_OK;
  if (!decodes || frame.features == 0 || frame.uncompressed_nbytes > tests::kMaxContent) return {};
  return tests::repeated(mutant.base, frame.uncompressed_nbytes);
}

void write(const Source& mutant) {
  const Bytes base = whole_base(mutant);
  const uint64_t sizes[] = {mutant.frame.size(), base.size()};
  CHECK(std::fwrite(sizes, sizeof sizes, 1, stdout) == 1);
  for (const Bytes* bytes : {&mutant.frame, &base}) {
    CHECK(bytes->empty() || std::fwrite(bytes->data(), bytes->size(), 1, stdout) == 1);
  }
}

uint64_t number(const char* text) { return std::strtoull(text, nullptr, 10); }

}  // namespace

int main(int argc, char** argv) {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  const uint64_t count = argc > 1 ? number(argv[1]) : 5000, first = argc > 2 ? number(argv[2]) : 0;
  const bool writes = argc > 3;
  const std::vector<Source> sources = tests::make_sources();
  const std::string kinds = tests::kinds_of(sources);
  CHECK(kinds == "kinds 0 1 2 255 3 4 5 6 7.1 7.2 7.3 7.4 7.5 7.6");  // all that there are
  for (const Source& source : sources) CHECK(tests::FrameParts(source.frame).assemble() == source.frame);
  std::map<int, uint64_t> by_status;
  uint64_t digest = 0;
  for (uint64_t i = first; i < first + count; ++i) {
    if (i % 100000 == 0 && i != first) std::fprintf(stderr, "%llu mutations\n", static_cast<unsigned long long>(i));
    Random random(i);
    const Source mutant = tests::mutate(sources, i % sources.size(), &random);
    if (writes) {
      write(mutant);
      continue;
    }
    const Result result = run(mutant, &random);
    ++by_status[result.status];
    const uint64_t content = tw::hash128(result.content.data(), result.content.size()).low;
    const uint64_t all[] = {digest, static_cast<uint64_t>(result.status), result.block, content};
    digest = tw::hash128(reinterpret_cast<const uint8_t*>(all), sizeof all).low;
  }
  if (writes) return 0;
  std::printf("%llu mutations of %zu frames (%s): %llu decoded", static_cast<unsigned long long>(count), sources.size(),
              kinds.c_str(), static_cast<unsigned long long>(by_status[TW_OK]));
  const char* const names[] = {"", "corrupt", "truncated", "of another version", "beyond a limit"};
  for (int status = TW_CORRUPT; status <= TW_LIMIT_EXCEEDED; ++status) {
    std::printf(", %llu %s", static_cast<unsigned long long>(by_status[status]), names[status]);
  }
  std::printf("; results %016llx\n", static_cast<unsigned long long>(digest));
}
