/* tensorwire: lossless compression of tensors. The C ABI of the codec; docs/format.md specifies the frames.
 *
 * Every function is thread-safe: there is no global state but the CPU target, chosen once. No function keeps a pointer
 * after it returns. Threads that a call starts end before it returns. Unless said otherwise a function returns a
 * tw_status and, on failure, fills `error` when that is not NULL. Nothing is written past the sizes given; what a
 * failed call has left in its output is unspecified. */
#ifndef TENSORWIRE_H
#define TENSORWIRE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_API __attribute__((visibility("default")))

#define TW_MAX_NDIM 64
#define TW_FIXED_HEADER_NBYTES 128
#define TW_LEAF_NBYTES 131072u /* content under one leaf hash */

typedef enum tw_status {
  TW_OK = 0,
  TW_CORRUPT = 1,
  TW_TRUNCATED = 2,
  TW_UNSUPPORTED_VERSION = 3,
  TW_LIMIT_EXCEEDED = 4,
  TW_INVALID_ARGUMENT = 5,
  TW_NO_MEMORY = 6,
  TW_BUFFER_TOO_SMALL = 7
} tw_status;

typedef enum tw_profile { TW_ENEC = 0, TW_FAST = 1, TW_COMPACT = 2, TW_RESIDENT = 3 } tw_profile;

#define TW_NO_BLOCK UINT64_MAX

typedef struct tw_error {
  uint64_t block;    /* TW_NO_BLOCK where no block is to blame */
  uint64_t byte;     /* offset from the start of the frame */
  char message[240]; /* what was expected and what came; no position, no newline */
} tw_error;

typedef enum tw_split { TW_WHOLE = 0, TW_FLOAT = 1, TW_UNSIGNED = 2, TW_SIGNED = 3 } tw_split;

/* How long words are, and how they are split: docs/format.md, "Layouts". */
typedef struct tw_layout {
  uint8_t word_nbytes;
  uint8_t exponent_bits;
  uint8_t rest_bits;
  uint8_t split;   /* tw_split */
  uint8_t ordered; /* 0 or 1 */
} tw_layout;

/* What a frame may have besides what its tensor asks for; all zero is the usual form. */
typedef struct tw_form {
  tw_layout layout;           /* word_nbytes 0: that of the dtype in the format's table, or bytes */
  uint32_t block_words;       /* 0: whole rows where their length allows */
  uint32_t block_alignment;   /* log2 of bytes, 5 to 12; 0: 5 */
  uint32_t frame_alignment;   /* log2 of bytes, up to 21; 0: that of blocks */
  uint32_t padding_nbytes;    /* least number of zeros behind the blocks, up to 2^21 */
  uint64_t extensions_nbytes; /* of the records behind the index, a multiple of 8 */
} tw_form;

/* All that the header of a frame says, and the sizes that follow from it. */
typedef struct tw_frame {
  uint64_t shape[TW_MAX_NDIM];
  uint64_t uncompressed_nbytes;
  uint64_t num_words;
  uint64_t num_blocks;
  uint64_t extensions_nbytes; /* behind the index, up to the blocks */
  uint64_t header_nbytes;     /* all before the blocks */
  uint64_t data_nbytes;       /* blocks; 0 in a frame that is still to be encoded */
  uint64_t frame_nbytes;      /* the whole frame; 0 likewise */
  uint8_t content_hash[16];
  uint8_t base_hash[16];   /* of a relative frame: content hash of its base; else zeros */
  uint32_t padding_nbytes; /* behind the blocks; the least in a frame that is still to be encoded */
  uint32_t bits;           /* per element */
  uint32_t block_words;
  uint32_t ndim;
  uint32_t profile;         /* tw_profile */
  uint32_t features;        /* required_features of the header: TW_BASE_RELATIVE or 0 */
  uint32_t block_alignment; /* log2 of bytes */
  uint32_t frame_alignment; /* likewise */
  tw_layout layout;
  char dtype[20]; /* NUL-terminated */
} tw_frame;

