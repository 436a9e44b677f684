"""All forms of a delta on one pair, in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import page_aligned
from benchmarks.deltas import pairs
from benchmarks.deltas.bounds import bound_bits, changes_by_exponent
from benchmarks.deltas.peers import ADAPTERS
from benchmarks.timing import interleave, pinned, relative, speed, timed
from tensorwire.codec.frame import core

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.deltas.pairs import Words
    from benchmarks.deltas.peers import Adapter, Codec
    from benchmarks.timing import Seconds

YARDSTICKS = {"memcpy": "vs_memcpy", "BitX": "vs_bitx"}
DIRECTIONS = ("encode", "apply", "in_place")


@dataclass(frozen=True)
class Entry:
    """A codec in one setting."""

    adapter: Adapter
    codec: Codec
    verify: bool | None  # None: it has no checksums

    @property
    def key(self) -> str:
        return f"{self.adapter.name}/{self.verify}"

    def directions(self) -> tuple[str, ...]:
        """The directions that are timed."""
        if not self.adapter.in_memory:
            return ()
        return DIRECTIONS if self.adapter.in_place else DIRECTIONS[:2]


class Contest:
    """Round trips of pairs of tensors. Each tensor lies at the start of a page, and so does each result."""

    def __init__(self, tensors: Sequence[tuple[Words, Words]], budget: float) -> None:
        self._old, self._new = (_page_aligned(side) for side in zip(*tensors, strict=True))
        self._out = _page_aligned(self._old)
        self.nbytes = sum(words.nbytes for words in self._new)
        self.delta_nbytes: dict[str, int] = {}
        self._budget = budget
        self._deltas: dict[str, list[Any]] = {}

    def check(self, entry: Entry) -> dict[str, float]:
        """Compare round trips bit by bit; return the seconds that each direction took."""
        seconds = {"encode": self.encode(entry)}
        for direction in DIRECTIONS[1 : 3 if entry.adapter.in_place else 2]:
            for out in self._out:
                out.fill(0xA5A5)
            seconds[direction] = getattr(self, direction)(entry, compare=True)
        return seconds

    def encode(self, entry: Entry) -> float:
        seconds, deltas = 0.0, []
        with pinned(1):
            for old, new in zip(self._old, self._new, strict=True):
                before, after = map(entry.codec.prepare, (old, new))
                took, delta = timed(entry.codec.encode, before, after)
                seconds += took
                # A delta may lie in memory that the next one takes.
                deltas.append(delta if len(self._new) == 1 else bytes(delta))
        self._deltas[entry.key] = deltas
        self.delta_nbytes[entry.key] = sum(map(len, deltas))
        return seconds

    def apply(self, entry: Entry, *, compare: bool = False) -> float:
        """Into other memory than the base."""
        return self._apply(entry, in_place=False, compare=compare)

    def in_place(self, entry: Entry, *, compare: bool = False) -> float:
        """Into a copy of the base, which is made anew each time; that is not timed."""
        return self._apply(entry, in_place=True, compare=compare)

    def _apply(self, entry: Entry, *, in_place: bool, compare: bool) -> float:
        seconds = 0.0
        with pinned(1):
            for delta, old, out, new in zip(self._deltas[entry.key], self._old, self._out, self._new, strict=True):
                if in_place:
                    out[:] = old
                base = entry.codec.prepare(out if in_place else old)
                took, result = timed(entry.codec.apply, delta, base, out)
                seconds += took
                if compare and not np.array_equal(result, new):
                    raise RuntimeError(f"{entry.key}: the result differs from the input")
        return seconds


def run(tensors: Sequence[tuple[Words, Words]], adapters: Sequence[Adapter], rounds: int, budget: float) -> Any:
    """Rows of one pair, given as its tensors; `rounds` and `budget` as for `interleave`, in each direction."""
    contest = Contest(tensors, budget)
    field = [entry for adapter in adapters for entry in _entries(adapter)]
    operations, warm_up = {}, {}
    for entry in field:
        took = contest.check(entry)
        for direction in entry.directions():
            key = f"{entry.key}/{direction}"
            warm_up[key] = took[direction]
            operations[key] = partial(getattr(contest, direction), entry)
    seconds = interleave(operations, warm_up, rounds, budget)
    return [_row(entry, contest, seconds) for entry in field]


def facts(tensors: Sequence[tuple[Words, Words]]) -> dict[str, Any]:
    """A pair's size, what changed, and the least bits that it needs; (exponent, words, changed) of the base."""
    return {
        "tensors": len(tensors),
        "words": sum(new.size for _, new in tensors),
        "changed": sum(int(np.count_nonzero(old != new)) for old, new in tensors),
        "bound_bits": bound_bits(tensors),
        "by_exponent": changes_by_exponent(tensors),
    }


def _entries(adapter: Adapter) -> Iterator[Entry]:
    for verify in (True, False) if adapter.checksums else (None,):
        if adapter.installed:
            yield Entry(adapter, adapter.make(verify=verify is not False), verify)


def _row(entry: Entry, contest: Contest, seconds: dict[str, Seconds]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "codec": entry.adapter.name,
        "version": entry.adapter.version,
        "verify": entry.verify,
        "cpu": core.cpu_target() if entry.adapter.package == "tensorwire" else None,
        "nbytes": contest.delta_nbytes[entry.key],
    }
    for direction in entry.directions():
        mine = seconds[f"{entry.key}/{direction}"]
        row[direction] = speed(mine, contest.nbytes)
        for yardstick, name in YARDSTICKS.items():
            # memcpy copies from one place to another, also where others work in place.
            same = "apply" if (yardstick, direction) == ("memcpy", "in_place") else direction
            other = seconds.get(f"{yardstick}/None/{same}")
            row[direction][name] = relative(mine, other) if other else None
    return row


def _page_aligned(tensors: Sequence[Words]) -> list[Words]:
    """Copies of them, in one dimension."""
    return [np.frombuffer(copy, np.uint16) for copy in page_aligned(tensors)]


def measure(name: str, units: Sequence[str], codecs: Sequence[str], rounds: int, budget: float) -> dict[str, Any]:
    """A pair's facts and rows; `codecs`: names of adapters, all of them if there is none."""
    tensors = pairs.load(name)
    adapters = [adapter for adapter in ADAPTERS if not codecs or adapter.name in codecs]
    rows = []
    for unit in units:
        of_unit = tensors if unit == "tensor" else [pairs.joined(tensors)]
        rows += [{"unit": unit, **row} for row in run(of_unit, adapters, rounds, budget)]
    return {"pair": {"name": name, **facts(tensors)}, "rows": rows}
