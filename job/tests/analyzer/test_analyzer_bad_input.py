"""The analyzer on reports that are late, missing, doubled or at odds with each other: it names no innocent rank for
sure, and takes bounded time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from job.tests.support.analyzed import SECONDS, last, only, told, watch
from job.tests.support.observations import WORLD, member, observed, rank
from job.tests.support.observed_jobs import every_rank, hung, not_entering
from tensorwire_job.analyzer import Analyzer
from tensorwire_job.model import MAX_CALLS, Call, Operation
from tensorwire_job.protocol.encoding import Encoder
from tensorwire_job.service.merge import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorwire_job.model import Observation, ProcessGroup

HOURS = 3600.0


def without(at: Callable[[float], Observation], numbers: set[int], until: float) -> Callable[[float], Observation]:
    """The same, without news of these ranks before that time."""

    def seen(now: float) -> Observation:
        job = at(now)
        if now >= until:
            return job
        return replace(job, ranks={number: one for number, one in job.ranks.items() if number not in numbers})

    return seen


@every_rank
def test_a_rank_that_reports_late_is_named_once_it_does(culprit: int) -> None:
    for now, analysis in watch(without(hung(not_entering(culprit)), {culprit}, 20.0), 24.0):
        for finding in analysis.findings:
            assert finding.suspects in ([], [culprit])
            assert now >= 20.0 or finding.confidence == "low", "it was never seen"
    assert told(analysis.findings, "confidence") == ("TW-H1", [culprit], "high")


@every_rank
def test_a_victim_that_reports_late_is_never_named(culprit: int) -> None:
    victim = (culprit + 1) % WORLD
    for now, analysis in watch(without(hung(not_entering(culprit)), {victim}, 20.0), 24.0):
        for finding in analysis.findings:
            assert victim not in finding.suspects
            assert now >= 20.0 or finding.confidence != "high"
    assert only(analysis.findings).suspects == [culprit]


@every_rank
def test_of_a_rank_that_never_reports_nobody_else_is_accused(culprit: int) -> None:
    at = without(hung(lambda number, age: [member(31, waits=age)]), {culprit}, HOURS)
    finding = only(last(at, 20.0))
    assert (finding.code, finding.confidence) == ("TW-UNKNOWN", "low")
    assert set(finding.suspects) <= {culprit}


class Agent:
    """A node whose clock is off by some hours."""

    def __init__(self, nodes: Nodes, name: str, numbers: range, offset: float) -> None:
        self.nodes, self.name, self.numbers, self.offset = nodes, name, numbers, offset
        self.encoder = Encoder()
        nodes.join(name, 0.0)

    def report(self, job: Observation, now: float) -> None:
        own = {number: job.ranks[number] for number in self.numbers}
        seen = replace(job, time=job.time + self.offset, ranks=own)
        self.nodes.report(self.name, self.encoder.report(seen), now)


@every_rank
@pytest.mark.parametrize("offsets", [(7 * HOURS, 0.0), (0.0, 300 * HOURS)])
def test_clocks_that_are_hours_apart_change_nothing(culprit: int, offsets: tuple[float, float]) -> None:
    nodes, analyzer, at = Nodes("run"), Analyzer(SECONDS), hung(not_entering(culprit))
    agents = [Agent(nodes, f"n{i}", range(2 * i, 2 * i + 2), offset) for i, offset in enumerate(offsets)]
    for now in map(float, range(15)):
        for agent in agents:
            agent.report(at(now), 1000.0 + now)
        found = analyzer.update(nodes.observe(1000.0 + now)).findings
    finding, expected = only(found), only(last(at, 14.0))
    assert (finding.code, finding.suspects, finding.confidence) == ("TW-H1", [culprit], "high")
    assert finding.summary == expected.summary
    assert finding.since is not None
    assert 1000.0 + 3.0 - 0.5 <= finding.since <= 1000.0 + 3.5, "when the hang began, on the clock of the analyzer"


@every_rank
def test_a_rank_that_two_agents_report_is_one_rank(culprit: int) -> None:
    """As when a node is known by two names: the same ranks come twice, at unlike times."""
    nodes, analyzer, at = Nodes("run"), Analyzer(SECONDS), hung(not_entering(culprit))
    agents = [Agent(nodes, name, range(WORLD), 0.0) for name in ("n", "n.domain")]
    for now in map(float, range(15)):
        for lag, agent in enumerate(agents):
            agent.report(at(max(now - lag, 0.0)), 1000.0 + now)
        found = analyzer.update(nodes.observe(1000.0 + now)).findings
    assert told(found, "victims") == ("TW-H1", [culprit], WORLD - 1)


@every_rank
@pytest.mark.parametrize("has_members", [False, True], ids=["members unknown", "members known"])
def test_a_group_that_half_of_its_members_know(culprit: int, has_members: bool) -> None:
    """Two of four wait in its first operation; the others, one of whom is stuck elsewhere, do not know of it yet."""
    knowing = {(culprit + 1) % WORLD, (culprit + 2) % WORLD}

    def groups(number: int, age: float) -> list[ProcessGroup]:
        world = member(30)
        if number not in knowing:
            return [world] if number == culprit else [member(31, waits=age)]
        more: dict[str, Any] = {"members": range(WORLD)} if has_members else {}
        return [world, member(1, waits=age, group="sub", size=WORLD, **more)]

    for finding in last(hung(groups), 14.0):
        assert (finding.code, set(finding.suspects)) in (("TW-H1", {culprit}), ("TW-H2", set()), ("TW-UNKNOWN", set()))
        assert finding.confidence != "high" or finding.suspects == [culprit]


def history(*names: str, first: int = 1) -> list[Call]:
    return [
        Call("world", Operation(number, name, signature=hash(name) | 1)) for number, name in enumerate(names, first)
    ]


@every_rank
@pytest.mark.parametrize(
    "others",
    [
        history(*["all_reduce"] * MAX_CALLS, first=10**9),  # numbers that no count has come to
        history(*["barrier"] * MAX_CALLS, first=2**62),
        history("all_reduce", "all_reduce") + history("barrier", first=1),  # one number twice, called differently
        [],
    ],
    ids=["ahead of the counts", "overflown", "twice", "none"],
)
def test_histories_that_contradict_the_counts_do_not_hide_who_is_missing(culprit: int, others: list[Call]) -> None:
    def at(now: float) -> Observation:
        job = hung(not_entering(culprit))(now)
        for number, one in job.ranks.items():
            one.calls = others if number != culprit else history(*["all_reduce"] * 3, first=28)
        return job

    assert told(last(at)) == ("TW-H1", [culprit])


def test_a_history_longer_than_any_probe_writes_takes_bounded_time() -> None:
    calls = history(*["all_reduce"] * 10_000)
    ranks = [rank(number, member(31, waits=9.0), calls=list(calls)) for number in range(WORLD)]
    start = time.process_time()
    analyzer = Analyzer(SECONDS)
    for now in (0.0, 20.0):
        analyzer.update(observed(now, ranks))
    assert time.process_time() - start < 10.0


def test_a_circle_of_many_messages_takes_bounded_time_and_names_nobody() -> None:
    """The graph alone takes more (test_graph.py); the table of states, groups and findings come here."""
    count = 2000

    def pair(a: int, b: int) -> str:
        return f"pair{min(a, b)}-{max(a, b)}"

    def at(age: float) -> Observation:
        ranks = []
        for number in range(count):
            after, before = (number + 1) % count, (number - 1) % count
            waiting = member(5, waits=age, group=pair(number, after), size=2, name="recv", root=after)
            idle = member(5, group=pair(before, number), size=2, name="recv", root=before)
            ranks.append(rank(number, waiting, idle, world=count))
        return observed(100.0 + age, ranks, world=count)

    analyzer = Analyzer(SECONDS)
    start = time.process_time()
    analyzer.update(at(1.0))
    finding = only(analyzer.update(at(20.0)).findings)
    assert time.process_time() - start < 6.0
    assert (finding.code, finding.suspects, finding.victims) == ("TW-H2", [], count)
    assert finding.circle == [], "too many to be drawn"
    assert len(finding.summary) < 1000