#define TW_BASE_RELATIVE 1u /* feature: the frame is relative to a base */
#define TW_VERIFY 1u        /* flag: check the checksum of a block before it is parsed */
#define TW_KNOWN_BASE 2u    /* flag: frame->base_hash is that of the base, which is not hashed */
#define TW_REPLACE_BASE 4u  /* flag: the base, which is writable, becomes the content */

TW_API const char* tw_version(void);
/* "scalar", "avx2", "avx512" or "neon": what runs here. TENSORWIRE_CPU in the environment forces one; a name that is
 * unknown or that this CPU lacks is ignored in favour of the best. */
TW_API const char* tw_cpu_target(void);

/* A pool of threads of the caller's: runs work(argument) once on each of `threads` threads, the calling one among them,
 * and returns when all are done; `flags` is 0. This is GOMP_parallel of the GNU OpenMP runtime: a program that has a
 * team of threads there, as PyTorch has, lends it, instead of threads of ours beside it. */
typedef void (*tw_parallel)(void (*work)(void* argument), void* argument, unsigned threads, unsigned flags);

/* Encoding ------------------------------------------------------------------------------------------------------- */

/* Describe the frame of a tensor. `bits` may be 0 for a dtype of the format's table. `form` may be NULL. base_hash (16
 * bytes) makes a relative frame; NULL a plain one. */
TW_API int tw_frame_init(tw_frame* frame, const char* dtype, uint32_t bits, const uint64_t* shape, uint32_t ndim,
                         uint32_t profile, const tw_form* form, const void* base_hash, tw_error* error);
/* The most bytes that a whole frame can take. */
TW_API uint64_t tw_frame_bound(const tw_frame* frame);
/* The most bytes that the blocks of `nbytes` of content, from the start of a block on, can take. */
TW_API uint64_t tw_data_bound(const tw_frame* frame, uint64_t nbytes);

/* The whole frame in one call, without extensions; sets the sizes and content_hash. dst may be smaller than
 * tw_frame_bound: TW_BUFFER_TOO_SMALL if the frame does not fit, which is found at the first blocks that do not. `base`
 * is the base of a relative frame, as many bytes as src; NULL for a plain one. Unless TW_KNOWN_BASE is set, the call
 * hashes it and sets frame->base_hash, whatever tw_frame_init was given. src and base are read once, as by
 * tw_encode_blocks. With TW_REPLACE_BASE the base holds afterwards what the frame does, whatever others write to src
 * meanwhile; after an error its content is unspecified. */
TW_API int tw_compress(tw_frame* frame, const void* src, uint64_t src_nbytes, const void* base, void* dst,
                       uint64_t dst_nbytes, uint32_t threads, uint32_t flags, tw_error* error);

/* The leaf hashes of content that comes in chunks. */
typedef struct tw_leaves {
  void* hashes;       /* 16 bytes per TW_LEAF_NBYTES of the whole content */
  uint64_t state[48]; /* of the leaf that has begun: kept for the next chunk */
} tw_leaves;

/* A chunk of content: bytes [first_byte, first_byte + src_nbytes). Both are multiples of a block's size, block_words *
 * word_nbytes, but src_nbytes may also reach the end. Chunks come in order. `base` has the same bytes of the base, or
 * is NULL. The blocks go to dst, one behind the other, and `*written` is their size. `data_offset` is the size of all
 * blocks before. `index` (8 * num_blocks bytes, apart from dst) is that of the whole frame; the call fills in the
 * blocks of the chunk. `leaves` gets the leaves of the content that end in the chunk, `base_leaves`, if it is not NULL,
 * those of the base. src and base are read once: what others write there meanwhile is in the frame and in the hashes,
 * or in neither. */
TW_API int tw_encode_blocks(const tw_frame* frame, uint64_t first_byte, const void* src, uint64_t src_nbytes,
                            const void* base, uint64_t data_offset, void* dst, uint64_t dst_nbytes, uint64_t* written,
                            void* index, tw_leaves* leaves, tw_leaves* base_leaves, uint32_t threads, tw_error* error);
