// Pages, decoded into a pool in place from frames of one page each.
//
// unpage<L, WHOLE>: a CTA checks a frame, all of it, and then decodes it. A page whose frame is refused is not written.
//   L            Bf16, F16, F8E4M3 or F8E5M2
//   WHOLE        whether a page has a multiple of 256 words
//   frames       u8: the slots, `stride` bytes from one to the next, each at a multiple of 16; a frame begins where its
//                slot does, and bytes may follow it
//   stride, slot_nbytes  u32: of slots; what there is to read of one
//   page_ids     u32: where the page of each slot goes; 32 or 64 bits, with a sign
//   id_nwords    u32: 1 or 2
//   pool         u8: the pages, one behind the other, at a multiple of 16 bytes
//   num_pages    u32
//   page_words   u32: at most 65,536
//   label0 to label2  u32: the dtype's name, with zeros behind it
//   status       int: for each slot, how its frame was read (status.h)
//   Grid (slots, 1, 1), 256 threads, no dynamic shared memory.
//
// Frames are decoded whose blocks are stored, constant, or of the one tier that the encoder of profile `resident`
// takes: 4 bits where the exponent has 8, else 3. Others get kHostOnly. Whatever the bytes say, nothing is read outside
// a slot or written outside its page.
#pragma once
#include "copy.cuh"
#include "header.cuh"
#include "numbers.cuh"
#include "words.cuh"

constexpr u32 kMostRuns = 256;  // of a page
constexpr u32 kMostPieces = kMostRuns * 512 / kPiece;

// Blocks ------------------------------------------------------------------------------------------------------------

enum Coding : u32 { kRefused, kStored, kConstant, kTier };

// A block of a page, and its descriptor.
struct PageBlock {
  const u8* begin;
  u32 nbytes, first, n;  // the number of its first word in the page, and how many there are
  Coding coding;
  u32 lo, escapes;  // of kTier
  u32 word;         // of kConstant

  METHOD const u32* words() const { return (const u32*)begin; }
};

template <class L>
struct OneTier {
  static constexpr int WIDTH = L::EXPONENT_BITS == 8 ? 4 : 3;
  static constexpr u32 VARIANT = WIDTH == 4 ? 0 : 1, DESCRIPTOR = 15;
  static METHOD u32 digits_at(u32 n) { return field_nwords(n, L::REST_BITS); }
  static METHOD u32 bytes_at(u32 n) { return digits_at(n) + field_nwords(n, WIDTH); }
};

// Read a descriptor. What is wrong with it is told, and then the coding is kRefused.
template <class L>
DEV PageBlock open_block(const u8* blocks, HeaderRoom& room, u32 block, u32 page_words) {
  typedef OneTier<L> Tier;
  u32 unit = room.unit_log2(), block_words = room.block_words(), place = room.place(block);
  PageBlock found;
  found.first = block * block_words;
  found.n = words_of(block, page_words, block_words);
  u32 next = found.first + found.n < page_words ? room.place(block + 1) : (u32)(room.data_nbytes() >> unit);
  found.begin = blocks + ((u64)place << unit);
  found.nbytes = (next - place) << unit;
  found.coding = kStored;
  if (room.is_stored(block)) return found;
  uint4 tail = *(const uint4*)(found.begin + found.nbytes - 16);
  u32 tag = tail.w >> 24, kind = tag & 7, rest = tag >> 3 & 3, variant = tag >> 5, extended = tail.w >> 16 & 255;
  found.coding = kRefused;
  if (kind == 0 || rest == 3 || (kind == 7 && (extended == 0 || extended > 5))) {
    refuse(&room.verdict, kOfKind, kUnsupportedVersion);
  } else if (kind == 1 && tag == 1 && found.nbytes == 1u << unit) {
    found.coding = kConstant;
    found.word = tail.w >> (24 - 8 * L::NBYTES) & ((1u << 8 * L::NBYTES) - 1);
  } else if (kind == 7 && extended == 1 && rest == 0 && variant < 6 && room.profile() != kProfileEnec) {
    found.lo = tail.x >> 8 & 255;
    found.escapes = tail.y & 0xffff;
    u32 streams = 4 * Tier::bytes_at(found.n) + ((found.escapes + 3) & ~3u),
        available = found.nbytes - Tier::DESCRIPTOR;
    bool valid = tail.x >> 16 == 0 && tail.y >> 16 == 0 && tail.z == 0 && (tail.w & 0xffff) == 0 &&
                 found.lo + (1u << Tier::WIDTH) - 1 <= 1u << L::EXPONENT_BITS && streams <= available &&
                 available - streams < 1u << unit;
    if (variant != Tier::VARIANT)
      refuse(&room.verdict, kOfKernel, kHostOnly);
    else if (!valid)
      refuse(&room.verdict, kOfBlock, kCorrupt);
    else
      found.coding = kTier;
  } else if (room.profile() == kProfileResident) {
    refuse(&room.verdict, kOfBlock, kCorrupt);
  } else {
    refuse(&room.verdict, kOfKernel, kHostOnly);
  }
  return found;
}

