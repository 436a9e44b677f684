// Pages, decoded into a pool in place from frames of one page each.
//
// unpage<L, WHOLE>: a CTA checks a frame, all of it, and then decodes it. A page whose frame is refused is not written.
//   L            Bf16, F16, F8E4M3 or F8E5M2
//   WHOLE        whether each page begins at a multiple of 16 bytes and has whole runs
//   frames       u8: the slots, `stride` bytes from one to the next, each at a multiple of 16; a frame begins where its
//                slot does, and bytes may follow it
//   stride       u32: bytes
//   slot_nbytes  u32: what there is to read of a slot, a multiple of 32
//   page_ids     i32 or i64, as id_nbytes says: where the page of each slot goes
//   pool         u8: num_pages pages, one behind the other; WHOLE: at a multiple of 16 bytes
//   page_words   u32: 1 to 65,536
//   status       int: for each slot, how its frame was read (status.h)
//   Grid (slots, 1, 1), 256 threads, no dynamic shared memory.
//
// Frames are decoded whose blocks are stored, constant, or of the one tier that the encoder of profile `resident`
// takes: 4 bits where the exponent has 8, else 3. Others get kHostOnly. Whatever the bytes say, nothing is read outside
// a slot or written outside its page.
#pragma once
#include "copy.cuh"
#include "header.cuh"
#include "labels.cuh"
#include "numbers.cuh"
#include "words.cuh"

constexpr u32 kMostRuns = 256;  // of a page
constexpr u32 kMostPieces = kMostRuns * 512 / kPiece;

// Blocks ------------------------------------------------------------------------------------------------------------

enum Coding : u32 { kRefused, kStored, kConstant, kTier };

// A block of a page.
struct PageBlock {
  const u8* begin;
  u32 nbytes, n;  // how many words it has

  METHOD const u32* words() const { return (const u32*)begin; }
};

// What its descriptor says, as it is kept from the checks to the words.
struct Coded {
  u32 packed;  // the coding; a constant's word, or the lowest exponent of the tier and how many escape

  METHOD Coding coding() const { return (Coding)(packed & 3); }
  METHOD u32 word() const { return packed >> 8; }
  METHOD u32 lo() const { return packed >> 8 & 255; }
  METHOD u32 escapes() const { return packed >> 16; }
};

template <class L>
struct OneTier {
  static constexpr int WIDTH = L::EXPONENT_BITS == 8 ? 4 : 3;
  static constexpr u32 VARIANT = WIDTH == 4 ? 0 : 1, DESCRIPTOR = 15, STEPS = WIDTH == 4 ? 2 : 1;
  static METHOD u32 digits_at(u32 n) { return field_nwords(n, L::REST_BITS); }
  static METHOD u32 bytes_at(u32 n) { return digits_at(n) + field_nwords(n, WIDTH); }
};

// The block whose first word has that number in the page.
DEV PageBlock block_at(const u8* blocks, const HeaderRoom& room, u32 number, u32 first, u32 page_words) {
  u32 unit = room.unit_log2(), place = room.entry(number).place(), n = min(page_words - first, room.block_words());
  u32 next = first + n < page_words ? room.entry(number + 1).place() : (u32)(room.data_nbytes() >> unit);
  return {blocks + ((u64)place << unit), (next - place) << unit, n};
}

