"""What one training step changed, as engines are sent it: bits a changed word of four wires, and what they cost."""

from __future__ import annotations

import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from benchmarks.tables import Row, Table
from benchmarks.timing import cpu_by_turns, pinned, relative, spread
from benchmarks.verdicts import Verdict
from tensorwire import compress, compress_bound, decompress
from tensorwire.sync import Follower, Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.timing import Seconds
    from benchmarks.trained_pairs import Checkpoint, Pair

    Words = np.ndarray[Any, np.dtype[np.uint16]]

NEAR, JUDGED = ("1e-6", "5e-6"), "5e-6"
WIRES = {
    "ours": "frames, `fast`",
    "ours_compact": "frames, `compact`",
    "xor_zstd": "XOR, zstd 3",
    "xor_zstd_1": "XOR, zstd 1",
    "index_value": "index + value",
    "patches": "frames, `fast`, to index and value",
}
"""What each key of a row stands for."""
_ROUNDS = 15


class Wire(NamedTuple):
    """How the words of a tensor are sent to one that holds those before: bytes of both, and the new ones of these."""

    encode: Callable[[Words, Words], bytes]
    decode: Callable[[bytes, Words, Words], object]


def _wires(most: int) -> dict[str, Wire]:
    """By key; of tensors of at most so many words. Each uses its memory again."""
    zstandard = import_module("zstandard")
    xor, differs = np.empty(most, np.uint16), np.empty(most, bool)
    room = memoryview(np.empty(compress_bound(xor, dtype="BF16"), np.uint8))

    def ours(profile: Any) -> Wire:
        def encode(old: Words, new: Words) -> bytes:
            given = _view(new), _view(old)
            return bytes(compress(given[0], base=given[1], dtype="BF16", profile=profile, out=room, threads=1))

        def decode(delta: bytes, old: Words, out: Words) -> object:
            return decompress(delta, base=_view(old), out=_view(out), threads=1)

        return Wire(encode, decode)

    def xored(level: int) -> Wire:
        compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()

        def encode(old: Words, new: Words) -> bytes:
            delta: bytes = compressor.compress(np.bitwise_xor(old, new, out=xor[: new.size]))
            return delta

        def decode(delta: bytes, old: Words, out: Words) -> object:
            return np.bitwise_xor(old, np.frombuffer(decompressor.decompress(delta), np.uint16), out=out)

        return Wire(encode, decode)

    def listed(old: Words, new: Words) -> bytes:
        positions = np.flatnonzero(np.not_equal(old, new, out=differs[: new.size])).astype(np.int32)
        return positions.tobytes() + new[positions].tobytes()

    def put(delta: bytes, old: Words, out: Words) -> object:
        count = len(delta) // 6
        out[:] = old
        out[np.frombuffer(delta, np.int32, count)] = np.frombuffer(delta, np.uint16, count, 4 * count)
        return out

    made = {"ours": ours("fast"), "ours_compact": ours("compact"), "xor_zstd": xored(3), "xor_zstd_1": xored(1)}
    return {**made, "index_value": Wire(listed, put)}


def _view(words: Words) -> memoryview:
    return memoryview(words).cast("B")


@cache
def _pair(name: str) -> Pair:
    from benchmarks import trained_pairs

    return trained_pairs.pair(name)


def _sides(pair: Pair) -> list[tuple[Words, Words]]:
    """Old and new of each matrix."""
    return [(pair.old[name].reshape(-1), pair.new[name].reshape(-1)) for name in pair.matrices()]


def measure_wires(quick: bool) -> list[Row]:
    """Sizes, each matrix by itself; and of a version of all tensors."""
    return [_bits(_pair(name)) for name in NEAR[-1 if quick else 0 :]]


def _bits(pair: Pair) -> Row:
    sides = _sides(pair)
    changed = sum(int(np.count_nonzero(old != new)) for old, new in sides)
    found: Row = {"pair": pair.name, "changed": float(pair.changed())}
    for key, wire in _wires(max(new.size for _, new in sides)).items():
        found[key] = 8 * sum(len(wire.encode(old, new)) for old, new in sides) / changed
    found["dense"] = 16 * sum(new.size for _, new in sides) / changed
    for key, profile in (("version", "fast"), ("version_compact", "compact")):
        found[key] = 8 * _version_nbytes(pair, profile) / changed
    return found


def _version_nbytes(pair: Pair, profile: Any) -> int:
    """All files of a version of the matrices, the index among them."""
    with tempfile.TemporaryDirectory() as store:
        publisher = Publisher(store, profile=profile, threads=1)
        publisher.publish(_tensors(pair, pair.old))
        published = publisher.publish(_tensors(pair, pair.new))
        assert not published.is_anchor
        return sum(file.stat().st_size for file in Path(store, f"weight_v{published.version:06d}").iterdir())


def _tensors(pair: Pair, side: Checkpoint) -> dict[str, Any]:
    return {name: side[name].view(ml_dtypes.bfloat16) for name in pair.matrices()}