/* The header (at most frame->header_nbytes bytes to dst, which become fewer where no block differs from the base) once
 * all blocks are encoded; completes *frame as tw_compress does. `leaves` are the hashes of the content's, `extensions`
 * the records: frame->extensions_nbytes bytes, or NULL. frame->padding_nbytes zeros belong behind the blocks. */
TW_API int tw_encode_header(tw_frame* frame, uint64_t data_nbytes, const void* index, const void* leaves,
                            const void* extensions, void* dst, tw_error* error);

/* Decoding ------------------------------------------------------------------------------------------------------- */

/* Check the fixed part and the shape of a header, of which src may have more: all that *frame says can be trusted then.
 * TW_TRUNCATED if they are not there. */
TW_API int tw_decode_fixed(const void* src, uint64_t src_nbytes, tw_frame* frame, tw_error* error);
/* The same, then the index and the extensions, which must lie whole in src: frame->header_nbytes bytes. */
TW_API int tw_decode_header(const void* src, uint64_t src_nbytes, tw_frame* frame, tw_error* error);
/* The bytes [*data_start, *data_stop), counted from the first block, that content bytes [start, stop) need. */
TW_API int tw_block_range(const tw_frame* frame, const void* header, uint64_t start, uint64_t stop,
                          uint64_t* data_start, uint64_t* data_stop, tw_error* error);
/* Decode content bytes [start, stop) into dst. `header` is what tw_decode_header accepted, `data` holds the blocks'
 * bytes [data_offset, data_offset + data_nbytes) and must cover tw_block_range of the same bytes. For a relative frame
 * `base` holds content bytes [base_offset, base_offset + base_nbytes) of the base and must cover the whole blocks of
 * [start, stop); the call trusts that it is the base. dst may be the base's memory for [start, stop) if those are whole
 * blocks; otherwise they are apart. `base` is ignored for a plain frame. `parallel` may be NULL: threads of our own
 * then. `checked` may be NULL: with TW_VERIFY every block is checked then. Else it has a bit for each block of the
 * frame, block k's being bit k % 8 of byte k / 8; a block is checked if its bit is 0, which becomes 1 if the checksum
 * is right. Calls in several threads may share the bits. TW_INVALID_ARGUMENT if the data begins behind these blocks,
 * TW_TRUNCATED if it ends before they do. */
TW_API int tw_decode(const tw_frame* frame, const void* header, const void* data, uint64_t data_offset,
                     uint64_t data_nbytes, const void* base, uint64_t base_offset, uint64_t base_nbytes, uint64_t start,
                     uint64_t stop, void* dst, uint32_t threads, tw_parallel parallel, uint32_t flags, uint8_t* checked,
                     tw_error* error);

/* The whole content of a relative frame, as by tw_decode with TW_VERIFY; and the content hashes of what was written and
 * of the base (16 bytes each), taken while the bytes are in the cache. `data` has the bytes of all blocks. base_hash
 * may be NULL; it must be where dst is the base. */
TW_API int tw_decode_and_hash(const tw_frame* frame, const void* header, const void* data, uint64_t data_nbytes,
                              const void* base, uint64_t base_nbytes, void* dst, uint32_t threads, void* content_hash,
                              void* base_hash, tw_error* error);

/* Changes -------------------------------------------------------------------------------------------------------- */

/* The elements of `content` whose bits differ from those of `base`, `count` of each, of 1, 2, 4 or 8 bytes: their
 * numbers in order, counted from `first` on, in 4 or 8 bytes each, to `indices`, and what they are in `content` to
 * `values`; both have room for all elements. Without a base all elements differ. *found receives how many do. */
TW_API int tw_changes(uint32_t element_nbytes, const void* content, const void* base, uint64_t count, uint64_t first,
                      uint32_t index_nbytes, void* indices, void* values, uint64_t* found, tw_error* error);