// Read a descriptor. What is wrong with it goes to `fault`; then the coding is kRefused.
template <class L>
DEV Coded open_block(const PageBlock& block, const HeaderRoom& room, u32& fault) {
  typedef OneTier<L> Tier;
  uint4 tail = *(const uint4*)(block.begin + block.nbytes - 16);
  u32 tag = tail.w >> 24, unit = 1u << room.unit_log2();
  bool of_tiers = is_of(tail.w, kExtendedCascade2), one_tier = of_tiers && tag == tag_of(kKindExtended, Tier::VARIANT);
  bool constant = tag == tag_of(kKindConstant) && block.nbytes == unit;
  if (one_tier && room.profile() != kProfileEnec) {
    u32 lo = tail.x >> 8 & 255, escapes = tail.y & 0xffff, others = tail.x >> 16 | tail.y >> 16 | tail.z;
    u32 available = block.nbytes - Tier::DESCRIPTOR, streams = 4 * Tier::bytes_at(block.n) + ((escapes + 3) & ~3u);
    bool named = lo + (1u << Tier::WIDTH) - 1 <= 1u << L::EXPONENT_BITS;
    if (named && !(others | (tail.w & 0xffff)) && available >= streams && available - streams < unit)
      return {kTier | lo << 8 | escapes << 16};
    fault = min(fault, fault_of(kOfBlock, kCorrupt));
  } else if (constant) {
    return {kConstant | (tail.w >> (24 - 8 * L::NBYTES) & ((1u << 8 * L::NBYTES) - 1)) << 8};
  } else if (is_unknown(tail.w)) {
    fault = min(fault, fault_of(kOfKind, kUnsupportedVersion));
  } else {
    bool on_host =
        room.profile() != kProfileResident || (of_tiers && !rest_coding_of(tail.w) && tag >> 5 < 6 && !one_tier);
    fault = min(fault, on_host ? fault_of(kOfKernel, kHostOnly) : fault_of(kOfBlock, kCorrupt));
  }
  return {kRefused};
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

// Escapes in eight words of the leading plane of a full run, which begin with word j.
template <int W>
DEV u32 escapes_in_words(const u32* digits, u32 n, u32 run, u32 j) {
  u32 words[8], third[8], found = 0;
  load_words<4>(words, digits + run * (8 * leading(W)) + j);
  load_words<4>(words + 4, digits + run * (8 * leading(W)) + j + 4);
  if (W == 3) load_words<4>(third, digits + (n >> 8) * 16 + run * 8);
  if (W == 3) load_words<4>(third + 4, digits + (n >> 8) * 16 + run * 8 + 4);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 pairs = words[i] & words[i] >> 1;
    if (W == 4)
      found += pairs & pairs >> 2 & 0x11111111u;  // up to 8 in each of 4 bits
    else
      found += __popc(pairs & third[i] >> (j >> 3) & 0x55555555u);
  }
  if (W == 4) found = ((found & 0x0f0f0f0fu) + (found >> 4 & 0x0f0f0f0fu)) * kOnes >> 24;
  return found;
}