// Escapes -----------------------------------------------------------------------------------------------------------

// Those of a run in a lane: bit 8 * i of number k is that of number i of group lane + 32 * k.
template <int W>
DEV void escapes_in_lane(u32* escapes, const u32* digits, u32 n, u32 run) {
  u32 c = in_run(n, run);
#pragma unroll
  for (u32 k = 0; k < 2; k++) {
    u32 group = (threadIdx.x & 31) + 32 * k;
    escapes[k] = 0;
    if (group * 4 < c) escapes[k] = escapes_of_group(group_of_field(digits, n, W, run, c, group), W, c - group * 4);
  }
}

// Escapes in four words of the leading plane of a full run, which begin with word j.
template <int W>
DEV u32 escapes_in_quad(const u32* digits, u32 n, u32 run, u32 j) {
  u32 words[4], third[4], found = 0;
  load_words<4>(words, digits + run * (8 * leading(W)) + j);
  if (W == 3) load_words<4>(third, digits + (n >> 8) * 16 + run * 8 + (j & 7));
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 pairs = words[i] & words[i] >> 1;
    if (W == 4)
      found += pairs & pairs >> 2 & 0x11111111u;
    else
      found += __popc(pairs & third[i] >> (j >> 3) & 0x55555555u);
  }
  if (W == 4) found = ((found & 0x0f0f0f0fu) + (found >> 4 & 0x0f0f0f0fu)) * kOnes >> 24;
  return found;
}

// How many words of each run escape.
template <int W, bool WHOLE>
DEV void count_escapes_of_runs(const u32* digits, u32 n, u16* counts) {
  constexpr u32 LANES = WHOLE ? 2 * leading(W) : 32;
  u32 runs = num_runs(n), lane = threadIdx.x % LANES;
#pragma unroll 1
  for (u32 first = 0; first < runs; first += kThreads / LANES) {
    u32 run = first + threadIdx.x / LANES, found = 0;
    if (WHOLE) {
      found = escapes_in_quad<W>(digits, n, min(run, runs - 1), 4 * lane);
#pragma unroll
      for (u32 other = 1; other < LANES; other *= 2) found += __shfl_xor_sync(kAll, found, other);
    } else {
      u32 escapes[2] = {0, 0};
      if (run < runs) escapes_in_lane<W>(escapes, digits, n, run);
      found = __reduce_add_sync(kAll, __popc(escapes[0]) + __popc(escapes[1]));
    }
    if (lane == 0 && run < runs) counts[run] = (u16)found;
  }
}

// Counts become sums of those before each, by one warp. The sum of all.
DEV u32 add_up_runs(u16* counts, u32 runs) {
  u32 total = 0;
#pragma unroll 1
  for (u32 first = 0; first < runs; first += 32) {
    u32 run = first + (threadIdx.x & 31), own = run < runs ? counts[run] : 0, sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) sum = add_before<32>(sum, d);
    if (run < runs) counts[run] = (u16)(total + sum - own);
    total += __shfl_sync(kAll, sum, 31);
  }
  return total;
}

