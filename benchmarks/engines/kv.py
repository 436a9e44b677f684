"""Keys and values of a real model in frames: what they take, and what encoding and decoding cost on one core."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from benchmarks.data import entropy
from benchmarks.engines.captured import CONTEXT, KINDS, TOKENS, minilm
from benchmarks.tables import Row, Table
from benchmarks.timing import cpu_by_turns, pinned, relative, spread
from benchmarks.verdicts import Verdict
from tensorwire.kv import KVCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benchmarks.engines.captured import Captured

    Page = np.ndarray[Any, Any]

FRAMES = (16, 64, 256, 4096)
OURS = {
    "`fast`": KVCodec("fast"),
    "`compact`": KVCodec("compact"),
    "`resident`": KVCodec("resident"),
    "`fast`, transposed": KVCodec("fast", transposed=True),
    "`compact`, transposed": KVCodec("compact", transposed=True),
}
ZSTD, LZ4, SPLITZIP = "zstd, level 1", "LZ4", "SplitZip's scheme"
BOUND, CHANNEL_BOUND = "bound", "bound, given the channel"
BF16, FP8 = "BF16", "F8_E4M3"
ONE, ALL = "one layer's keys or values", "all layers, keys and values"
_EXPONENT_BITS = {BF16: 8, FP8: 4}
_CHUNK = 1024
_ROUNDS = 15


@cache
def _captured(quick: bool) -> Captured:
    return minilm(CONTEXT if quick else TOKENS)


def measure_ratios(quick: bool) -> list[Row]:
    """Ratios of everything, frame by frame."""
    bf16 = _captured(quick)
    fp8 = {key: _scaled(words) for key, words in bf16.items()}
    return [
        {"dtype": dtype, "with": name} | {_column(*how): value for how, value in found.items()}
        for dtype, tensors in ((BF16, bf16), (FP8, fp8))
        for name, found in _ratios(dtype, tensors).items()
    ]


def _scaled(words: Page) -> Page:
    """The largest magnitude of a tensor becomes that of the dtype."""
    numbers = words.view(ml_dtypes.bfloat16).astype(np.float32)
    scale = np.abs(numbers).max() / float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    return (numbers / scale).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def _column(kind: str, tokens: int) -> str:
    return f"{kind}, {tokens}"


def _ratios(dtype: str, tensors: Captured) -> dict[str, dict[tuple[str, int], float]]:
    """By name, kind and tokens of a frame."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    for tokens in FRAMES:
        for name, size in _sizes(dtype, tensors).items():
            taken = {key: sum(size(key, page) for page in _pages(words, tokens)) for key, words in tensors.items()}
            for kind in (*KINDS, "both") if tokens == 64 else ("both",):
                keys = [key for key in tensors if kind in (key[1], "both")]
                ratio = sum(tensors[key].nbytes for key in keys) / sum(taken[key] for key in keys)
                found.setdefault(name, {})[kind, tokens] = ratio
    return found


def _sizes(dtype: str, tensors: Captured) -> dict[str, Callable[[tuple[int, str], Page], float]]:
    """The bytes of a page of a tensor, by what makes them."""
    compress_zstd, compress_lz4 = _peers()
    bounds = {key: _bits(dtype, words) for key, words in tensors.items()}
    books = {key: _frequent(words) for key, words in tensors.items()} if dtype == BF16 else {}
    return {
        **{name: lambda key, page, codec=codec: len(_encoded(codec, dtype, page)) for name, codec in OURS.items()},
        ZSTD: lambda key, page: len(compress_zstd(page.tobytes())),
        LZ4: lambda key, page: len(compress_lz4(page.tobytes())),
        **({SPLITZIP: lambda key, page: _splitzip_nbytes(page, books[key])} if books else {}),
        BOUND: lambda key, page: page.size * bounds[key][0] / 8,
        CHANNEL_BOUND: lambda key, page: page.size * bounds[key][1] / 8,
    }


def _pages(words: Page, tokens: int) -> Iterator[Page]:
    yield from (words[start : start + tokens] for start in range(0, len(words), tokens))


