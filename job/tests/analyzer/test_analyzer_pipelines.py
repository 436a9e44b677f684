"""The analyzer on pipelines that send and receive, and count what they wait for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from job.tests.support.analyzed import SECONDS, everything, last, only, told
from job.tests.support.observations import WORLD, edge, member, observed, rank
from job.tests.support.observed_jobs import every_rank
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import ProcessGroup, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorwire_job.model import Edge, Observation

SLOW_FROM = 20.0
EVEN = (0.04, 0.04, 0.04, 0.04)


def pipeline(
    before: Sequence[float],
    after: Sequence[float],
    *,
    transfer: float = 0.0,
    edges: Callable[[float], list[Edge]] | None = None,
    others: Callable[[int, int], list[ProcessGroup]] = lambda number, steps: [],
) -> Callable[[float], Observation]:
    """Four stages that take so many seconds of a step each. A step is as long as one and a half times the slowest
    stage and the transfer; the rest of it a stage waits, as long for those before it as for those behind."""

    def at(time: float) -> Observation:
        phases = (before, 0.0, min(time, SLOW_FROM)), (after, transfer, max(time - SLOW_FROM, 0.0))
        steps = [int(seconds / (1.5 * max(own) + more)) for own, more, seconds in phases]
        waited = [
            sum(
                count * (1.5 * max(own) + more - own[stage])
                for count, (own, more, _) in zip(steps, phases, strict=True)
            )
            for stage in range(WORLD)
        ]
        return observed(
            time,
            [rank(n, *_pairs(n, sum(steps), waited[n]), *others(n, sum(steps))) for n in range(WORLD)],
            edges(time) if edges else [],
        )

    return at


def _pairs(stage: int, count: int, waited: float) -> list[ProcessGroup]:
    """Activations go to the next stage, and gradients back."""
    ends = [(a, b) for a in range(WORLD) for b in (a - 1, a + 1) if stage in (a, b) and 0 <= b < WORLD]
    received = [each for each in ends if each[1] == stage]
    found = []
    for a, b in ends if count else []:
        name, peer = ("send", b) if stage == a else ("recv", a)
        timing = Timing(1, count, waited / len(received) if stage == b else 0.0, 0.0, 0.0, 0, count)
        found.append(member(count, group=f"{a}>{b}", size=2, name=name, root=peer, timing=timing))
    return found


@every_rank
def test_the_stage_that_takes_longer_is_named(culprit: int) -> None:
    after = [0.8 if stage == culprit else 0.04 for stage in range(WORLD)]
    assert told(last(pipeline(EVEN, after), 60), "confidence") == ("TW-S1", [culprit], "medium")


def test_two_stages_that_take_longer_are_named() -> None:
    finding = only(last(pipeline(EVEN, (0.04, 0.8, 0.04, 0.8)), 60))
    assert (finding.code, sorted(finding.suspects)) == ("TW-S1", [1, 3])


@pytest.mark.parametrize(("before", "factor"), [(EVEN, 8), ((0.1, 0.04, 0.04, 0.12), 8), ((0.1, 0.02, 0.02, 0.2), 1)])
def test_stages_that_all_have_more_to_do_are_no_finding(before: tuple[float, ...], factor: int) -> None:
    """However unequal they are by nature."""
    assert not everything(pipeline(before, [factor * own for own in before]), 60)


def test_messages_that_take_longer_are_no_stage() -> None:
    """No rank takes longer by itself: only the edges can tell."""
    assert not everything(pipeline(EVEN, EVEN, transfer=0.8), 60)

    def edges(time: float) -> list[Edge]:
        shares = {(0, 1): 0.05, (1, 2): 0.9, (2, 3): 0.05}
        ends = [(a, b, share) for (a, b), share in shares.items()]
        return [
            edge(number, peer, busy_seconds=share * max(0.0, time - SLOW_FROM))
            for a, b, share in ends
            for number, peer in ((a, b), (b, a))
        ]

    finding = only(last(pipeline(EVEN, EVEN, transfer=0.8, edges=edges), 60))
    assert finding.code == "TW-S2"
    assert set(finding.suspects) <= {1, 2}


def test_a_rank_whose_waits_are_not_known_is_not_blamed() -> None:
    def at(time: float) -> Observation:
        job = pipeline(EVEN, (0.8, 0.04, 0.04, 0.04))(time)
        for one in job.ranks.values():
            for group in one.process_groups:
                if group.id in ("2>3", "3>2"):
                    group.timing = None
        return job

    assert told(last(at, 60)) == ("TW-S1", [0])


def test_collectives_are_timed_before_a_stage_is_blamed() -> None:
    """The stage may be late because it waits in one of them. If their times do not come, that lowers the confidence."""
    at = pipeline(EVEN, (0.04, 0.8, 0.04, 0.04), others=lambda number, steps: [member(steps)])
    analyzer, asked = Analyzer(SECONDS), False
    for second in range(int(SLOW_FROM) + 9):
        analysis = analyzer.update(at(float(second)))
        asked = asked or "world" in analysis.time_from
        assert not analysis.findings
    assert asked
    assert told(last(at, 70), "confidence") == ("TW-S1", [1], "low")
