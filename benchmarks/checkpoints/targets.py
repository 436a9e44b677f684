"""The figures that checkpoints of ranks and of trainers, directories and remote files are to reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.checkpoints import dcp, directories, ranks, remote, training
from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]
PARTS = {"bfloat16": 0.64, "float32": 0.87}
RUN_PARTS = {"bfloat16": (0.62, 0.56), "float32": (0.81, 0.77)}
"""Parts of the dense bytes: what is to be reached, and what is wanted."""
SMALL_NBYTES, PIECE_NBYTES = 8 << 10, 8 << 20
RESTORE_SECONDS = 60


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target whose table is in `results`."""
    return [verdict for name, find in _TABLES.items() if name in results for verdict in find(results[name])]


def _saves(rows: list[Row]) -> Iterator[Verdict]:
    bounds = {row["dtype"]: row["nbytes"] for row in rows if row["writer"] == dcp.BOUND}
    for row in rows:
        if row["writer"] == ranks.FAST:
            on = row["dtype"]
            yield Verdict("checkpoint: bytes, of torch's", on, row["bytes of torch"], PARTS[on], at_most=True)
            yield Verdict("checkpoint: bytes, of the entropy bound", on, row["nbytes"] / bounds[on], 1.01, at_most=True)
            yield Verdict("save: CPU, of torch's", on, row["cpu_seconds of torch"], 1.3, at_most=True)


def _loads(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["storage"] == ranks.FAST:
            on = f"{row['dtype']}, {row['ranks']}"
            yield Verdict("load: bytes read, of those saved", on, row["part"], 1.1, at_most=True)
            yield Verdict("load: bits of torch's storage", on, row["same"], True)


def _files(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["with"] != remote.OURS:
            continue
        on, requests = row["file"], row["requests"]
        if row["what"] == remote.OPEN:
            if on != remote.SHARD:
                continue  # a header has as many bytes as its tensors need
            yield Verdict("open: requests", on, requests, 2, at_most=True)
            yield Verdict("open: bytes", on, row["received"], SMALL_NBYTES, at_most=True)
        elif row["what"] == remote.LOAD:
            yield Verdict("load: bytes, of the file", on, row["part"], 1.01, at_most=True)
            yield Verdict("load: requests", on, requests, -(-row["size"] // PIECE_NBYTES) + 2, at_most=True)
        elif row["what"] != remote.SAVE:
            yield Verdict(f"{row['what']}: requests", on, requests, 1 + (row["what"] == remote.FIRST_ROW), at_most=True)


def _hub(rows: list[Row]) -> Iterator[Verdict]:
    yield from _ratio(rows, directories.OURS, 2.95)


def _chain(rows: list[Row]) -> Iterator[Verdict]:
    yield from _ratio(rows, directories.CHAIN, 2.2, ", with the optimizer")


def _tuned(rows: list[Row]) -> Iterator[Verdict]:
    yield from _ratio(rows, directories.CHAIN, 2.2, ", a fine-tune")


def _ratio(rows: list[Row], name: str, least: float, what: str = "") -> Iterator[Verdict]:
    for row in rows:
        if row["with"] == name:
            yield Verdict("ratio", name + what, row["ratio"], least)
            yield Verdict("every byte is back", name + what, row["same"], True)


def _reference(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        on = f"the reference decoder, {row['profile']}"
        yield Verdict("restore: seconds", on, row["seconds"], RESTORE_SECONDS, at_most=True)
        yield Verdict("every byte is back", on, row["same"], True)


def _run(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["form"] == training.OURS:
            on = row["dtype"]
            limit, wanted = RUN_PARTS[on]
            yield Verdict("run: bytes, of dense", on, row["of dense"], limit, at_most=True)
            yield Verdict("run: bytes, of dense, wanted", on, row["of dense"], wanted, at_most=True)
            yield Verdict("run: kills", on, row["kills"], 3)
            yield Verdict("run: losses equal to the dense run's", on, row["same"], True)


_TABLES = {
    "hub": _hub, "chain": _chain, "tuned": _tuned, "reference": _reference, "run": _run, "saves": _saves,
    "loads": _loads, "files": _files,
}  # fmt: skip
