// H on every target this machine has, whole and in chunks, against values of another implementation.
#undef NDEBUG
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <vector>

#include "common/cpu.h"
#include "common/hash.h"

namespace tw {
extern const HashKernels kHashScalar, kHashAvx2, kHashAvx512, kHashNeon;

namespace {

using Bytes = std::vector<uint8_t>;

// message(n)[i] = the highest of the 4 bytes of (i + 1) * 2654435761. The values are those of the Python package xxhash
// 4.1.0 (xxHash 0.8.4): xxh3_128_intdigest(m + bytes(-len(m) % 256 if m else 256)), the low 64 bits first.
struct Known {
  size_t nbytes;
  Hash128 hash;
};
const Known kKnown[] = {
    {0, {0xa68dfbb1d75c6e8d, 0xbb039d71e9630a91}},     {1, {0x77d1fb90af023ae4, 0x119a63285ad1da76}},
    {63, {0x6c56e056c9f2a4ce, 0x633ac290fccad976}},    {64, {0x23db58a5286cff28, 0xff89b8fe40073969}},
    {255, {0xf779a035c1c50edd, 0x6937a559edcdc509}},   {256, {0x76a9ac333596068e, 0xacb3af206332f9db}},
    {257, {0x43e747e19d44cec5, 0x3f8d6c08d205ea1c}},   {1023, {0x4da07c8f808d3470, 0x6d9ac9afc4e321ee}},
    {1024, {0x5370f57883c8f088, 0x984ac94ef312f7c0}},  {1025, {0xd699d62199e961cb, 0x20812ca7db051203}},
    {1280, {0xa96a14b3ff35f5be, 0x6665653164879e63}},  {4096, {0x1ad884a03e1d5930, 0x8b6ff3bf9b8a2fe5}},
    {10000, {0xf16604b789de9e0d, 0x4e3739f07e6d0fac}}, {131072, {0x8e4a92984a8fd444, 0x8ccef9cb53b71eef}},
};

Bytes message(size_t nbytes) {
  Bytes bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<uint8_t>(static_cast<uint32_t>(i + 1) * 2654435761u >> 24);
  return bytes;
}

bool operator==(const Hash128& a, const Hash128& b) { return a.low == b.low && a.high == b.high; }

// In chunks of `chunk` bytes and, between them, of none.
Hash128 hash_in_chunks(const HashKernels& kernels, const Bytes& bytes, size_t chunk) {
  Hasher hasher(kernels);
  for (size_t i = 0; i < bytes.size(); i += chunk) {
    hasher.update(bytes.data() + i, std::min(chunk, bytes.size() - i));
    hasher.update(nullptr, 0);
  }
  return hasher.finish();
}

void test_known_values(const HashKernels& kernels) {
  for (const Known& known : kKnown) {
    const Bytes bytes = message(known.nbytes);
    for (size_t chunk : {1, 3, 64, 100, 255, 256, 257, 1000, 1024, 5000, 1 << 20}) {
      assert(hash_in_chunks(kernels, bytes, chunk) == known.hash);
    }
  }
}

// Every length up to three blocks of XXH3 and a bit: padded by us or by hand, from an odd address, all the same.
void test_padding(const HashKernels& kernels) {
  for (size_t nbytes = 0; nbytes < 3 * 1024 + 300; ++nbytes) {
    const Bytes bytes = message(nbytes);
    Bytes padded = bytes;
    padded.resize(std::max<size_t>(256, (nbytes + 255) / 256 * 256));
    const Hash128 hash = hash_in_chunks(kHashScalar, padded, padded.size());
    assert(hash_in_chunks(kernels, bytes, 1 << 20) == hash);
    assert(hash_in_chunks(kernels, bytes, nbytes / 3 + 1) == hash);
    Bytes shifted(1);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    Hasher hasher(kernels);
    hasher.update(shifted.data() + 1, nbytes);
    assert(hasher.finish() == hash);
  }
}

// A changed bit anywhere changes both halves.
void test_changes(const HashKernels& kernels) {
  Bytes bytes = message(2000);
  const Hash128 hash = hash_in_chunks(kernels, bytes, bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const Hash128 other = hash_in_chunks(kernels, bytes, bytes.size());
    assert(other.low != hash.low && other.high != hash.high);
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

void test_default() {
  for (const Known& known : kKnown) {
    const Bytes bytes = message(known.nbytes);
    assert(hash128(bytes.data(), bytes.size()) == known.hash);
  }
}

std::vector<const HashKernels*> targets() {
  std::vector<const HashKernels*> all = {&kHashScalar};
#if defined(__x86_64__)
  if (cpu_target() >= Target::kAvx2) all.push_back(&kHashAvx2);
  if (cpu_target() >= Target::kAvx512) all.push_back(&kHashAvx512);
#elif defined(__aarch64__)
  all.push_back(&kHashNeon);
#endif
  return all;
}

}  // namespace
}  // namespace tw

int main() {
  for (const tw::HashKernels* kernels : tw::targets()) {
    tw::test_known_values(*kernels);
    tw::test_padding(*kernels);
    tw::test_changes(*kernels);
  }
  tw::test_default();
  std::puts("ok");
}