def measure_speeds(quick: bool) -> list[Row]:
    """CPU seconds of the thread, all by turns."""
    pair, rounds = _pair(JUDGED), 2 if quick else _ROUNDS
    with pinned(1), tempfile.TemporaryDirectory() as store:
        sides = _sides(pair)
        wires = _wires(max(new.size for _, new in sides))
        ways = {key: _ways(wire, sides) for key, wire in wires.items()}
        ways["patches"] = {"decode": _patches(pair, store)}
        seconds = cpu_by_turns({(key, way): call for key, both in ways.items() for way, call in both.items()}, rounds)
    nbytes = sum(pair.new[name].nbytes for name in pair.matrices())
    return [_row(key, nbytes, seconds) for key in ways]


def _row(key: str, nbytes: int, seconds: dict[tuple[str, str], Seconds]) -> Row:
    row: Row = {"wire": key, "with": WIRES[key]}
    for way in ("encode", "decode"):
        taken = seconds.get((key, way))
        if taken is not None:
            row[way] = spread([each for each in taken if each is not None])["median"]
            row[f"{way}, GB/s"] = nbytes / row[way] / 1e9
            compared = relative(taken, seconds["xor_zstd", way])
            row[f"{way}, of zstd"] = None if compared is None else compared["median"]
    return row


def _ways(wire: Wire, sides: list[tuple[Words, Words]]) -> dict[str, Callable[[], None]]:
    """What encodes all matrices, and what makes the new ones, into memory that is used again."""
    deltas = [wire.encode(old, new) for old, new in sides]
    outs = [np.empty_like(new) for _, new in sides]

    def encode() -> None:
        for old, new in sides:
            wire.encode(old, new)

    def decode() -> None:
        for delta, (old, _), out in zip(deltas, sides, outs, strict=True):
            wire.decode(delta, old, out)

    decode()
    assert all(np.array_equal(out, new) for out, (_, new) in zip(outs, sides, strict=True))
    return {"encode": encode, "decode": decode}


def _patches(pair: Pair, store: str) -> Callable[[], None]:
    """A follower in place that has staged the step, and gives it as patches."""
    old, new = (_tensors(pair, side) for side in (pair.old, pair.new))
    publisher = Publisher(store, threads=1)
    publisher.publish(old)
    follower = Follower(store, {name: array.copy() for name, array in old.items()}, in_place=True, threads=1)
    follower.stage()
    follower.commit()
    publisher.publish(new)
    follower.stage()

    def run() -> None:
        for _ in follower.changes().patches():
            pass

    run()
    return run


TABLES = (
    Table(
        "wires",
        "Weights: bits a changed word",
        "One step of a fine-tune of all-MiniLM-L6-v2 at each learning rate: AdamW, FP32 masters, and the BF16 copies "
        "of before and after the step. Each of the 36 matrices of the encoder, 295,000 words on average, is coded by "
        "itself. A version is what `Publisher` writes of these matrices: all its files, with the index. What it takes "
        "besides the frames is that of 36 tensors, whatever their size. Index + value is an int32 and a BF16 word; "
        "dense is all words.",
        (
            ("learning rate", "pair", ""), ("changed", "changed", ".2%"), ("`fast`", "ours", ".2f"),
            ("`compact`", "ours_compact", ".2f"), ("XOR, zstd 3", "xor_zstd", ".2f"),
            ("XOR, zstd 1", "xor_zstd_1", ".2f"), ("index + value", "index_value", ".2f"), ("dense", "dense", ",.0f"),
            ("version, `fast`", "version", ".2f"), ("version, `compact`", "version_compact", ".2f"),
        ),
        measure_wires,
    ),
    Table(
        "wire_speeds",
        "Weights: speed",
        f"The step at {JUDGED}, all matrices, by turns on one core, in CPU seconds of the thread; medians. Ours hashes "
        "the base and what comes out; the others check nothing. XOR and index + value are NumPy and zstd, with memory "
        "that is used again. The last row is `Follower.changes().patches()` of a follower in place: from frames that "
        "are staged to indices and values.",
        (
            ("with", "with", ""), ("encode, s", "encode", ".4f"), ("GB/s", "encode, GB/s", ".2f"),
            ("of zstd 3's speed", "encode, of zstd", ".2f"), ("decode, s", "decode", ".4f"),
            ("GB/s", "decode, GB/s", ".2f"), ("of zstd 3's speed", "decode, of zstd", ".2f"),
        ),
        measure_speeds,
    ),
)  # fmt: skip


def evaluate(results: dict[str, Any]) -> Iterator[Verdict]:
    """Targets of weights."""
    for row in results.get("wires", ()):
        if row["pair"] == JUDGED:
            for key, what in (("ours", "a frame each matrix"), ("version", "a version")):
                for profile, suffix in (("`fast`", ""), ("`compact`", "_compact")):
                    subject = f"{what}, {profile}, at {JUDGED}"
                    yield Verdict("bits a changed word", subject, row[key + suffix], 8.5, at_most=True)
    for row in results.get("wire_speeds", ()):
        if row["wire"] in ("ours", "ours_compact"):
            subject = f"{row['with']}, at {JUDGED}"
            yield Verdict("encode: speed, times XOR and zstd's at level 3", subject, row["encode, of zstd"], 2)
