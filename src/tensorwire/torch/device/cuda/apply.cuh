// Relative frames applied to tensors in place: blocks that are same, stored, constant, or of kind sparse.
//
// take_blocks<T, WRITE>: blocks of threads for each leaf of the tensors, in a grid of leaves by some. Takes the blocks of
// the frame that begin in its part of the leaf: checks their checksums, and all that they hold; or applies them.
// hash_leaves<RESULT>: a block of threads for each leaf. The last one of a pair compares the content hash of what the
// tensor holds, and says whether the frame is to be applied; or, behind that, of what has become of it.
//
// They are launched so: open_frames, take_blocks<T, false>, hash_leaves<false>, take_blocks<T, true>, hash_leaves<true>.
// Without checks: open_frames, take_blocks<T, true>.
//   pairs, opened, messages, status  as open_frames has them; it was launched before
//   pair_of  u32: the pair of each leaf
//
// T is u8 or u16 where words have as many bits; u32 for larger ones, of which no block of kind sparse is applied.
// kRelativeThreads threads. take_blocks has kTakeSharedNbytes of shared memory.
//
// With checks nothing is written of a frame that has a block that is not valid.
#pragma once
#include "copy.cuh"
#include "step_tiles.cuh"

constexpr u32 kTakeSharedNbytes = 49152;
static_assert(sizeof(SparseShared) <= kTakeSharedNbytes, "applying.py asks for so much");
static_assert(sizeof(u64) * 8 * kPiecesAtOnce <= sizeof(ClassesShared), "sums of pieces lie where classes do later");

struct Applying {
  const Pair* pair;
  Opened* opened;
  u32 leaf;     // of the pair
  u32 leaf_nbytes;
  u64* message;
};

DEV Applying applying_of(const Pair* pairs, Opened* opened, u64* messages, const u32* pair_of) {
  u32 which = pair_of[blockIdx.x];
  Applying own = {pairs + which, opened + which};
  own.leaf = blockIdx.x - own.pair->first_leaf;
  u64 begin = (u64)own.leaf * kLeafNbytes;
  own.leaf_nbytes = (u32)min(own.pair->nbytes - begin, (u64)kLeafNbytes);
  own.message = messages + 2ull * own.pair->first_leaf + which;
  return own;
}

// Kind sparse, by all threads. False if the block is not valid. WRITE: apply it.
template <class T, bool WRITE>
DEV bool take_sparse(T* words, u32 n, const u8* block, u32 nbytes, const Opened& opened, SparseShared* s) {
  u32 t = threadIdx.x, num_classes = classes_of(tail_of(block, nbytes));
  bool listed = n <= kWholeWords && num_classes <= kWholeClasses;
  Classes<kWholeWords> classes = {&s->classes, num_classes, n};
  if (t < num_classes - 1) {
    u32 shift = 8 * sizeof(T) - 1 - opened.exponent_bits, threshold = threshold_of(block, nbytes, num_classes, t);
    s->classes.least[t] = (threshold << shift) * (sizeof(T) == 1 ? 0x01010101u : 0x00010001u);
  }
  __syncthreads();
  // Warp 0 reads the string meanwhile, and has no words.
  if (listed && num_classes > 1) classes.mark(words, t < 32 ? kWholeWords : t - 32, kRelativeThreads - 32);
  if (t < 32) {
    Listing answer = read_string(block, nbytes, num_classes, n, 1u << (8 * sizeof(T) - 1), listed,
                                 1u << opened.alignment_log2, s);
    if (t == 0) s->answer = answer;
  }
  __syncthreads();
  u32 answer = s->answer;
  if (answer == kInvalid) return false;
  if (answer == kAllListed) {
    classes.add_up();
    for (u32 c = 0; c < num_classes; c++) {
      u32 count = s->count[c];
      if (count && (s->numbers[s->begin[c] + count - 1] & 0x7fffu) >= s->classes.totals[c]) return false;
    }
    if (WRITE) move_words(words, classes, opened.is_ordered, s);
    return true;
  }
  return take_by_tiles<T, WRITE>(words, n, block, nbytes, num_classes, opened.is_ordered, s);
}

