"""What reports of agents cost in our encoding and in msgspec: bytes, and CPU time at both ends.

`python -m benchmarks.diagnosis.encoding > benchmarks/results/diagnosis-encoding.md` writes a table. Every node of a
simulated job of 1,024 ranks reports once a second, and the analyzer puts its ranks and connections together once a
second. The job is healthy; or it hangs, and its ranks wait with a busy processor, as NCCL's do, or asleep, as gloo's
do. Both encodings send changes only, so the first reports, which are whole, are left out. Times include everything
between the data classes and the bytes of a message. They are CPU times of one core for 1,000 ranks and one second of
the job: the least of all seconds in several rounds, in which the two take turns.
"""

from __future__ import annotations

import gc
import platform
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tensorwire.diagnosis.protocol import encoding
from tensorwire.diagnosis.protocol.connection import _from_text, _to_text

from .. import environment
from . import msgspec_encoding
from .layout import Layout
from .simulated_job import SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorwire.diagnosis.model import Observation, Rank

_LAYOUT = Layout(8, 4, 32)
_SECONDS = 5
_ROUNDS = 3
_HANG = 30.0  # seconds from the start
_WAYS = {"ours": encoding, "msgspec": msgspec_encoding}
_STATES = ("healthy", "hangs, ranks busy", "hangs, ranks asleep")


class Cost(NamedTuple):
    """Of 1,000 ranks for one second."""

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


def measure(module: Any, state: str, *, with_edges: bool) -> Cost:
    """The cost of reports in a job of this state."""
    encoders: dict[str, Any] = defaultdict(module.Encoder)
    decoders: dict[str, Any] = defaultdict(module.Decoder)
    seconds = []
    for second, seen in enumerate(observations(state, with_edges=with_edges)):
        gc.collect()
        gc.freeze()  # the simulated job is neither end's to collect
        nbytes, agents, reading, building = 0, 0.0, 0.0, 0.0
        for node, observation in seen.items():
            start = time.thread_time()
            report = encoders[node].report(observation)
            message = report if type(report) is dict else {"report": report}
            text = _to_text({"type": "report", **message})
            sent = time.thread_time()
            taken = _from_text(text)
            decoders[node].apply(taken.get("report", taken))
            read = time.thread_time()
            gc.disable()  # as in the service
            ranks, edges = list(decoders[node].ranks(node, 0.0)), list(decoders[node].edges())
            built = time.thread_time()
            gc.enable()
            if _counts(ranks) != _counts(observation.ranks.values()) or len(edges) != len(observation.edges):
                raise AssertionError("what arrived is not what was sent")
            nbytes += len(text)
            agents, reading, building = agents + sent - start, reading + read - sent, building + built - read
        gc.unfreeze()
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
    print("- `python -m benchmarks.diagnosis.encoding`\n")
    print("| job | TCP edges | encoding | bytes a rank | agents, ms | analyzer reads, ms | analyzer builds, ms |")
    print("|---|---|---|---|---|---|---|")
    for with_edges in (False, True):
        for state in _STATES:
            rounds = [
                [measure(module, state, with_edges=with_edges) for module in _WAYS.values()] for _ in range(_ROUNDS)
            ]
            for name, costs in zip(_WAYS, zip(*rounds, strict=True), strict=True):
                cost = Cost(*map(min, zip(*costs, strict=True)))
                print(
                    f"| {state} | {len(_LAYOUT.edges) if with_edges else 0} | {name} | {cost.nbytes:.1f} | "
                    f"{cost.agents_ms:.1f} | {cost.reading_ms:.1f} | {cost.building_ms:.1f} |"
                )


if __name__ == "__main__":
    main()
