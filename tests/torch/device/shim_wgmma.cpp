// Products by warpgroups, and matrices that a warp loads and stores, for the stand-in. What PTX says, as wgmma.cuh has
// it. A product is computed when it is waited for; what it reads must be by then as it was when it was issued. Compiled
// without checks itself.
#include "shim_block.h"

namespace {

constexpr u32 kPoison = 0xffa5a5a5;           // in sums that belong to a product: NaN
std::vector<u64> issued[kMostThreads / 128];  // descriptors of each warpgroup

}  // namespace

void prepare_products() {
  for (auto& each : issued) each.clear();
}

void shim_matrices(u32 operation, u32* words) {
  auto given = exchanged(operation, words, 4);
  u32 lane = current->thread & 31;
  for (u32 i = 0; i < 4; i++)
    words[i] = operation == LOAD_MATRICES ? given[8 * i + lane / 4][lane % 4] : given[lane % 8 * 4 + i][lane / 8];
}

void shim_fence_for_wgmma() { current->fences++; }

void shim_wgmma_fence() {
  current->fenced = true;
  current->written.clear();
}

static void check_fenced(const void* place, u64 nbytes) {
  u64 at = (u64)place;
  for (const Span& each : current->written)
    if (each.begin < at + nbytes && at < each.begin + each.nbytes)
      FAIL("a register of wgmma was written behind wgmma_fence");
}

// The other factor: numbers k of all inputs.
static std::vector<u8> inputs_at(u64 b, u32 nb, bool checks) {
  std::vector<u8> found(nb * 8 * 32);
  u32 start = (u32)(b & 0x3fff) << 4, leading = (u32)(b >> 16 & 0x3fff) << 4, stride = (u32)(b >> 32 & 0x3fff) << 4;
  for (u32 n = 0; n < nb * 8; n++)
    for (u32 half = 0; half < 2; half++) {
      u32 at = start + half * leading + n / 8 * stride + n % 8 * 16;
      if (checks) check_wgmma(at, 16);
      memcpy(&found[n * 32 + half * 16], shim_place.shared + at, 16);
    }
  return found;
}

void shim_wgmma(u32 nb, float* c, const u32* a, u64 b) {
  u32 own[6] = {a[0], a[1], a[2], a[3], (u32)b, (u32)(b >> 32)};
  auto given = exchanged(WGMMA | nb << 8, own, 6);
  Fiber& fiber = *current;
  u32 lane = fiber.thread & 31;
  auto& log = issued[fiber.thread / 128];
  if (launch.threads % 128) FAIL("wgmma with threads of no whole warpgroup");
  if (fiber.issued == log.size()) log.push_back(b);
  if (log[fiber.issued++] != b) FAIL("wgmma with unlike descriptors in a warpgroup");
  if (b >> 62 || b & 0x3fffc000c000c000ull) FAIL("wgmma with a descriptor that is not modelled, %#llx", b);
  if (!fiber.fenced) FAIL("wgmma without wgmma_fence before");
  check_fenced(a, 16);
  Wgmma product = {c, a, {}, {}, nb, fiber.wgmma_group, b, inputs_at(b, nb, lane == 0)};
  memcpy(product.own, a, 16);
  for (u32 t = 0; t < 4; t++) memcpy(product.rows[t], given[lane / 4 * 4 + t], 16);
  bool known = false;
  for (const Sums& sums : fiber.sums) known |= sums.c == c;
  if (!known) {
    check_fenced(c, nb * 16);
    fiber.sums.push_back({c, std::vector<float>(c, c + nb * 4)});
    for (u32 i = 0; i < nb * 4; i++) memcpy(c + i, &kPoison, 4);
  }
  fiber.products.push_back(std::move(product));
}

void shim_wgmma_commit() {
  current->wgmma_group++;
  current->fenced = false;
}

// As shim_mma sums.
static void add(const Wgmma& product, float* sums) {
  double rows[2][16];
  for (u32 k = 0; k < 16; k++)
    for (u32 lower = 0; lower < 2; lower++)
      rows[lower][k] = factor(MMA_BF16, product.rows[k % 8 / 2][lower + k / 8 * 2] >> 16 * (k & 1) & 0xffff);
  for (u32 i = 0; i < product.nb * 4; i++) {
    u32 input = i / 4 * 8 + (current->thread & 3) * 2 + (i & 1);
    double sum = sums[i];
    for (u32 k = 0; k < 16; k++) {
      u16 number;
      memcpy(&number, &product.inputs[input * 32 + k * 2], 2);
      sum += rows[i / 2 & 1][k] * factor(MMA_BF16, number);
    }
    sums[i] = (float)sum;
  }
}

void shim_wgmma_wait(u32 newest) {
  Fiber& fiber = *current;
  std::vector<Wgmma> later;
  for (Wgmma& product : fiber.products) {
    if (product.group + newest >= fiber.wgmma_group) {
      later.push_back(std::move(product));
      continue;
    }
    if (memcmp(product.a, product.own, 16)) FAIL("a register that wgmma reads was written before it was waited for");
    if (inputs_at(product.b, product.nb, false) != product.inputs)
      FAIL("shared memory that wgmma reads was written before it was waited for");
    for (Sums& sums : fiber.sums)
      if (sums.c == product.c) add(product, sums.values.data());
  }
  fiber.products.swap(later);
  std::vector<Sums> held;
  for (Sums& sums : fiber.sums) {
    bool under_way = false;
    for (const Wgmma& product : fiber.products) under_way |= product.c == sums.c;
    for (size_t i = 0; i < sums.values.size(); i++)
      if (memcmp(sums.c + i, &kPoison, 4)) FAIL("sums of wgmma were written before they were waited for");
    if (under_way)
      held.push_back(std::move(sums));
    else
      memcpy(sums.c, sums.values.data(), 4 * sums.values.size());
  }
  fiber.sums.swap(held);
}
