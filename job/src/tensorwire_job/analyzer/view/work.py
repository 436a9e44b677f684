"""The work of ranks outside of operations: the CPU that they use, the bytes that they read and write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ... import words

if TYPE_CHECKING:
    from ...columns import Bools, Floats, Ints, Places, RankColumns
    from ...model import Rank

    Counter = Callable[[RankColumns], Floats]  # a value for each rank
    Wanted = Callable[[Places], Bools]

STEPS = 6
"""Samples in a window of slow_seconds."""

_CPU = 0.3  # of a CPU, from which a rank works; the probe's thread and those that wait use far less
_CPU_LEAST = 0.05  # from which the time that it waits for a CPU counts too; the threads of the probe use less
_WRITTEN = 65536.0  # bytes per second
_READ = float(1 << 20)  # the probe reads a little, again and again
LEAST_SECONDS = 2.0
"""Between two samples that tell something."""


class Work:
    """A few samples of the counters of all processes, and what follows from their differences."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, RankColumns]] = deque(maxlen=STEPS + 1)

    def sample(self, time: float, ranks: RankColumns) -> None:
        self._samples.append((time, ranks))

    def clear(self) -> None:
        self._samples.clear()

    def covers(self, seconds: float, time: float) -> bool:
        """Whether there is a sample from so many seconds before."""
        return bool(self._samples) and time - self._samples[0][0] >= seconds

    def looks(self, time: float, ranks: RankColumns, wanted: Wanted, first: float = -inf) -> dict[int, float]:
        """The share of the looks from `first` on in which ranks were so: of ranks of now that were in any."""
        looks = [*(before for start, before in self._samples if first <= start < time), ranks]
        found = np.concatenate([each.numbers[wanted(each.places)] for each in looks])
        numbers, times_seen = np.unique(found, return_counts=True)
        shares = zip(numbers.tolist(), (times_seen / len(looks)).tolist(), strict=True)
        return {number: share for number, share in shares if number in ranks}

    def per_second(self, time: float, ranks: RankColumns, counter: Counter) -> dict[int, float]:
        """By how much a counter of each rank has grown per second, as far as samples go back. One that adds up threads
        may grow faster than time."""
        within = (sample for sample in self._samples if sample[0] < time)
        start, before = next(within, (time - 1.0, ranks))
        numbers, grown = _growth(before, ranks, counter)
        return dict(zip(numbers.tolist(), (grown / (time - start)).tolist(), strict=True))

    def candidates(self, first: float, time: float, ranks: RankColumns) -> list[int]:
        """The ranks of now that `since` may say something of: only these need to be looked at one by one."""
        found, now = set(ranks.with_workers), ranks
        for before, seconds in self._intervals(first, time):
            found.update(_busy(before, now, seconds).tolist())
            now = before
        return sorted(number for number in found if number in ranks)

    def since(self, first: float, time: float, rank: Rank) -> str:
        """What shows that a rank worked at any time from `first` on, as far as samples go back: the last such, as some
        pause now and then; "" of one that is gone."""
        now: Rank | None = rank
        for ranks, seconds in self._intervals(first, time) if rank.process.is_alive else ():
            before = ranks.get(rank.rank)
            if found := _between(before, now, seconds):
                return found
            now = before
        return ""

    def tells(self, first: float, time: float) -> bool:
        """Whether `since` has any time to look at: samples are apart, and the one that would do may be missing."""
        return any(True for _ in self._intervals(first, time))

    def _intervals(self, first: float, time: float) -> Iterator[tuple[RankColumns, float]]:
        """Times long enough to tell something, from the last to that which begins at `first`: what was at the start of
        each, and its length."""
        for start, before in reversed(self._samples):
            if first <= start <= time - LEAST_SECONDS:
                yield before, time - start
                time = start


def _growth(before: RankColumns, now: RankColumns, counter: Counter) -> tuple[Ints, Floats]:
    """Ranks whose processes are there at both times, and by how much a counter of theirs grew."""
    numbers, then, here = np.intersect1d(before.numbers, now.numbers, assume_unique=True, return_indices=True)
    same = before.places.pids[then] == now.places.pids[here]
    return numbers[same], counter(now)[..., here[same]] - counter(before)[..., then[same]]


def _busy(before: RankColumns, now: RankColumns, seconds: float) -> Ints:
    """Ranks whose processes used a CPU between, or read or wrote enough."""
    numbers, grown = _growth(before, now, lambda ranks: np.array([ranks.places.cpu_seconds, *ranks.transferred]))
    cpu, read, written = grown / seconds
    return np.extract((cpu >= _CPU_LEAST) | (written >= _WRITTEN) | (read >= _READ), numbers)


def _between(before: Rank | None, now: Rank | None, seconds: float) -> str:
    if before is None or now is None or before.pid != now.pid:
        return ""
    then, process = before.process, now.process
    # Workers are looked at only while the rank completes nothing.
    of_workers = {worker.pid: worker.cpu_seconds for worker in then.workers}
    grown = sum(worker.cpu_seconds - of_workers.get(worker.pid, worker.cpu_seconds) for worker in process.workers)
    cpu = (process.cpu_seconds - then.cpu_seconds + grown) / seconds
    waits = (process.wait_seconds - then.wait_seconds) / seconds
    written = (process.written_bytes - then.written_bytes) / seconds
    read = (process.read_bytes - then.read_bytes) / seconds
    facts = [f"uses {100 * cpu:.0f} % of a CPU"] if cpu >= _CPU else []
    if _CPU_LEAST <= cpu < _CPU <= cpu + waits:  # other programs have it
        facts = [f"uses {100 * cpu:.0f} % of a CPU and waits for one {words.percent(waits)} of the time"]
    facts += [f"writes {words.nbytes(written)}/s"] if then.written_bytes >= 0 and written >= _WRITTEN else []
    facts += [f"reads {words.nbytes(read)}/s"] if then.read_bytes >= 0 and read >= _READ else []
    return ", ".join(facts)
