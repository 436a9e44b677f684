"""All codecs on one data set, in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import data
from benchmarks.codecs.newcomers import NEWCOMERS
from benchmarks.timing import interleave, over, pinned, relative, speed, timed
from tensorwire._ground.allocation import new_buffer
from tensorwire.cli.peers import ADAPTERS
from tensorwire.codec.frame import core

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.timing import Seconds
    from tensorwire.cli.peers import Adapter, Codec

YARDSTICKS = {"memcpy": "vs_memcpy", "zipnn": "vs_zipnn"}


@dataclass(frozen=True)
class Entry:
    """A codec in one setting."""

    adapter: Adapter
    codec: Codec
    threads: int
    verify: bool | None  # None: it has no checksums, or has always the same

    @property
    def key(self) -> str:
        return f"{self.adapter.name}/{self.threads}/{self.verify}"


class Contest:
    """Round trips of a data set through codecs.

    Tensors lie each at the start of a page, both where they come from and where they go. A codec compresses, then
    decompresses; its frames are dropped then, unless it has used up its budget and so will not compress again.
    """

    def __init__(self, buffers: Sequence[memoryview], budget: float) -> None:
        self.nbytes = sum(map(len, buffers))
        self._buffers, self._outs = data.page_aligned(buffers), data.page_aligned(buffers)
        self.compressed_nbytes: dict[str, int] = {}
        self._frames: dict[str, list[Any]] = {}
        self._budget = budget
        self._spent: dict[str, float] = {}

    def compress(self, entry: Entry) -> float:
        seconds, frames = 0.0, []
        with pinned(entry.threads):
            for buffer in self._buffers:
                prepared = entry.codec.prepare(buffer)
                took, frame = timed(entry.codec.compress, prepared)
                seconds += took
                frames.append(frame if len(self._buffers) == 1 else _kept(frame))
        self._frames[entry.key] = frames
        self.compressed_nbytes[entry.key] = sum(map(len, frames))
        if entry.key in self._spent:
            self._spent[entry.key] += seconds
        else:
            self._spent[entry.key] = over(seconds, self._budget)
        return seconds

    def decompress(self, entry: Entry) -> float:
        seconds = 0.0
        with pinned(entry.threads):
            for frame, out in zip(self._frames[entry.key], self._outs, strict=True):
                seconds += timed(entry.codec.decompress, frame, out)[0]
        self._release(entry)
        return seconds

    def check(self, entry: Entry) -> tuple[float, float]:
        """Compare a round trip bit by bit; return the seconds that it took in both directions."""
        compress_seconds = self.compress(entry)
        for out in self._outs:
            np.frombuffer(out, np.uint8)[:] = 0xA5
        decompress_seconds = 0.0
        for buffer, frame, out in zip(self._buffers, self._frames[entry.key], self._outs, strict=True):
            took, result = timed(entry.codec.decompress, frame, out)
            decompress_seconds += took
            if not np.array_equal(np.frombuffer(result, np.uint8), np.frombuffer(buffer, np.uint8)):
                raise RuntimeError(f"{entry.key}: the result differs from the input")
        self._release(entry)
        return compress_seconds, decompress_seconds

    def _release(self, entry: Entry) -> None:
        if self._spent[entry.key] <= self._budget:
            del self._frames[entry.key]


def entries(
    dataset: data.Dataset, threads: Sequence[int], adapters: Sequence[Adapter], *, unverified: bool = True
) -> Iterator[Entry]:
    """Every installed codec that takes the dtype: with checksums; and, if `unverified`, without where they can be left
    out."""
    for adapter in adapters:
        if not adapter.installed:
            continue
        for count in threads if adapter.threaded else (1,):
            # Two threads without checksums are asked of `fast` alone.
            both = unverified and (count == 1 or adapter.name == "tensorwire fast")
            for verify in ((True, False) if both else (True,)) if adapter.checksums else (None,):
                try:
                    codec = adapter.make(dataset.dtype, threads=count, verify=verify is not False)
                except ValueError:
                    continue  # not of this dtype
                codec.prepare(dataset.data)  # a codec that learns does so from all of it
                yield Entry(adapter, codec, count, verify)


def run(
    dataset: data.Dataset,
    unit: str,
    threads: Sequence[int],
    rounds: int,
    budget: float,
    adapters: Sequence[Adapter],
    *,
    unverified: bool = True,
) -> list[dict[str, Any]]:
    """Rows of one data set.

    Args:
        unit: "whole": all tensors as one buffer; "tensor": one after the other.
        rounds, budget: as for `interleave`, for compression and decompression each.
        unverified: as for `entries`.
    """
    contest = Contest([dataset.data] if unit == "whole" else list(dataset.tensors()), budget)
    field = list(entries(dataset, threads, adapters, unverified=unverified))
    operations, warm_up = {}, {}
    for entry in field:
        warm_up[f"{entry.key}/compress"], warm_up[f"{entry.key}/decompress"] = contest.check(entry)
        operations[f"{entry.key}/compress"] = partial(contest.compress, entry)
        operations[f"{entry.key}/decompress"] = partial(contest.decompress, entry)
    seconds = interleave(operations, warm_up, rounds, budget)
    return [
        _row(dataset, unit, entry, contest.nbytes, contest.compressed_nbytes[entry.key], seconds) for entry in field
    ]


def _row(
    dataset: data.Dataset, unit: str, entry: Entry, nbytes: int, compressed: int, seconds: dict[str, Seconds]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "dataset": dataset.name,
        "unit": unit,
        "codec": entry.adapter.name,
        "version": entry.adapter.version,
        "threads": entry.threads,
        "verify": entry.verify,
        "cpu": core.cpu_target() if entry.adapter.package == "tensorwire" else None,
        "nbytes": nbytes,
        "compressed_nbytes": compressed,
        "ratio": nbytes / compressed,
    }
    for direction in ("compress", "decompress"):
        mine = seconds[f"{entry.key}/{direction}"]
        row[direction] = speed(mine, nbytes)
        for yardstick, name in YARDSTICKS.items():
            other = seconds.get(f"{yardstick}/{entry.threads}/None/{direction}")
            row[direction][name] = relative(mine, other) if other else None
        alone = seconds.get(f"{entry.adapter.name}/1/{entry.verify}/{direction}")
        row[direction]["vs_one_thread"] = relative(mine, alone) if alone else None
    return row


def _kept(frame: Any) -> Any:
    """`frame`, out of the codec's own memory."""
    if not isinstance(frame, memoryview):
        return frame
    copy = new_buffer(len(frame))
    copy[:] = frame
    return copy


def measure(
    name: str, units: Sequence[str], threads: Sequence[int], rounds: int, budget: float, yardsticks: bool
) -> dict[str, Any]:
    """A data set's facts and rows; `yardsticks`: of the peers take memcpy and ZipNN alone."""
    dataset = data.load(name)
    whole, by_tensor = dataset.bounds()
    facts = {
        "name": dataset.name,
        "dtype": dataset.dtype,
        "nbytes": len(dataset.data),
        "tensors": len(dataset.shapes),
        "sha256": dataset.sha256(),
        "bound_whole": whole,
        "bound_by_tensor": by_tensor,
    }
    kept = ("tensorwire", *YARDSTICKS)
    adapters = [adapter for adapter in (*ADAPTERS, *NEWCOMERS) if not yardsticks or adapter.package in kept]
    rows = [row for unit in units for row in run(dataset, unit, threads, rounds, budget, adapters)]
    return {"dataset": facts, "rows": rows}
