"""What one training step changed, as engines are sent it: bits a changed word of four wires, and what they cost."""

from __future__ import annotations

import tempfile
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.deltas.peers import ADAPTERS
from benchmarks.tables import Row, Table
from benchmarks.timing import pinned, relative, spread
from benchmarks.verdicts import Verdict
from tensorwire.sync import Follower, Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.deltas.peers import Codec
    from benchmarks.deltas.training import Checkpoint, Pair

NEAR, JUDGED = ("1e-6", "5e-6"), "5e-6"
WIRES = {
    "ours": "relative fast",
    "ours_compact": "relative compact",
    "xor_zstd": "XOR, zstd 3",
    "xor_zstd_1": "XOR, zstd 1",
    "index_value": "index + value",
}
"""By key of a row the form in benchmarks.deltas.peers."""
PATCHES = "our frames to index and value"
_ROUNDS = 15


@cache
def _pair(name: str) -> Pair:
    from benchmarks.deltas import training

    return training.pair(name)


def _codecs() -> dict[str, Codec]:
    made = {each.name: each for each in ADAPTERS}
    return {key: made[name].make() for key, name in WIRES.items()}


def measure_wires(quick: bool) -> list[Row]:
    """Sizes, each matrix by itself; and of a version of all tensors."""
    return [_bits(_pair(name)) for name in NEAR[-1 if quick else 0 :]]


def _bits(pair: Pair) -> Row:
    names = pair.matrices()
    changed = _changed(pair, names)
    found: Row = {"pair": pair.name, "changed": pair.changed()}
    for key, codec in _codecs().items():
        deltas = (codec.encode(*map(codec.prepare, _both(pair, name))) for name in names)
        found[key] = 8 * sum(map(len, deltas)) / changed
    words = sum(pair.new[name].size for name in names)
    found["dense"] = 16 * words / changed
    every = _changed(pair, list(pair.new))
    found["changed_model"] = every / sum(words.size for words in pair.new.values())
    for key, profile in (("version", "fast"), ("version_compact", "compact")):
        found[key] = 8 * _version_nbytes(pair, profile) / every
    return found


def _both(pair: Pair, name: str) -> tuple[Any, Any]:
    return pair.old[name].reshape(-1), pair.new[name].reshape(-1)


def _changed(pair: Pair, names: list[str]) -> int:
    return sum(np.count_nonzero(pair.old[name] != pair.new[name]) for name in names)


def _version_nbytes(pair: Pair, profile: Any) -> int:
    """All files of a version of the whole model, the index among them."""
    with tempfile.TemporaryDirectory() as store:
        publisher = Publisher(store, profile=profile, threads=1)
        publisher.publish(_tensors(pair.old))
        published = publisher.publish(_tensors(pair.new))
        return sum(file.stat().st_size for file in _folder(store, published.version).iterdir())


def _folder(store: str, version: int) -> Any:
    from pathlib import Path

    return Path(store) / f"weight_v{version:06d}"


def _tensors(checkpoint: Checkpoint) -> dict[str, Any]:
    import ml_dtypes

    return {name: words.view(ml_dtypes.bfloat16) for name, words in checkpoint.items()}


def measure_speeds(quick: bool) -> list[Row]:
    """CPU seconds of the thread, all by turns."""
    pair, rounds = _pair(JUDGED), 2 if quick else _ROUNDS
    with pinned(1), tempfile.TemporaryDirectory() as store:
        ways = {key: _ways(codec, pair) for key, codec in _codecs().items()}
        ways["patches"] = {"decode": _patches(pair, store)}
        seconds: dict[tuple[str, str], list[float | None]] = {}
        for _ in range(rounds):
            for key, both in ways.items():
                for way, call in both.items():
                    start = time.thread_time()
                    call()
                    seconds.setdefault((key, way), []).append(time.thread_time() - start)
    nbytes = sum(pair.new[name].nbytes for name in pair.matrices())
    return [_row(key, nbytes, seconds) for key in ways]


def _row(key: str, nbytes: int, seconds: dict[tuple[str, str], list[float | None]]) -> Row:
    row: Row = {"wire": key, "with": PATCHES if key == "patches" else WIRES[key]}
    for way in ("encode", "decode"):
        taken = seconds.get((key, way))
        if taken is not None:
            row[way] = spread([each for each in taken if each is not None])["median"]
            row[f"{way}, GB/s"] = nbytes / row[way] / 1e9
            compared = relative(taken, seconds["xor_zstd", way])
            row[f"{way}, of zstd"] = None if compared is None else compared["median"]
    return row


def _ways(codec: Codec, pair: Pair) -> dict[str, Callable[[], None]]:
    """What encodes all matrices, and what makes the new ones, into memory that is used again."""
    sides = [tuple(map(codec.prepare, _both(pair, name))) for name in pair.matrices()]
    deltas = [bytes(memoryview(codec.encode(old, new))) for old, new in sides]
    outs = [np.empty(pair.new[name].size, np.uint16) for name in pair.matrices()]

    def encode() -> None:
        for old, new in sides:
            codec.encode(old, new)

    def decode() -> None:
        for delta, (old, _), out in zip(deltas, sides, outs, strict=True):
            codec.apply(delta, old, out)

    decode()
    wanted = [pair.new[name].reshape(-1) for name in pair.matrices()]
    assert all(np.array_equal(out, new) for out, new in zip(outs, wanted, strict=True))
    return {"encode": encode, "decode": decode}


def _patches(pair: Pair, store: str) -> Callable[[], None]:
    """A follower in place that has staged the step, and gives it as patches."""
    old, new = ({name: side[name] for name in pair.matrices()} for side in (_tensors(pair.old), _tensors(pair.new)))
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
        "of before and after the step. Each of the 36 matrices of the encoder is coded by itself. The last three "
        "columns are a version of the whole model, 22.6 million words, as `Publisher` writes it: all its files, with "
        "the index. Index + value is an int32 and a BF16 word; dense is all words.",
        (
            ("learning rate", "pair", ""), ("changed", "changed", ".2%"), ("`fast`", "ours", ".2f"),
            ("`compact`", "ours_compact", ".2f"), ("XOR, zstd 3", "xor_zstd", ".2f"),
            ("XOR, zstd 1", "xor_zstd_1", ".2f"), ("index + value", "index_value", ".2f"), ("dense", "dense", ",.0f"),
            ("changed, model", "changed_model", ".2%"), ("version, `fast`", "version", ".2f"),
            ("version, `compact`", "version_compact", ".2f"),
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
            yield Verdict("bits a changed word", f"a version of the model, {JUDGED}", row["version"], 8.5, at_most=True)
    for row in results.get("wire_speeds", ()):
        if row["wire"] == "ours":
            yield Verdict("encode: speed, times XOR and zstd's at level 3", JUDGED, row["encode, of zstd"], 2)
