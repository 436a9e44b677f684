// Relative frames applied to tensors in place: blocks that are same, stored, constant, or of kinds sparse
// and dense.
//
// take_blocks<T, WRITE>: blocks of threads for each leaf of the tensors, in a grid of leaves by some. Takes the blocks
// of the frame that begin in its part of the leaf: checks their checksums, and all that they hold; or applies them.
// compare_tensors<RESULT>: a block of threads for each leaf, which hashes it. The last one of a pair compares the
// content hash, and says whether the frame is to be applied; or, behind that, whether the tensor has become what it
// should be.
//
// They are launched so: open_frames, take_blocks<T, false>, compare_tensors<false>, take_blocks<T, true>,
// compare_tensors<true>. Without checks: open_frames, take_blocks<T, true>.
//   pairs, opened, messages, status  as open_frames has them; it was launched before
//   pair_of  u32: the pair of each leaf
//
// T is u8 or u16 where words have as many bits; u32 for larger ones, of which no block of these kinds is applied.
// kRelativeThreads threads. take_blocks has kTakeSharedNbytes of shared memory.
//
// With checks nothing is written of a frame that has a block that is not valid. What frames hold must not change
// between the launches: those behind open_frames go by places that it has checked.
#pragma once
#include "copy.cuh"
#include "labels.cuh"
#include "read_dense.cuh"

constexpr u32 kTakeSharedNbytes = 49152;

// A block of a frame, and the words that it is for. It lies in shared memory: registers are few.
struct TakenBlock {
  u8* words;
  const u8* bytes;
  u32 nbytes, words_nbytes, checksum;
  bool stored;
};

struct TakeShared {
  union {
    u64 sums[8 * kPiecesAtOnce];  // of pieces, for checksums
    SparseShared sparse;
    DenseShared dense;
  };
  TakenBlock block;
  u32 said;             // by a thread to all
  u32 pair, next, end;  // which pair; of its blocks the number of this one, and of the first that is not taken
};
static_assert(sizeof(TakeShared) <= kTakeSharedNbytes, "applying.py asks for so much");

struct Applying {
  const Pair* pair;
  Opened* opened;
  u32 leaf;  // of the pair
  u64* message;
};

DEV Applying applying_of(const Pair* pairs, Opened* opened, u64* messages, const u32* pair_of) {
  u32 which = pair_of[blockIdx.x];
  Applying own = {pairs + which, opened + which};
  own.leaf = blockIdx.x - own.pair->first_leaf;
  own.message = messages + 2ull * own.pair->first_leaf + which;
  return own;
}

// Kind sparse, by all threads. False if the block is not valid. WRITE: apply it.
template <class T, bool WRITE>
DEV bool take_sparse(const Opened& opened, TakeShared* shared) {
  const TakenBlock& block = shared->block;
  SparseShared* s = &shared->sparse;
  u32 t = threadIdx.x;
  {
    u32 n = block.words_nbytes / sizeof(T), classes = classes_of(tail_of(block.bytes, block.nbytes));
    bool listed = n <= kWholeWords && classes <= kWholeClasses;
    if (t < classes - 1) {
      u32 shift = 8 * sizeof(T) - 1 - opened.exponent_bits;
      u32 threshold = threshold_of(block.bytes, block.nbytes, classes, t);
      s->classes.least[t] = (threshold << shift) * (sizeof(T) == 1 ? 0x01010101u : 0x00010001u);
    }
    __syncthreads();
    // Warp 0 reads the string meanwhile, and has no words.
    if (listed && classes > 1) {
      Classes<kWholeWords> whole = {&s->classes, classes, n};
      whole.mark((const T*)block.words, t < 32 ? kWholeWords : t - 32, kRelativeThreads - 32);
    }
    if (t < 32) {
      Listing answer = read_string(block.bytes, block.nbytes, classes, n, 1u << (8 * sizeof(T) - 1), listed,
                                   1u << opened.alignment_log2, s);
      if (t == 0) s->answer = answer;
    }
    __syncthreads();
  }
  u32 n = block.words_nbytes / sizeof(T), classes = classes_of(tail_of(block.bytes, block.nbytes));
  if (s->answer == kInvalid) return false;
  if (s->answer == kByTiles)
    return take_by_tiles<T, WRITE>((T*)block.words, n, block.bytes, block.nbytes, classes, opened.is_ordered, s);
  Classes<kWholeWords> whole = {&s->classes, classes, n};
  whole.add_up();
  for (u32 c = 0; c < classes; c++) {
    u32 count = s->count[c];
    if (count && (s->numbers[s->begin[c] + count - 1] & 0x7fffu) >= s->classes.totals[c]) return false;
  }
  if (WRITE) move_words((T*)block.words, whole, opened.is_ordered, s);
  return true;
}

