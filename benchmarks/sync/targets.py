"""The figures that publishing and following are to reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.sync import codecs, cost
from benchmarks.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]


def evaluate(results: dict[str, Any]) -> list[Verdict]:
    """Every target whose table is in `results`."""
    return [verdict for name, find in _TABLES.items() if name in results for verdict in find(results[name])]


def _cost(rows: list[Row]) -> Iterator[Verdict]:
    by_name = {row["with"]: row for row in rows}
    memcpy, arrays, refreshed = (by_name[name]["publish"] for name in (cost.MEMCPY, codecs.FAST, cost.REFRESHED))
    ours, copied = by_name[cost.OURS], by_name[cost.COPIED]
    yield Verdict("publish: speed, of memcpy's", "arrays", memcpy / arrays, 0.25)
    yield Verdict("publish: speed, of memcpy's", "arrays, copy refreshed", memcpy / refreshed, 0.20)
    for what, base in (("arrays, copy refreshed", refreshed), ("arrays alone", arrays)):
        part = ours["publish"] / base
        yield Verdict("publish to files: CPU, of that for arrays", what, part, 1.2, at_most=True)
    part = ours["nbytes"] / by_name[codecs.FAST]["nbytes"]
    yield Verdict("bytes of a version in files, of its frames'", "files", part, 1.02, at_most=True)
    part = ours["apply"] / copied["apply"]
    yield Verdict("apply to staged files: CPU, of that of cp", "files", part, 1.8, at_most=True)


def _commit(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        on = f"{row['shards']} shards"
        yield Verdict("commit: seconds", on, row["seconds"], 0.005, at_most=True)
        yield Verdict("commit: nothing is decoded", on, row["committing"] == 0 < row["staging"], True)


def _links(rows: list[Row]) -> Iterator[Verdict]:
    at_one = {row["with"]: row for row in rows if row["link"] == 1}
    ours, xor = at_one[codecs.FAST], at_one[codecs.XOR]
    on = "1 Gbit/s"
    yield Verdict("in turn: times as fast as dense", on, ours["serial, of dense"], 7)
    yield Verdict("pipelined: times as fast as dense", on, ours["pipelined, of dense"], 12)
    yield Verdict("in turn: times as fast as xor", on, xor["serial"] / ours["serial"], 2.5)


def _endurance(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        on = f"{row['versions']} versions, {row['kills']} kills, {row['follower']}"
        yield Verdict(
            "no wrong version is served, and no follower is stuck", on, row["wrong"] + row["stuck"] == 0, True
        )


_TABLES = {"cost": _cost, "commit": _commit, "links": _links, "endurance": _endurance}