/* Products ------------------------------------------------------------------------------------------------------- */

/* Orders of summation of matrix products that others compute; core/linear has them in code.
 * TW_SUMS_n: of n sums in float32, sum j takes columns j, n + j, ... by fused multiply-add, as far as whole n go; then
 * the upper half of the sums is added to the lower one until one is left. Of the other columns n / 4 at a time go to
 * n / 8 sums likewise, whose total is added. The products of the last ones are rounded and added one by one.
 * TW_PAIRS_n, for BF16: each n columns are one sum, which takes a pair of columns after the other as the instruction
 * VDPBF16PS does, the upper column first, denormals as zeros. These sums are added in order.
 * TW_GEMV_16, for BF16: of 16 sums, sum j takes the pair of columns 2j and 2j + 1, then that 32 columns further, and so
 * on, the upper column first, by fused multiply-add. The upper half of the sums is added to the lower one, then
 * neighbours until one is left.
 * TW_GEMM_768, for BF16: as TW_PAIRS_n by fused multiply-add, with denormals. Up to 384 columns are one block; fewer
 * than 1536 are two, the first of half of them, rounded up to a whole pair; of 1536 and more each has 768.
 * In the orders of pairs, what the last columns lack to a whole pair, or to 32 in TW_GEMV_16, is zeros. */
typedef enum tw_order { TW_SUMS_32, TW_SUMS_64, TW_PAIRS_512, TW_PAIRS_1024, TW_GEMV_16, TW_GEMM_768 } tw_order;
/* Bit (1 << order) for each order in which this machine is faster with weights of a dtype than by decoding first; 0 for
 * a dtype other than BF16 and F16. The scalar target, which is slow in all, names all. */
TW_API uint32_t tw_linear_orders(const char* dtype);
/* outputs[m * rows + r] = the sum over all c of weight[r][c] * inputs[m * columns + c], in float32 and one of these
 * orders, for a plain frame of shape (rows, columns). Inputs are numbers of the weight's dtype. Each thread decodes a
 * few rows at a time, which do not leave its cache. The same bits for every number of threads and of inputs. `plain`
 * gets 1; or 0 if an output is NaN, which may be any; or, with TW_PAIRS_n, if an output's magnitude is less than 2^-103
 * and no zero, since with a bias it may be denormal, which others round to zero; or, at once, if one of the threads
 * flushes denormals, which the others may not. `data` holds all blocks; they are read if there is an input. `parallel`
 * and `checked` as for tw_decode. */
TW_API int tw_linear(const tw_frame* frame, const void* header, const void* data, uint64_t data_nbytes, tw_order order,
                     const float* inputs, uint64_t num_inputs, float* outputs, uint32_t* plain, uint32_t threads,
                     tw_parallel parallel, uint32_t flags, uint8_t* checked, tw_error* error);
/* The same for weights that are not compressed. */
TW_API int tw_linear_dense(const char* dtype, const void* weights, uint64_t rows, uint64_t columns, tw_order order,
                           const float* inputs, uint64_t num_inputs, float* outputs, uint32_t threads,
                           tw_parallel parallel, tw_error* error);

/* Devices -------------------------------------------------------------------------------------------------------- */

/* Where the blocks of a frame begin, from its start: num_blocks numbers to `offsets`, then where the last block ends.
 * `header` as for tw_decode, here and below. */
TW_API void tw_block_offsets(const tw_frame* frame, const void* header, uint64_t* offsets);

#define TW_TAIL_NBYTES 32 /* of a block's end, which hold its descriptor; no block is shorter */

/* What decodes a block of a frame that lies on a device. The host decodes blocks of kinds that have no place here, and
 * blocks so far from the frame's start that no place of 32 bits says where. */
typedef enum tw_device_kind {
  TW_DEVICE_STORED = 0,
  TW_DEVICE_HOST = 1,
  TW_DEVICE_CONSTANT = 2,
  TW_DEVICE_CASCADE = 3, /* sign_mantissa verbatim, or trimmed alike in the whole block, here and in enec */
  TW_DEVICE_ENEC = 4
} tw_device_kind;