// Kind dense, by all threads. False if the block is not valid. WRITE: apply it.
template <class T, bool WRITE>
DEV bool take_dense(const Opened& opened, TakeShared* shared) {
  const TakenBlock& block = shared->block;
  DenseShared* s = &shared->dense;
  u32 t = threadIdx.x, n = block.words_nbytes / sizeof(T), classes = classes_of(tail_of(block.bytes, block.nbytes));
  {
    u32 found = 0;
#pragma unroll 1
    for (u32 c = 0; c + 1 < classes; c++) found += t >= threshold_of(block.bytes, block.nbytes, classes, c);
    s->classes[t] = (u8)found;
    if (t < 32) {
      bool right = open_dense(block.bytes, block.nbytes, classes, n, s);
      if (t == 0) s->wrong = !right;
    }
  }
  __syncthreads();
  if (s->wrong) return false;
  if (t / 32 < classes) fill_slots(s, t / 32);
  SymbolReader reader = {((const u32*)block.bytes)[s->states_at + t % 32]};
  bool right = reader.state >= kLowestState;
  u32 exponents = (1u << opened.exponent_bits) - 1, shift = 8 * sizeof(T) - 1 - opened.exponent_bits;
  u32 signs_at = 32 * s->signs_at, low_at = signs_at + (s->num_changed + 31) / 32 * 32;
#pragma unroll 1
  for (u32 first = 0; first < n; first += kTileWords) {
    u32 place = first + t * kWordsOfThread, count = place < n ? min(n - place, kWordsOfThread) : 0;
    u8* words = block.words + place * sizeof(T);
    Sixteen<sizeof(T)> own;
    own.load(words, count);
    u32 tile[4] = {0, 0, 0, 0};
    if (classes > 1 && count)
#pragma unroll
      for (u32 i = 0; i < 16; i++) tile[i / 4] |= (u32)s->classes[own.word(i) >> shift & exponents] << i % 4 * 8;
    s->tile[t] = {tile[0], tile[1], tile[2], tile[3]};
    __syncthreads();
    if (t < 32) reader.read(block.bytes, min(n - first, kTileWords), s);
    __syncthreads();
    uint4 four = s->tile[t];
    tile[0] = four.x, tile[1] = four.y, tile[2] = four.z, tile[3] = four.w;
    u32 total, before = places_of(tile, s, &total);
    Bits signs = {(const u32*)block.bytes, signs_at + (before & 0xffff), block.nbytes / 4 - 2}, low = signs;
    low.at = low_at + (before >> 16);
    signs_at += total & 0xffff, low_at += total >> 16;
    right &= move_sixteen<T>(own, tile, signs, low, opened.is_ordered);
    if (WRITE) own.store(words, count);
  }
  if (t < 32 && !ends_well(block.bytes, signs_at, low_at, 1u << opened.alignment_log2, reader, s)) right = false;
  if (!right) atomicOr(&s->wrong, 1u);
  __syncthreads();
  return !s->wrong;
}

// Blocks --------------------------------------------------------------------------------------------------------------

// Kind constant, and stored blocks, by all threads. False, for some threads, if the block has others than zeros where
// they have to be.
template <bool WRITE>
DEV bool take_constant(const TakenBlock& block, u32 word_nbytes) {
  const u8* word = block.bytes + block.nbytes - 1 - word_nbytes;
  u64 pattern = 0;
  bool right = true;
#pragma unroll 1
  for (u32 i = 0; i < 8; i++) pattern |= (u64)word[i & (word_nbytes - 1)] << 8 * i;
#pragma unroll 1
  for (const u8* other = block.bytes + threadIdx.x; other < word; other += kRelativeThreads)
    if (*other) right = false;
  if (WRITE)
    fill_bytes(block.words, (u32)pattern, (u32)(pattern >> 32), block.words_nbytes, word_nbytes, threadIdx.x,
               kRelativeThreads);
  return right;
}

template <bool WRITE>
DEV bool take_stored(const TakenBlock& block) {
  bool right = true;
#pragma unroll 1
  for (u32 i = block.words_nbytes + threadIdx.x; i < block.nbytes; i += kRelativeThreads)
    if (block.bytes[i]) right = false;
  if (WRITE) copy_bytes(block.words, block.bytes, block.words_nbytes, threadIdx.x, kRelativeThreads);
  return right;
}