// Blocks --------------------------------------------------------------------------------------------------------------

// Kind constant, and stored blocks, by all threads: `nbytes` of words. False, for some threads, if the block has others
// than zeros where they have to be.
template <bool WRITE>
DEV bool take_constant(u8* words, u32 nbytes, const BlockPlace place, u32 word_nbytes) {
  const u8* word = place.bytes + place.nbytes - 1 - word_nbytes;
  u64 pattern = 0;
  bool right = true;
#pragma unroll 1
  for (u32 i = 0; i < 8; i++) pattern |= (u64)word[i & (word_nbytes - 1)] << 8 * i;
#pragma unroll 1
  for (const u8* other = place.bytes + threadIdx.x; other < word; other += kRelativeThreads)
    if (*other) right = false;
  if (WRITE)
    fill_bytes(words, (u32)pattern, (u32)(pattern >> 32), nbytes, word_nbytes, threadIdx.x, kRelativeThreads);
  return right;
}

template <bool WRITE>
DEV bool take_stored(u8* words, u32 nbytes, const BlockPlace place) {
  bool right = true;
#pragma unroll 1
  for (u32 i = nbytes + threadIdx.x; i < place.nbytes; i += kRelativeThreads)
    if (place.bytes[i]) right = false;
  if (WRITE) copy_bytes(words, place.bytes, nbytes, threadIdx.x, kRelativeThreads);
  return right;
}

// A block that is not same, by all threads. False, for some of them, if it is not valid.
template <class T, bool WRITE>
DEV bool take_block(const Pair& pair, const Opened& opened, u32 block, const BlockPlace& place, SparseShared* s) {
  u32 n = words_of(pair, opened, block), nbytes = n * pair.word_nbytes;
  u8* words = (u8*)pair.tensor + block * block_nbytes_of(pair, opened);
  if (place.stored) return take_stored<WRITE>(words, nbytes, place);
  u32 tail = tail_of(place.bytes, place.nbytes);
  if (kind_of(tail) == kKindConstant) return take_constant<WRITE>(words, nbytes, place, pair.word_nbytes);
  if constexpr (sizeof(T) <= 2)
    if (is_sparse(tail)) return take_sparse<T, WRITE>((T*)words, n, place.bytes, place.nbytes, opened, s);
  return true;  // of a kind that the host reads: nothing is written of such a frame
}

// Bytes of a tensor are counted in units here: both leaves and blocks are some.
constexpr u32 kUnitLog2 = 8;

DEV u32 block_units_of(const Applying& own) { return (u32)(block_nbytes_of(*own.pair, *own.opened) >> kUnitLog2); }

// Whether a block's bytes have its checksum, by all threads.
DEV bool has_checksum(const BlockPlace& place, u64* sums, u32* said) {
  u64 hash = hash_by_block<kRelativeWarps>(place.bytes, place.nbytes, sums);
  if (threadIdx.x == 0) *said = (u32)hash == place.checksum;
  __syncthreads();
  bool right = *said;
  __syncthreads();
  return right;
}

// Whether a block that touches the leaf is not same, by all threads.
DEV bool has_changed(const Applying& own, u32* said) {
  if (threadIdx.x == 0) *said = 0;
  __syncthreads();
  u32 units = kLeafNbytes >> kUnitLog2, begin = own.leaf * units, block_units = block_units_of(own);
  u32 end = min((begin + units + block_units - 1) / block_units, own.opened->num_blocks);
  for (u32 block = begin / block_units + threadIdx.x; block < end; block += kRelativeThreads)
    if (place_of(*own.pair, *own.opened, block).nbytes) atomicOr(said, 1u);
  __syncthreads();
  bool changed = *said;
  __syncthreads();
  return changed;
}

