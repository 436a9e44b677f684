"""What reports of agents cost in our encoding and in msgspec: bytes, and CPU time at both ends.

`python -m job.benchmarks.encoding > job/benchmarks/results/diagnosis-encoding.md` writes a table. Every node of a
simulated job of 1,024 ranks reports once a second, and the analyzer puts its ranks and connections together once a
second. The job is healthy; or it hangs, and its ranks wait with a busy processor, as NCCL's do, or asleep, as gloo's
do. Both encodings send changes only, so the first reports, which are whole, are left out. Times include everything
between the data classes and the bytes of a message; with ours, the analyzer's observation is columns, of which it makes
data classes only where it looks. They are CPU times of one core for 1,000 ranks and one second of the job: the least of
all seconds in several rounds, in which the two take turns.
"""

from __future__ import annotations

import gc
import platform
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tensorwire_job.protocol.connection import _from_text, _to_text
from tensorwire_job.protocol.encoding import Encoder
from tensorwire_job.service.merge import Nodes, no_collection

from .. import environment
from . import msgspec_encoding
from .layout import Layout
from .simulated_job import SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorwire_job.model import Observation, Rank

_LAYOUT = Layout(8, 4, 32)
_SECONDS = 5
_ROUNDS = 3
_HANG = 30.0  # seconds from the start
_STATES = ("healthy", "hangs, ranks busy", "hangs, ranks asleep")


class Cost(NamedTuple):
    """The cost of 1,000 ranks for one second."""

    nbytes: float  # a rank
    agents_ms: float
    reading_ms: float  # the analyzer reads and checks reports
    building_ms: float  # and makes an observation of what it knows


def observations(state: str, *, with_edges: bool) -> Iterator[dict[str, Observation]]:
    """What the agents see, second by second."""
    job = SimulatedJob(_LAYOUT, 0)
    start = 2.0
    if state != "healthy":
        job.advance(_HANG)
        job.conditions.absent.add(300)
        start = 2 * _HANG
    job.advance(start)
    first = job.observe(with_edges=with_edges)
    for second in range(_SECONDS):
        if state == "hangs, ranks asleep":
            yield {node: _aged(seen, float(second)) for node, seen in first.items()}
        else:
            job.advance(start + second)
            yield job.observe(with_edges=with_edges)


def _aged(seen: Observation, seconds: float) -> Observation:
    """The same when only time has passed."""
    ranks = {}
    for number, rank in seen.ranks.items():
        groups = [
            replace(
                group, open_seconds=_sum(group.open_seconds, seconds), idle_seconds=_sum(group.idle_seconds, seconds)
            )
            for group in rank.process_groups
        ]
        ranks[number] = replace(rank, process_groups=groups)
    return replace(seen, time=seen.time + seconds, ranks=ranks)


def _sum(age: float | None, seconds: float) -> float | None:
    return None if age is None else age + seconds


class _Ours:
    """The analyzer's end: an observation is columns of what all nodes sent."""

    new_encoder = Encoder

    def __init__(self) -> None:
        self._nodes = Nodes("simulated")
        self._names: set[str] = set()

    def read(self, node: str, message: dict[str, Any]) -> None:
        if node not in self._names:
            self._names.add(node)
            self._nodes.join(node, 0.0)
        self._nodes.report(node, message, 0.0)

    def observe(self) -> tuple[Iterable[Rank], int]:
        seen = self._nodes.observe(0.0)
        return seen.ranks.values(), len(seen.edges)


class _Msgspec:
    """The same with objects of everything."""

    new_encoder = msgspec_encoding.Encoder

    def __init__(self) -> None:
        self._decoders: dict[str, msgspec_encoding.Decoder] = defaultdict(msgspec_encoding.Decoder)

    def read(self, node: str, message: dict[str, Any]) -> None:
        self._decoders[node].apply(message["report"])

    def observe(self) -> tuple[Iterable[Rank], int]:
        with no_collection():
            ranks = [rank for node, decoder in self._decoders.items() for rank in decoder.ranks(node, 0.0)]
            return ranks, sum(len(list(decoder.edges())) for decoder in self._decoders.values())


_WAYS: Final[dict[str, type[_Ours | _Msgspec]]] = {"ours": _Ours, "msgspec": _Msgspec}


def measure(way: type[_Ours | _Msgspec], state: str, *, with_edges: bool) -> Cost:
    """The cost of reports in a job of this state."""
    encoders: dict[str, Any] = defaultdict(way.new_encoder)
    analyzer = way()
    seconds = []
    for second, seen in enumerate(observations(state, with_edges=with_edges)):
        gc.collect()
        gc.freeze()  # the simulated job is neither end's to collect
        nbytes, agents, reading = 0, 0.0, 0.0
        for node, observation in seen.items():
            start = time.thread_time()
            report = encoders[node].report(observation)
            message = report if type(report) is dict else {"report": report}
            text = _to_text({"type": "report", **message})
            sent = time.thread_time()
            analyzer.read(node, _from_text(text))
            nbytes, agents, reading = nbytes + len(text), agents + sent - start, reading + time.thread_time() - sent
        start = time.thread_time()
        ranks, num_edges = analyzer.observe()
        building = time.thread_time() - start
        gc.unfreeze()
        sent_ranks = (rank for observation in seen.values() for rank in observation.ranks.values())
        if _counts(ranks) != _counts(sent_ranks) or num_edges != sum(len(each.edges) for each in seen.values()):
            raise AssertionError("what arrived is not what was sent")
        if second:
            seconds.append((nbytes, agents, reading, building))
    scale = 1000 / _LAYOUT.world_size
    mean_nbytes = sum(nbytes for nbytes, *_ in seconds) / len(seconds)
    least = [1e3 * scale * min(second[part] for second in seconds) for part in (1, 2, 3)]
    return Cost(mean_nbytes / _LAYOUT.world_size, *least)


def _counts(ranks: Iterable[Rank]) -> list[tuple[int, ...]]:
    return sorted((rank.rank, *(group.completed for group in rank.process_groups)) for rank in ranks)


def main() -> None:
    print("# What a report of an agent costs\n")
    print(
        f"A simulated job of {_LAYOUT.world_size:,} ranks. Every node reports once a second, and the analyzer puts an"
    )
    print("observation together once a second. CPU time is that of one core for 1,000 ranks and one second.\n")
    versions = f"Python {platform.python_version()}, msgspec {msgspec.__version__}"
    print(f"- Machine: {environment.describe('')['cpu']}; {versions}")
    print("- `python -m job.benchmarks.encoding`\n")
    print("| job | TCP edges | encoding | bytes a rank | agents, ms | analyzer reads, ms | analyzer builds, ms |")
    print("|---|---|---|---|---|---|---|")
    for with_edges in (False, True):
        for state in _STATES:
            rounds = [[measure(way, state, with_edges=with_edges) for way in _WAYS.values()] for _ in range(_ROUNDS)]
            for name, costs in zip(_WAYS, zip(*rounds, strict=True), strict=True):
                cost = Cost(*map(min, zip(*costs, strict=True)))
                print(
                    f"| {state} | {len(_LAYOUT.edges) if with_edges else 0} | {name} | {cost.nbytes:.1f} | "
                    f"{cost.agents_ms:.1f} | {cost.reading_ms:.1f} | {cost.building_ms:.1f} |"
                )


if __name__ == "__main__":
    main()