// How many words of each run escape.
template <int W, bool WHOLE>
DEV void count_escapes_of_runs(const u32* digits, u32 n, u16* counts) {
  constexpr u32 LANES = WHOLE ? leading(W) : 32;
  u32 runs = num_runs(n), lane = threadIdx.x % LANES;
#pragma unroll 1
  for (u32 first = 0; first < runs; first += kThreads / LANES) {
    u32 run = first + threadIdx.x / LANES, found = 0;
    if (WHOLE) {
      found = escapes_in_words<W>(digits, n, min(run, runs - 1), 8 * lane);
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
DEV bool is_sound(const PageBlock& block, Coded coded) {
  typedef OneTier<L> Tier;
  u32 begin = 0, end = block.nbytes;  // of the zeros
  bool wrong = false;
  if (coded.coding() == kStored) {
    begin = block.n * L::NBYTES;
  } else if (coded.coding() == kConstant) {
    end -= 1 + L::NBYTES;
  } else {
    const u32 *digits = block.words() + Tier::digits_at(block.n), *bytes = block.words() + Tier::bytes_at(block.n);
    begin = 4 * Tier::bytes_at(block.n) + coded.escapes(), end -= Tier::DESCRIPTOR;
    if (L::EXPONENT_BITS < 8)
      for (u32 i = threadIdx.x; i < coded.escapes(); i += kThreads)
        wrong |= ((const u8*)bytes)[i] >> L::EXPONENT_BITS != 0;
    if (!WHOLE && block.n & 255)
      wrong |= has_filler<L::REST_BITS>(block.words(), block.n) || has_filler<Tier::WIDTH>(digits, block.n);
  }
#pragma unroll 1
  for (u32 i = begin + threadIdx.x; i < end; i += kThreads) wrong |= block.begin[i] != 0;
  return !wrong;
}

// What is wrong with a block. What its descriptor says takes the place of its checksum, and `before` gets the escapes
// before each run. A barrier stands before and behind it.
template <class L, bool WHOLE>
DEV u32 block_fault(const PageBlock& block, u32 number, HeaderRoom& room, u64* sums, u16* before) {
  typedef OneTier<L> Tier;
  u32 warp = threadIdx.x >> 5, fault = kNoneFails;
  Coded coded = {kStored};
  if (!room.entry(number).is_stored()) coded = open_block<L>(block, room, fault);
  hash_sums(block.begin, block.nbytes, kWarps, sums);
  if (coded.coding() == kTier)
    count_escapes_of_runs<Tier::WIDTH, WHOLE>(block.words() + Tier::digits_at(block.n), block.n, before);
  if (coded.coding() != kRefused) fault = min(fault, fault_if(!is_sound<L, WHOLE>(block, coded), kOfBlock));
  __syncthreads();
  if (warp == 1 && coded.coding() == kTier)
    fault = min(fault, fault_if(add_up_runs(before, num_runs(block.n)) != coded.escapes(), kOfBlock));
  if (warp == 0) {
    u64 hash = hash_of_sums(sums, hash_padded(block.nbytes), last_of(block.begin, block.nbytes));
    if (threadIdx.x == 0) {
      fault = min(fault, fault_if((u32)hash != room.checksum_of(number), kOfBlockSum));
      room.checksum_of(number) = coded.packed;
    }
  }
  return fault;
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

// The exponents that escape from a run take their places, by a warp. `rank` is how many escape before it.
template <class L>
DEV void patch_run(const PageBlock& block, u32 run, u32 rank, u8* words) {
  typedef OneTier<L> Tier;
  const u8* octets = (const u8*)(block.words() + Tier::bytes_at(block.n));
  u32 escapes[2];
  escapes_in_lane<Tier::WIDTH>(escapes, block.words() + Tier::digits_at(block.n), block.n, run);
  u32 counts = __popc(escapes[0]) | __popc(escapes[1]) << 16, sum = counts;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) sum = add_before<32>(sum, d);
  u32 total = __shfl_sync(kAll, sum, 31), earlier = sum - counts;
#pragma unroll
  for (u32 k = 0; k < 2; k++) {
    u32 at = rank + (k ? (total & 0xffff) + (earlier >> 16) : earlier & 0xffff);
#pragma unroll 1
    for (u32 left = escapes[k]; left; left &= left - 1) {
      u32 place = run * 256 + ((threadIdx.x & 31) + 32 * k) * 4 + (__ffs(left) - 1) / 8;
      patch_word<L>(words, place, octets[at++]);
    }
  }
  __syncwarp();
}

// The same of all runs: warps take every so many of those that have escapes.
template <class L>
DEV void patch_runs(const PageBlock& block, u32 escapes, const u16* before, u8* words) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, runs = num_runs(block.n), runs_of_warp = (runs + 7) / kWarps;
#pragma unroll 1
  for (u32 first = 0; first < runs_of_warp; first += 32) {
    u32 run = (first + lane) * kWarps + warp, rank = run < runs ? before[run] : escapes;
    u32 next = run + 1 < runs ? before[run + 1] : escapes;
#pragma unroll 1
    for (u32 left = __ballot_sync(kAll, rank != next); left; left &= left - 1) {
      u32 own = __ffs(left) - 1;
      patch_run<L>(block, (first + own) * kWarps + warp, __shfl_sync(kAll, rank, own), words);
    }
  }
}

// Words of any number, a group by a thread, as if no digit escaped; at a multiple of a word.
template <class L>
DEV void decode_groups(const PageBlock& block, u32 lo, u8* words) {
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
    join<L, 1>(made, x + lo * kOnes, rest[0]);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      if (first + i >= block.n) continue;
      if (L::NBYTES == 2) ((u16*)words)[first + i] = (u16)(made[i / 2 % L::NBYTES] >> i % 2 * 16);
      if (L::NBYTES == 1) words[first + i] = (u8)(made[0] >> i * 8);
    }
  }
}

