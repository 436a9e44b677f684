// Blocks and a base that another thread writes to while they are decoded, as a mapped file may be: what comes out is a
// status or some content, and nothing is read or written out of bounds, which the sanitizers see. The bytes are
// atomic nowhere, since they are nobody's but the other process's.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/mutation.h"
#include "tests/quick.h"

namespace {

using tests::Bytes;
using tests::Random;
using tests::Source;

const int kTimes = static_cast<int>(tests::times(40, 16));

// A byte is another one for a moment: of the descriptor more often than of the rest, since it is read first.
void scribble(Bytes* bytes, const Bytes& original, Random* random) {
  if (bytes->empty()) return;
  const size_t from = random->one_in(2) && bytes->size() > 32 ? bytes->size() - 32 : 0;
  const size_t at = from + random->below(bytes->size() - from);
  volatile uint8_t* const byte = &(*bytes)[at];
  *byte = static_cast<uint8_t>(random->next());
  for (volatile uint64_t spins = random->below(3000); spins > 0;) spins = spins - 1;
  *byte = original[at];
}

void decode_while_it_changes(const Source& source, uint64_t seed, uint64_t* num_refused) {
  const tests::Opened opened(source.frame);
  const tw_frame& frame = opened.frame;
  tw_error error;
  Bytes data = opened.data, base = tests::repeated(source.base, frame.uncompressed_nbytes);
  std::atomic<bool> writes{false}, stop{false};
  std::thread writer([&] {
    Random random(seed);
    while (!stop.load(std::memory_order_relaxed)) {
      scribble(&data, opened.data, &random);
      if (frame.features != 0) scribble(&base, source.base, &random);
      writes = true;
    }
  });
  while (!writes) std::this_thread::yield();
  for (int i = 0; i < kTimes; ++i) {
    Bytes out(frame.uncompressed_nbytes);
    const int status =
        tw_decode(&frame, opened.header.data(), data.data(), 0, data.size(), base.data(), 0, base.size(), 0, out.size(),
                  out.data(), 1 + i % 2, nullptr, i % 4 == 0 ? TW_VERIFY : 0, nullptr, &error);
    CHECK(status == TW_OK || status == TW_CORRUPT || status == TW_UNSUPPORTED_VERSION);
    *num_refused += status != TW_OK;
  }
  stop = true;
  writer.join();
}

}  // namespace

int main() {
  uint64_t seed = 0, num_refused = 0;
  for (const Source& source : tests::make_sources()) decode_while_it_changes(source, seed++, &num_refused);
  std::printf("%llu of %llu refused\n", static_cast<unsigned long long>(num_refused),
              static_cast<unsigned long long>(seed * kTimes));
  CHECK(num_refused != 0);
}