// Hash the leaf, and note its hash where that of the content will look for it.
DEV void hash_leaf(const Applying& own, u64* sums) {
  if (own.pair->nbytes == 0) return;
  const u8* leaf = (const u8*)own.pair->tensor + (u64)own.leaf * kLeafNbytes;
  u64 hash = hash_by_block<kRelativeWarps>(leaf, own.leaf_nbytes, sums);
  if (threadIdx.x < 2) own.message[1 + 2 * own.leaf + threadIdx.x] = hash;
}

// Whether this block of threads is the last one of its pair; what the others wrote is there then.
DEV bool is_last(const Applying& own, u32* said) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *said = atomicAdd(&own.opened->left, ~0u) == 1;
  __syncthreads();
  bool last = *said;
  __threadfence();
  return last;
}

// The content hash, by the hashes of leaves: the low half in lane 0, the high one in lane 1.
DEV u64 content_hash_of(const Applying& own, u64* sums) {
  u32 leaves = own.pair->nbytes ? own.pair->leaves : 0;
  return hash_by_block<kRelativeWarps>((const u8*)own.message, 8 + 16 * leaves, sums);
}

// Whether the frame has this hash at `offset` of its header. In warp 0.
DEV bool has_hash(const Pair& pair, u32 offset, u64 hash) {
  u32 lane = threadIdx.x & 31;
  bool other = lane < 2 && ((const u64*)(pair.frame + offset))[lane] != hash;
  return !__any_sync(0xffffffffu, other);
}

constexpr u32 kAtContentHash = 80, kAtBaseHash = 96;

template <class T, bool WRITE>
GLOBAL void BOUNDS(kRelativeThreads, WRITE ? 4 : 3)
    take_blocks(const Pair* pairs, Opened* opened, u64* messages, int* status, const u32* pair_of) {
  SHARED(SparseShared, shared);
  u64* sums = (u64*)shared->classes.masks;
  Applying own = applying_of(pairs, opened, messages, pair_of);
  if (WRITE ? !own.opened->goes : !own.opened->open) return;
  u32 units = (kLeafNbytes >> kUnitLog2) / gridDim.y, begin = (own.leaf * gridDim.y + blockIdx.y) * units;
  u32 block_units = block_units_of(own), block = (begin + block_units - 1) / block_units;
  u32 end = min((begin + units + block_units - 1) / block_units, own.opened->num_blocks);
#pragma unroll 1
  for (; block < end; block++) {
    own = applying_of(pairs, opened, messages, pair_of);  // anew, which takes fewer registers than to keep it
    BlockPlace place = place_of(*own.pair, *own.opened, block);
    if (place.nbytes == 0) continue;
    bool right = WRITE || has_checksum(place, sums, &shared->answer);
    if (right) right = take_block<T, WRITE>(*own.pair, *own.opened, block, place, shared);
    if (!right && WRITE) atomicMax(status + own.pair->number, (int)kCorrupt);
    if (!right && !WRITE) own.opened->wrong = 1;
    __syncthreads();
  }
}

template <bool RESULT>
GLOBAL void BOUNDS(kRelativeThreads, 4)
    hash_leaves(const Pair* pairs, Opened* opened, u64* messages, int* status, const u32* pair_of) {
  SHARED_ARRAY(u64, sums, 8 * kPiecesAtOnce);
  SHARED_ARRAY(u32, said, 1);
  Applying own = applying_of(pairs, opened, messages, pair_of);
  if (RESULT ? !own.opened->goes : !own.opened->open) return;
  if (!RESULT || has_changed(own, said)) hash_leaf(own, sums);
  if (!is_last(own, said)) return;
  u64 hash = content_hash_of(own, sums);
  if (threadIdx.x >= 32) return;
  bool is_result = has_hash(*own.pair, kAtContentHash, hash), is_base = has_hash(*own.pair, kAtBaseHash, hash);
  if (threadIdx.x) return;
  if (RESULT) {
    if (!is_result) status[own.pair->number] = kCorrupt;
    return;
  }
  u32 found = is_result ? kDone : !is_base ? kBaseMismatch : own.opened->wrong ? kCorrupt : own.opened->late;
  status[own.pair->number] = (int)found;
  own.opened->goes = !is_result && !found;
  own.opened->left = own.pair->leaves;
}