// Checks ------------------------------------------------------------------------------------------------------------

DEV bool has_other_than_zeros(const u8* octets, u32 nbytes) {
  bool found = false;
  for (u32 i = threadIdx.x; i < nbytes; i += kThreads) found |= octets[i] != 0;
  return found;
}

// Whether a field's last run, which is short, has bits that belong to no number.
template <int W>
DEV bool has_filler(const u32* field, u32 n) {
  u32 run = n >> 8, c = n & 255, found = 0;
#pragma unroll
  for (int p = 8; p; p >>= 1) {
    if (!(W & p)) continue;
    u32 nbytes = stride_of<false>(c, p) * 4;
    const u8* octets = (const u8*)(field + run * (8 * p));
    if (threadIdx.x < nbytes)
      for (u32 k = 0; k < 8 / p; k++)
        if (k * nbytes + threadIdx.x >= c) found |= octets[threadIdx.x] >> k * p & ((1u << p) - 1);
    field += (n * p + 31) >> 5;
  }
  return found;
}

// What a block must hold besides its checksum and the number of its escapes.
template <class L, bool WHOLE>
DEV bool is_sound(const PageBlock& block) {
  typedef OneTier<L> Tier;
  if (block.coding == kStored)
    return !has_other_than_zeros(block.begin + block.n * L::NBYTES, block.nbytes - block.n * L::NBYTES);
  if (block.coding == kConstant) return !has_other_than_zeros(block.begin, block.nbytes - 1 - L::NBYTES);
  u32 at = 4 * Tier::bytes_at(block.n) + block.escapes;
  const u8* octets = (const u8*)(block.words() + Tier::bytes_at(block.n));
  bool wrong = has_other_than_zeros(block.begin + at, block.nbytes - Tier::DESCRIPTOR - at);
  if (L::EXPONENT_BITS < 8)
    for (u32 i = threadIdx.x; i < block.escapes; i += kThreads) wrong |= octets[i] >> L::EXPONENT_BITS != 0;
  if (!WHOLE && block.n & 255) {
    wrong |= has_filler<L::REST_BITS>(block.words(), block.n);
    wrong |= has_filler<Tier::WIDTH>(block.words() + Tier::digits_at(block.n), block.n);
  }
  return !wrong;
}

// All of a block. What is wrong is told; `before` gets the escapes before each of its runs. A barrier has to follow.
template <class L, bool WHOLE>
DEV void check_block(const PageBlock& block, u32 checksum, HeaderRoom& room, u64* sums, u16* before) {
  typedef OneTier<L> Tier;
  u32 warp = threadIdx.x >> 5;
  bool has_tier = block.coding == kTier;
  hash_sums(block.begin, block.nbytes, kWarps, sums);
  if (has_tier) count_escapes_of_runs<Tier::WIDTH, WHOLE>(block.words() + Tier::digits_at(block.n), block.n, before);
  if (block.coding != kRefused && !is_sound<L, WHOLE>(block)) refuse(&room.verdict, kOfBlock, kCorrupt);
  __syncthreads();
  if (warp == 0) {
    u64 hash = hash_of_sums(sums, hash_padded(block.nbytes), last_of(block.begin, block.nbytes));
    if (threadIdx.x == 0 && (u32)hash != checksum) refuse(&room.verdict, kOfBlockSum, kCorrupt);
  } else if (warp == 1 && has_tier) {
    u32 escapes = add_up_runs(before, num_runs(block.n));
    if (escapes != block.escapes) refuse(&room.verdict, kOfBlock, kCorrupt);
  }
}

// Words -------------------------------------------------------------------------------------------------------------