def _encoded(codec: KVCodec, dtype: str, page: Page) -> memoryview:
    """The bytes of a page, once they have been decoded."""
    slot, back = bytearray(codec.nbytes(dtype, page.shape)), np.empty_like(page)
    nbytes = codec.encode(page, slot, dtype, page.shape)
    codec.decode(slot, back, dtype, page.shape)
    if back.tobytes() != page.tobytes():
        raise AssertionError("other bytes came back")
    return memoryview(slot)[:nbytes]


def _peers() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    return import_module("zstandard").ZstdCompressor(level=1).compress, import_module("lz4.block").compress


def _exponents(dtype: str, words: Page) -> Page:
    bits = _EXPONENT_BITS[dtype]
    return words >> (8 * words.itemsize - 1 - bits) & ((1 << bits) - 1)


def _bits(dtype: str, words: Page) -> tuple[float, float]:
    """Bits of a word by the entropies of exponents and of rests; and where those of exponents and of signs are taken of
    each channel by itself."""
    exponents, last = _exponents(dtype, words), 8 * words.itemsize - 1
    rests = words & ((1 << last - _EXPONENT_BITS[dtype]) - 1) | words >> last << last - _EXPONENT_BITS[dtype]
    of_channels = sum(
        entropy(np.bincount(column)) for each in (exponents, words >> last) for column in np.ascontiguousarray(each.T)
    )
    mantissa_bits = last - _EXPONENT_BITS[dtype]
    flat = entropy(np.bincount(exponents.ravel())) + entropy(np.bincount(rests.ravel()))
    return flat / words.size, of_channels / words.size + mantissa_bits


def _frequent(words: Page) -> Page:
    """The codebook of SplitZip's scheme."""
    return np.argsort(-np.bincount(_exponents(BF16, words).ravel(), minlength=256), kind="stable")[:16]


def _splitzip_nbytes(page: Page, book: Page) -> int:
    """12 bits a word; of each that escapes its place in a chunk and its exponent; the counts of chunks; a codebook."""
    escapes = int((~np.isin(_exponents(BF16, page), book)).sum())
    return math.ceil(1.5 * page.size) + 3 * escapes + 2 * math.ceil(page.size / _CHUNK) + 16


def measure_speeds(quick: bool) -> list[Row]:
    """By turns, on one core, in CPU seconds: the frames of 64 tokens, and of 4,096."""
    captured = _captured(quick)
    with pinned(1):
        return [
            row
            for tokens, what in ((64, ONE), (64, ALL), (4096, ONE))
            for row in _speeds(tokens, what, list(_pages_of(captured, tokens, what)), 2 if quick else _ROUNDS)
        ]