/* What kernels of a device need to know of a block, there. What its kind does not need is 0. */
typedef struct tw_device_row {
  uint32_t place;      /* of its bytes in the frame, in units of 32 */
  uint32_t ordinal;    /* which block of the frame it is */
  uint32_t num_words;  /* in it */
  uint32_t parameters; /* cascade: lo | a_2 << 8 | a_3 << 12 ...; enec: b; constant: the word, again and again */
  uint32_t numbers[3]; /* cascade: n_2 | n_3 << 16, and so on; enec: num_high; constant: as `parameters` */
  uint32_t later;      /* 0: for what the caller counts from block to block */
} tw_device_row;

/* What the host needs to know. Blocks that are alike from `kind` to `coding` are decoded by the same kernel. */
typedef struct tw_device_block {
  uint8_t kind;        /* tw_device_kind */
  uint8_t rest_bits;   /* cascade and enec: bits of sign_mantissa that are stored */
  uint8_t trail;       /* and zeros below them */
  uint8_t whole;       /* and 1 if all runs of words are full, else 0 */
  uint32_t coding;     /* cascade: widths of the tiers, 4 bits each, then 8; enec: m | nb << 4 | (L - 2) << 8 */
  uint32_t later_runs; /* runs of the tiers from the second on, or of enec's high parts */
  uint32_t listed;     /* words that escape, in tier shape (4) */
} tw_device_block;

/* Describe all blocks of a plain frame by their last TW_TAIL_NBYTES each, which `tails` has in order: the only bytes of
 * blocks that are read. Descriptors are checked as tw_decode checks them, but for numbers that a kind for the host
 * has; streams, padding and checksums are not. */
TW_API int tw_device_blocks(const tw_frame* frame, const void* header, const void* tails, uint64_t tails_nbytes,
                            tw_device_row* rows, tw_device_block* blocks, tw_error* error);

/* Hashes and facts ----------------------------------------------------------------------------------------------- */

/* Leaf hashes (16 bytes each) of content that begins at a multiple of TW_LEAF_NBYTES. */
TW_API void tw_hash_leaves(const void* src, uint64_t nbytes, void* leaves, uint32_t threads);
/* Content hash from the leaves. */
TW_API void tw_hash_root(uint64_t nbytes, const void* leaves, void* hash);

/* A row of the format's table of dtypes: bits per element and layout. TW_INVALID_ARGUMENT for any other dtype. */
TW_API int tw_find_dtype(const char* name, uint32_t* bits, tw_layout* layout);
/* Add the exponents of `nbytes` of content to counts[256]. TW_INVALID_ARGUMENT for all but floats that are split. */
TW_API int tw_exponent_histogram(const char* dtype, const void* src, uint64_t nbytes, uint64_t* counts);

#define TW_KIND_SAME 255u /* of a block of a relative frame that has no bytes: its words are the base's */

typedef struct tw_block_info {
  uint64_t offset; /* from the start of the frame */
  uint64_t nbytes;
  uint64_t rest_nbytes; /* streams of the rest, and a bit for each of its bits that an exponent is coded with */
  uint64_t kind_nbytes; /* streams of the kind, without those bits: exponents, where it has them */
  uint32_t num_words;
  uint8_t kind; /* 0 stored, TW_KIND_SAME, else the tag's kind */
  uint8_t rest;
  uint8_t variant;
  uint8_t extended; /* the extended kind where kind is 7, else 0 */
} tw_block_info;

/* Facts of blocks [first, first + count); `data` as in tw_decode. */
TW_API int tw_block_infos(const tw_frame* frame, const void* header, const void* data, uint64_t data_offset,
                          uint64_t data_nbytes, uint64_t first, uint64_t count, tw_block_info* infos, tw_error* error);

#ifdef __cplusplus
}
#endif
#endif