// The exponent takes its place in a word that has another one.
template <class L>
DEV void patch_word(u8* words, u32 place, u32 exponent) {
  constexpr u32 MASK = ((1u << L::EXPONENT_BITS) - 1) << L::MANTISSA_BITS;
  if (L::NBYTES == 2) {
    u16* word = (u16*)words + place;
    *word = (u16)bits_of(MASK, exponent << L::MANTISSA_BITS, *word);
  } else {
    words[place] = (u8)bits_of(MASK, exponent << L::MANTISSA_BITS, words[place]);
  }
}

// The exponents that escape take their places, run by run, each by a warp.
template <class L>
DEV void patch_escapes(const PageBlock& block, const u16* before, u8* words) {
  typedef OneTier<L> Tier;
  const u32* digits = block.words() + Tier::digits_at(block.n);
  const u8* octets = (const u8*)(block.words() + Tier::bytes_at(block.n));
  u32 lane = threadIdx.x & 31, runs = num_runs(block.n);
#pragma unroll 1
  for (u32 run = threadIdx.x >> 5; run < runs; run += kWarps) {
    u32 rank = before[run], next = run + 1 < runs ? before[run + 1] : block.escapes;
    if (rank == next) continue;
    u32 escapes[2];
    escapes_in_lane<Tier::WIDTH>(escapes, digits, block.n, run);
    u32 counts = __popc(escapes[0]) | __popc(escapes[1]) << 16, sum = counts;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) sum = add_before<32>(sum, d);
    u32 total = __shfl_sync(kAll, sum, 31), earlier = sum - counts;
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
      u32 at = rank + (k ? (total & 0xffff) + (earlier >> 16) : earlier & 0xffff);
      for (u32 left = escapes[k]; left; left &= left - 1)
        patch_word<L>(words, run * 256 + (lane + 32 * k) * 4 + (__ffs(left) - 1) / 8, octets[at++]);
    }
    __syncwarp();
  }
}

// Words of any number, a group by a thread, as if no digit escaped; at a multiple of a word.
template <class L>
DEV void decode_groups(const PageBlock& block, u8* words) {
  typedef OneTier<L> Tier;
  constexpr int LOWER = L::REST_BITS < 8 ? L::REST_BITS : 8, UPPER = L::REST_BITS - LOWER;
  const u32 *rests = block.words(), *digits = rests + Tier::digits_at(block.n);
#pragma unroll 1
  for (u32 first = threadIdx.x * 4; first < block.n; first += kThreads * 4) {
    u32 run = first >> 8, c = in_run(block.n, run), group = first >> 2 & 63, rest[2][1], made[L::NBYTES];
    rest[0][0] = group_of_field(rests, block.n, LOWER, run, c, group);
    if (UPPER) rest[1][0] = group_of_field(rests + field_nwords(block.n, LOWER), block.n, UPPER, run, c, group);
    u32 x = group_of_field(digits, block.n, Tier::WIDTH, run, c, group);
    x &= ~(escapes_of_group(x, Tier::WIDTH, 4) * 15);  // the sum of an escape might carry into the next byte
    join<L, 1>(made, x + block.lo * kOnes, rest[0]);
    for (u32 i = 0; i < min(block.n - first, 4u); i++) {
      if (L::NBYTES == 2) ((u16*)words)[first + i] = (u16)(made[i / 2] >> i % 2 * 16);
      if (L::NBYTES == 1) words[first + i] = (u8)(made[0] >> i * 8);
    }
  }
}

template <class L, bool WHOLE>
DEV void decode_block(const PageBlock& block, const u16* before, u8* words) {
  typedef OneTier<L> Tier;
  u32 nbytes = block.n * L::NBYTES;
  if (block.coding == kStored) {
    copy_bytes(words, block.begin, nbytes, threadIdx.x, kThreads);
  } else if (block.coding == kConstant) {
    u32 pattern = block.word * (L::NBYTES == 1 ? kOnes : 0x00010001u);
    fill_bytes(words, pattern, pattern, nbytes, L::NBYTES, threadIdx.x, kThreads);
  } else {
    if (WHOLE)
      decode_whole<L, Tier::WIDTH, 2>(block.words(), block.n, block.lo, 0, block.n >> 8, words);
    else
      decode_groups<L>(block, words);
    __syncthreads();
    patch_escapes<L>(block, before, words);
  }
}