def _pages_of(captured: Captured, tokens: int, what: str) -> Iterable[Page]:
    """So many that no cache holds all of them."""
    count = max(1, 2048 // tokens // (1 if what == ALL else 4))
    starts = range(0, min(count * tokens, len(next(iter(captured.values())))), tokens)
    if what == ALL:
        return (np.stack([words[start : start + tokens] for words in captured.values()]) for start in starts)
    return (words[start : start + tokens].copy() for words in captured.values() for start in starts)


def _speeds(tokens: int, what: str, pages: list[Page], rounds: int) -> Iterator[Row]:
    calls, ways = _calls(pages), ("encode", "decode")
    by_way = {(name, way): call for name, both in calls.items() for way, call in zip(ways, both, strict=True)}
    seconds = cpu_by_turns(by_way, rounds)
    nbytes = sum(page.nbytes for page in pages)
    for name in calls:
        row: Row = {"frame": f"{tokens} tokens, {what}", "nbytes": pages[0].nbytes, "with": name}
        for way in ways:
            taken = seconds[name, way]
            compared = relative(taken, seconds[ZSTD, way])
            row[way] = spread([nbytes / each / 1e9 for each in taken if each])["median"]
            row[f"{way}, of zstd"] = None if compared is None else compared["median"]
        yield row


def _calls(pages: list[Page]) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """What encodes all pages, and what decodes them. Ours takes slots and pages that are used again."""
    zstandard, lz4 = import_module("zstandard"), import_module("lz4.block")
    calls = {name: _ours(codec, pages) for name, codec in OURS.items()}
    contents = [page.tobytes() for page in pages]
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    for name, compress, decompress in (
        (ZSTD, compressor.compress, decompressor.decompress),
        (LZ4, lz4.compress, lz4.decompress),
        ("a copy", bytearray, bytearray),
    ):
        packed = [compress(each) for each in contents]
        calls[name] = _through(compress, contents), _through(decompress, packed)
    return calls


def _through(call: Callable[[Any], object], items: list[Any]) -> Callable[[], object]:
    def run() -> None:
        for item in items:
            call(item)

    return run


def _ours(codec: KVCodec, pages: list[Page]) -> tuple[Callable[[], object], Callable[[], object]]:
    shape, rows = pages[0].shape, [memoryview(page).cast("B") for page in pages]
    slots = [memoryview(bytearray(codec.nbytes(BF16, shape))) for _ in pages]
    backs = [memoryview(bytearray(page.nbytes)) for page in pages]

    def encode() -> None:
        for page, slot in zip(rows, slots, strict=True):
            codec.encode(page, slot, BF16, shape)

    def decode() -> None:
        for slot, back in zip(slots, backs, strict=True):
            codec.decode(slot, back, BF16, shape)

    encode()
    return encode, decode


TABLES = (
    Table(
        "ratios",
        "Keys and values: ratios",
        "Keys and values of all-MiniLM-L6-v2 in BF16 over 16,384 tokens of docstrings, 6 layers, 384 channels: before "
        "their heads are scored, and without positions in them. Frames have the keys or the values of one layer. Sizes "
        "are those of all 12 tensors together. F8_E4M3 is scaled so that the largest number of a tensor is the largest "
        "of the dtype. SplitZip's scheme is not run: its size follows from its rule, with a codebook of the 16 "
        "exponents that are most frequent in the whole tensor. The bound is the entropy of exponents and that of sign "
        "and mantissa, of a whole tensor; given the channel, those of exponents and signs are of each channel.",
        (
            ("dtype", "dtype", ""), ("with", "with", ""), ("keys, 64 tokens", "keys, 64", ".3f"),
            ("values, 64 tokens", "values, 64", ".3f"), ("16 tokens", "both, 16", ".3f"),
            ("64 tokens", "both, 64", ".3f"), ("256 tokens", "both, 256", ".3f"),
            ("4,096 tokens", "both, 4096", ".3f"),
        ),
        measure_ratios,
    ),
    Table(
        "speeds",
        "Keys and values: speed",
        "The same in BF16, by turns on one core, in CPU seconds of the thread; medians. `KVCodec` encodes into slots "
        "and decodes into pages that are used again, and checks every checksum; zstd and LZ4 return new bytes, without "
        "checksums. Calls of Python have a cost of their own: it weighs most in frames of one layer.",
        (
            ("frame", "frame", ""), ("bytes", "nbytes", ",d"), ("with", "with", ""), ("encode, GB/s", "encode", ".2f"),
            ("of zstd's speed", "encode, of zstd", ".2f"), ("decode, GB/s", "decode", ".2f"),
            ("of zstd's speed", "decode, of zstd", ".2f"),
        ),
        measure_speeds,
    ),
)  # fmt: skip


def evaluate(results: dict[str, Any]) -> Iterator[Verdict]:
    """Targets of keys and values."""
    for row in results.get("ratios", ()):
        if (row["dtype"], row["with"]) == (BF16, "`fast`"):
            yield Verdict("ratio of `fast`", "keys and values, 64 tokens", row["both, 64"], 1.48)
    for row in results.get("speeds", ()):
        if row["with"] == "`fast`" and row["frame"].endswith(ALL):
            for way in ("encode", "decode"):
                yield Verdict(f"{way}: speed of `fast`, times zstd's", row["frame"], row[f"{way}, of zstd"], 5)
