"""What ranks do by themselves, outside of operations: the CPU they use, what they read and write."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import words

if TYPE_CHECKING:
    from ...columns import Ints, RankColumns
    from ...model import Rank

STEPS = 6
"""Samples in a window of slow_seconds."""

_CPU = 0.3  # of a CPU, from which a rank works; the probe's thread and those that wait use far less
_CPU_LEAST = 0.05  # from which the time that it waits for a CPU counts too; the threads of the probe use less
_WRITTEN = 65536.0  # bytes per second
_READ = float(1 << 20)  # the probe reads a little, again and again
_LEAST_SECONDS = 2.0  # to tell from


class _Counters(NamedTuple):
    pid: int
    cpu_seconds: float
    wait_seconds: float
    of_workers: dict[int, float]  # by pid; they are looked at only while the rank completes nothing
    written: int
    read: int


class _Sample(NamedTuple):
    time: float
    ranks: RankColumns


class Work:
    """A few samples of the counters of all processes, and what follows from their differences."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=STEPS + 1)

    def sample(self, time: float, ranks: RankColumns) -> None:
        self._samples.append(_Sample(time, ranks))

    def clear(self) -> None:
        self._samples.clear()

    def is_known(self, time: float) -> bool:
        """Whether there is an earlier sample to compare with."""
        return self.covers(_LEAST_SECONDS, time)

    def covers(self, seconds: float, time: float) -> bool:
        """Whether there is a sample from so many seconds before."""
        return bool(self._samples) and time - self._samples[0].time >= seconds

    def of(self, time: float, rank: Rank) -> str:
        """What shows that a rank works: that it uses a CPU, that it writes or reads; "" where nothing does.

        Of late only: whoever just got stuck had worked until then.
        """
        if not self.is_known(time) or not rank.process.is_alive:
            return ""
        recent = self._samples[len(self._samples) // 2]
        before = recent if time - recent.time >= _LEAST_SECONDS else self._samples[0]
        return _between(_counters(before.ranks.get(rank.rank)), _counters(rank), time - before.time)

    def runnable(self, first: float, time: float, ranks: RankColumns) -> frozenset[int]:
        """Ranks of now that were in state R in half of the looks from `first` on, or in more.

        A thread that sleeps in a call that does not return is in that state at no time. One that has to share a CPU
        with many others is in it nearly always, and uses little of the CPU.
        """
        looks = [_runnable(sample.ranks) for sample in self._samples if first <= sample.time < time]
        looks.append(_runnable(ranks))
        numbers, times_seen = np.unique(np.concatenate(looks), return_counts=True)
        return frozenset(number for number in numbers[2 * times_seen >= len(looks)].tolist() if number in ranks)

    def candidates(self, first: float, time: float, ranks: RankColumns) -> list[int]:
        """The ranks of now that `since` may say something of: only these need to be looked at one by one."""
        found = set(ranks.with_workers)
        end, now = time, ranks
        for sample in reversed(self._samples):
            start, before = sample.time, sample.ranks
            if start < first:
                break
            if end - start >= _LEAST_SECONDS:
                found.update(_busy(before, now, end - start).tolist())
                end, now = start, before
        return sorted(number for number in found if number in ranks)

    def since(self, first: float, time: float, rank: Rank) -> str:
        """The same at any time from `first` on, as far as samples go back; the last such: some pause now and then."""
        if not rank.process.is_alive:
            return ""
        end, now = time, _counters(rank)
        for sample in reversed(self._samples):
            start = sample.time
            if start < first:
                break
            if end - start < _LEAST_SECONDS:
                continue
            before = _counters(sample.ranks.get(rank.rank))
            found = _between(before, now, end - start)
            if found or before is None:
                return found
            end, now = start, before
        return ""


def _runnable(ranks: RankColumns) -> Ints:
    return ranks.numbers[ranks.places.runnable & ranks.places.are_alive]


def _busy(before: RankColumns, now: RankColumns, seconds: float) -> Ints:
    """Ranks whose processes used a CPU between, or read or wrote enough."""
    numbers, then, here = np.intersect1d(before.numbers, now.numbers, assume_unique=True, return_indices=True)
    cpu = (now.places.cpu_seconds[here] - before.places.cpu_seconds[then]) / seconds
    read, written = ((each[here] - old[then]) / seconds
                     for each, old in zip(now.transferred, before.transferred, strict=True))  # fmt: skip
    return numbers[(cpu >= _CPU_LEAST) | (written >= _WRITTEN) | (read >= _READ)]


def _between(before: _Counters | None, now: _Counters | None, seconds: float) -> str:
    if before is None or now is None or before.pid != now.pid:
        return ""
    of_workers = sum(cpu - before.of_workers.get(pid, cpu) for pid, cpu in now.of_workers.items())
    cpu = (now.cpu_seconds - before.cpu_seconds + of_workers) / seconds
    waits = (now.wait_seconds - before.wait_seconds) / seconds
    written, read = (now.written - before.written) / seconds, (now.read - before.read) / seconds
    facts = [f"uses {100 * cpu:.0f} % of a CPU"] if cpu >= _CPU else []
    if _CPU_LEAST <= cpu < _CPU <= cpu + waits:  # other programs have it
        rest = min(waits, 1.0 - cpu)  # threads that wait at once are counted one by one
        facts = [f"uses {100 * cpu:.0f} % of a CPU and waits for one {words.percent(rest)} of the time"]
    facts += [f"writes {words.nbytes(written)}/s"] if before.written >= 0 and written >= _WRITTEN else []
    facts += [f"reads {words.nbytes(read)}/s"] if before.read >= 0 and read >= _READ else []
    return ", ".join(facts)


def _counters(rank: Rank | None) -> _Counters | None:
    if rank is None:
        return None
    process = rank.process
    of_workers = {worker.pid: worker.cpu_seconds for worker in process.workers}
    return _Counters(
        rank.pid, process.cpu_seconds, process.wait_seconds, of_workers, process.written_bytes, process.read_bytes
    )
