// Elements that differ from a base, one by one, against a loop over bytes; buffers have their exact sizes, so that a
// sanitizer sees a step past them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/bits.h"
#include "include/tensorwire.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/target.h"

namespace {

using Bytes = std::vector<uint8_t>;

struct Changes {
  std::vector<uint64_t> indices;
  Bytes values;
};

Changes expected_changes(size_t each, const Bytes& content, const Bytes* base, uint64_t first) {
  Changes changes;
  for (size_t i = 0; i < content.size() / each; ++i) {
    const uint8_t* const element = content.data() + i * each;
    if (base != nullptr && std::memcmp(element, base->data() + i * each, each) == 0) continue;
    changes.indices.push_back(first + i);
    changes.values.insert(changes.values.end(), element, element + each);
  }
  return changes;
}

void check(uint32_t each, uint32_t index_nbytes, const Bytes& content, const Bytes* base, uint64_t first) {
  const Changes expected = expected_changes(each, content, base, first);
  const uint64_t count = content.size() / each;
  Bytes indices(count * index_nbytes), values(count * each);
  uint64_t found = 0;
  tw_error error;
  CHECK(tw_changes(each, content.data(), base == nullptr ? nullptr : base->data(), count, first, index_nbytes,
                   indices.data(), values.data(), &found, &error) == TW_OK);
  CHECK(found == expected.indices.size());
  for (uint64_t i = 0; i < found; ++i) {
    const uint8_t* const at = indices.data() + i * index_nbytes;
    CHECK((index_nbytes == 4 ? tw::load<uint32_t>(at) : tw::load<uint64_t>(at)) == expected.indices[i]);
  }
  CHECK(std::equal(expected.values.begin(), expected.values.end(), values.begin()));
}

void check_every_share(uint32_t each, size_t count, tests::Random* random) {
  for (const unsigned one_in : {1u, 2u, 50u, 5000u}) {
    Bytes base(count * each);
    for (uint8_t& byte : base) byte = static_cast<uint8_t>(random->next());
    Bytes content = base;
    for (size_t i = 0; i < count; ++i) {
      if (random->one_in(one_in)) content[i * each + random->below(each)] ^= uint8_t(1 + random->below(255));
    }
    if (count != 0) content[content.size() - 1] ^= 0x80;
    check(each, 4, content, &base, 0);
    check(each, 8, content, &base, (uint64_t{1} << 31) + 5);
    check(each, 4, content, nullptr, 7);
    check(each, 4, base, &base, 0);
  }
}

void check_refused(uint32_t each, uint32_t index_nbytes) {
  tw_error error;
  uint64_t found = 0;
  uint8_t memory[64] = {};
  CHECK(tw_changes(each, memory, memory, 1, 0, index_nbytes, memory, memory, &found, &error) == TW_INVALID_ARGUMENT);
  CHECK(error.message[0] != '\0');
}

}  // namespace

int main() {
  if (!tests::forced_target_runs()) return tests::kSkipped;
  tests::Random random(1);
  for (const uint32_t each : {1u, 2u, 4u, 8u}) {
    for (const size_t count : {0u, 1u, 2u, 63u, 64u, 65u, 2047u, 2048u, 2049u, 4095u, 4096u, 4097u, 10000u}) {
      check_every_share(each, count, &random);
    }
  }
  check_refused(3, 4);
  check_refused(16, 4);
  check_refused(0, 4);
  check_refused(2, 2);
  return 0;
}