template <class L, bool WHOLE>
DEV void decode_block(const PageBlock& block, Coded coded, const u16* before, u8* words) {
  typedef OneTier<L> Tier;
  u32 nbytes = block.n * L::NBYTES;
  if (coded.coding() == kStored) {
    if (WHOLE)
      copy_pieces<uint4>(words, block.begin, nbytes, threadIdx.x, kThreads);
    else
      copy_bytes(words, block.begin, nbytes, threadIdx.x, kThreads);
  } else if (coded.coding() == kConstant) {
    u32 pattern = coded.word() * (L::NBYTES == 1 ? kOnes : 0x00010001u);
    if (WHOLE)
      for (u32 i = threadIdx.x; i < nbytes / 16; i += kThreads)
        ((uint4*)words)[i] = {pattern, pattern, pattern, pattern};
    else
      fill_bytes(words, pattern, pattern, nbytes, L::NBYTES, threadIdx.x, kThreads);
  } else {
    if (WHOLE)
      decode_whole<L, Tier::WIDTH, Tier::STEPS>(block.words(), block.n, coded.lo(), 0, block.n >> 8, words);
    else
      decode_groups<L>(block, coded.lo(), words);
    __syncthreads();
    patch_runs<L>(block, coded.escapes(), before, words);
  }
}

// Pages -------------------------------------------------------------------------------------------------------------

template <class L, bool WHOLE>
GLOBAL void BOUNDS(kThreads, (!WHOLE                  ? 2
                              : L::EXPONENT_BITS == 8 ? 4
                                                      : 3))
    unpage(const u8* __restrict__ frames, u32 stride, u32 slot_nbytes, const u8* __restrict__ page_ids, u32 id_nbytes,
           u8* pool, u32 num_pages, u32 page_words, int* status) {
  SHARED_ARRAY(HeaderRoom, rooms, 1);
  SHARED_ARRAY(u64, sums, 8 * kMostPieces);
  SHARED_ARRAY(u16, before, kMostRuns);
  HeaderRoom& room = rooms[0];
  u32 slot = blockIdx.x;
  u64 page = page_id(page_ids, slot, id_nbytes);
  const u8* frame = frames + (u64)slot * stride;
  if (page >= num_pages) {
    if (threadIdx.x == 0) status[slot] = kAnotherTensor;
    return;
  }
  copy_header(frame, slot_nbytes, room);
  __syncthreads();
  Place place = {{dtype_name<L>(), 0}, layout_bytes<L>(), page_words, L::NBYTES};
  tell(header_fault(room, slot_nbytes, place), room);
  __syncthreads();
  u32 verdict = room.verdict;
  __syncthreads();
  if (verdict == kNoneFails) tell(index_fault(frame, room, slot_nbytes, place), room);
  __syncthreads();
  verdict = room.verdict;
  const u8* blocks = frame + room.header_nbytes();
  u32 words_to_check = verdict == kNoneFails ? page_words : 0;
#pragma unroll 1
  for (u32 number = 0, first = 0; first < words_to_check; number++, first += room.block_words()) {
    PageBlock block = block_at(blocks, room, number, first, page_words);
    __syncthreads();
    tell(block_fault<L, WHOLE>(block, number, room, sums, before + (first >> 8)), room);
  }
  __syncthreads();
  verdict = room.verdict;
  if (threadIdx.x == 0) status[slot] = status_of(verdict);
  if (verdict != kNoneFails) return;
  u8* words = pool + page * page_words * L::NBYTES;
#pragma unroll 1
  for (u32 number = 0, first = 0; first < page_words; number++, first += room.block_words()) {
    PageBlock block = block_at(blocks, room, number, first, page_words);
    decode_block<L, WHOLE>(block, {room.checksum_of(number)}, before + (first >> 8), words + first * L::NBYTES);
  }
}