// Pages -------------------------------------------------------------------------------------------------------------

// Whether the frame is one of a page of this kind, and one that is decoded here.
template <class L>
DEV Status fits(const HeaderRoom& room, u32 slot_nbytes, u32 page_words, u64 label_low, u32 label_high) {
  constexpr u64 LAYOUT = L::NBYTES | L::EXPONENT_BITS << 8 | L::REST_BITS << 16 | 1 << 24 | 1ull << 32;
  bool labelled = room.head[4] == label_low && room.head[5] == label_high && room.bits() == 8 * L::NBYTES;
  if (!labelled || room.content_nbytes() != page_words * L::NBYTES) return kAnotherTensor;
  if (room.features()) return kBaseMismatch;
  if (room.header_nbytes() > slot_nbytes) return kTruncated;
  bool here = room.layout() == LAYOUT && room.index_nbytes != kNotCopied;
  return here ? kDone : kHostOnly;
}

template <class L, bool WHOLE>
GLOBAL void BOUNDS(kThreads, 3)
    unpage(const u8* __restrict__ frames, u32 stride, u32 slot_nbytes, const u32* __restrict__ page_ids, u32 id_nwords,
           u8* __restrict__ pool, u32 num_pages, u32 page_words, u32 label0, u32 label1, u32 label2,
           int* __restrict__ status) {
  SHARED_ARRAY(HeaderRoom, rooms, 1);
  SHARED_ARRAY(u64, sums, 8 * kMostPieces);
  SHARED_ARRAY(u16, before, kMostRuns);
  HeaderRoom& room = rooms[0];
  u32 slot = blockIdx.x, page = page_ids[slot * id_nwords], upper = id_nwords == 2 ? page_ids[slot * 2 + 1] : 0;
  const u8* frame = frames + (u64)slot * stride;
  if (page >= num_pages || upper) {
    if (threadIdx.x == 0) status[slot] = kAnotherTensor;
    return;
  }
  copy_header(frame, slot_nbytes, room);
  __syncthreads();
  check_header_by_warps(room, slot_nbytes);
  if (threadIdx.x == kThreads - 1) {
    Status place = fits<L>(room, slot_nbytes, page_words, pair64(label0, label1), label2);
    if (place != kDone) refuse(&room.verdict, place == kHostOnly ? kOfKernel : kOfPlace, place);
  }
  __syncthreads();
  u32 verdict = room.verdict;
  if (verdict == kNoneFails) {
    __syncthreads();  // all have read the verdict
    check_index(frame, room, slot_nbytes, page_words, L::NBYTES);
    __syncthreads();
    verdict = room.verdict;
  }
  u32 num_blocks = verdict == kNoneFails ? num_blocks_of(page_words, room.block_words()) : 0;
  const u8* blocks = frame + room.header_nbytes();
#pragma unroll 1
  for (u32 block = 0; block < num_blocks; block++) {
    __syncthreads();
    PageBlock found = open_block<L>(blocks, room, block, page_words);
    check_block<L, WHOLE>(found, room.checksum_of(block), room, sums, before + (found.first >> 8));
  }
  __syncthreads();
  verdict = room.verdict;
  if (threadIdx.x == 0) status[slot] = status_of(verdict);
  if (verdict != kNoneFails) return;
#pragma unroll 1
  for (u32 block = 0; block < num_blocks; block++) {
    PageBlock found = open_block<L>(blocks, room, block, page_words);
    decode_block<L, WHOLE>(found, before + (found.first >> 8),
                           pool + ((u64)page * page_words + found.first) * L::NBYTES);
  }
}