// A block that is not same, by all threads. False, for some of them, if it is not valid.
template <class T, bool WRITE>
DEV bool take_block(const Pair& pair, const Opened& opened, TakeShared* shared) {
  const TakenBlock& block = shared->block;
  if (block.stored) return take_stored<WRITE>(block);
  u32 tail = tail_of(block.bytes, block.nbytes);
  if (kind_of(tail) == kKindConstant) return take_constant<WRITE>(block, pair.word_nbytes);
  if constexpr (sizeof(T) <= 2) {
    if (is_of(tail, kExtendedSparse)) return take_sparse<T, WRITE>(opened, shared);
    if (is_of(tail, kExtendedDense)) return take_dense<T, WRITE>(opened, shared);
  }
  return true;  // of a kind that the host reads: nothing is written of such a frame
}

DEV TakenBlock taken_block(const Pair& pair, const Opened& opened, u32 block) {
  BlockPlace place = place_of(pair, opened, block);
  u8* words = (u8*)pair.tensor + block * block_nbytes_of(pair, opened);
  u32 nbytes = words_of(pair, opened, block) * pair.word_nbytes;
  return {words, place.bytes, place.nbytes, nbytes, place.checksum, place.stored};
}

// Bytes of a tensor are counted in units here: both leaves and blocks are some.
constexpr u32 kUnitLog2 = 8;

DEV u32 block_units_of(const Applying& own) { return (u32)(block_nbytes_of(*own.pair, *own.opened) >> kUnitLog2); }

// Whether a block's bytes have its checksum, by all threads.
DEV bool has_checksum(const TakenBlock& block, u64* sums, u32* said) {
  u64 hash = hash_by_block<kRelativeWarps>(block.bytes, block.nbytes, sums);
  if (threadIdx.x == 0) *said = (u32)hash == block.checksum;
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

// Note the hash of the leaf where that of the content will look for it. A barrier has to follow.
DEV void note_hash(const Applying& own, u64* sums) {
  if (own.pair->nbytes == 0) return;
  u64* hash = own.message + 1 + 2 * own.leaf;
  hash_leaf<kRelativeWarps>((const u8*)own.pair->tensor, own.pair->nbytes, own.leaf, sums, hash);
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

// Whether the frame has this hash there in its header. In warp 0.
DEV bool has_hash(const Pair& pair, Field field, u64 hash) {
  u32 lane = threadIdx.x & 31;
  bool other = lane < 2 && ((const u64*)pair.frame)[field + lane] != hash;
  return !__any_sync(0xffffffffu, other);
}

template <class T, bool WRITE>
GLOBAL void BOUNDS(kRelativeThreads, 4)
    take_blocks(const Pair* pairs, Opened* opened, u64* messages, int* status, const u32* pair_of) {
  SHARED(TakeShared, shared);
  Applying own = applying_of(pairs, opened, messages, pair_of);
  if (WRITE ? !own.opened->goes : !own.opened->open) return;
  u32 units = (kLeafNbytes >> kUnitLog2) / gridDim.y, begin = (own.leaf * gridDim.y + blockIdx.y) * units;
  u32 block_units = block_units_of(own), block = (begin + block_units - 1) / block_units;
  if (threadIdx.x == 0) {
    shared->pair = pair_of[blockIdx.x], shared->next = block;
    shared->end = min((begin + units + block_units - 1) / block_units, own.opened->num_blocks);
  }
  __syncthreads();
#pragma unroll 1
  while (shared->next < shared->end) {
    if (threadIdx.x == 0) shared->block = taken_block(pairs[shared->pair], opened[shared->pair], shared->next);
    __syncthreads();
    if (shared->block.nbytes) {
      bool right = WRITE || has_checksum(shared->block, shared->sums, &shared->said);
      if (right) right = take_block<T, WRITE>(pairs[shared->pair], opened[shared->pair], shared);
      if (!right && WRITE) atomicMax(status + pairs[shared->pair].number, (int)kCorrupt);
      if (!right && !WRITE) opened[shared->pair].wrong = 1;
    }
    if (threadIdx.x == 0) shared->next++;
    __syncthreads();
  }
}

template <bool RESULT>
GLOBAL void BOUNDS(kRelativeThreads, 4)
    compare_tensors(const Pair* pairs, Opened* opened, u64* messages, int* status, const u32* pair_of) {
  SHARED_ARRAY(u64, sums, 8 * kPiecesAtOnce);
  SHARED_ARRAY(u32, said, 1);
  Applying own = applying_of(pairs, opened, messages, pair_of);
  if (RESULT ? !own.opened->goes : !own.opened->open) return;
  if (!RESULT || has_changed(own, said)) note_hash(own, sums);
  if (!is_last(own, said)) return;
  u64 hash = content_hash_of(own, sums);
  if (threadIdx.x >= 32) return;
  bool is_result = has_hash(*own.pair, kFieldContentHash, hash), is_base = has_hash(*own.pair, kFieldBaseHash, hash);
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
