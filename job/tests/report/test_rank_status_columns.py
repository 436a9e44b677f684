"""Statuses are made in columns: each is what one rank's objects say, and no rank becomes an object for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from job.tests.analyzer.test_analyzer_columns import jobs, through_reports
from job.tests.support.analyzed import SECONDS
from job.tests.support.observations import member, rank
from tensorwire_job.protocol.decoding import rank_of
from tensorwire_job.report import History
from tensorwire_job.report.rank_status import STATES, WAIT_SECONDS, RankStatus, slowest, status_groups, statuses
from tensorwire_job.report.stragglers import Stragglers
from tensorwire_job.service.controller import Controller
from tests.support.drawn import drawn

if TYPE_CHECKING:
    from tensorwire_job.model import Finding, Observation, ProcessGroup, Rank

ERROR = "ValueError: no"


def waits(rank: Rank, group: ProcessGroup) -> bool:
    return rank.process.is_alive and (group.open_seconds or 0.0) >= WAIT_SECONDS


def longest(groups: list[ProcessGroup]) -> ProcessGroup:
    return max(groups, key=lambda group: group.open_seconds or 0.0)


class Plain:
    """The same, rank by rank."""

    def __init__(self, job: Observation, before: Observation | None) -> None:
        self.job, self.before = job, before
        self.members: dict[str, list[tuple[Rank, ProcessGroup]]] = {}
        for _, one in sorted(job.ranks.items()):
            for group in one.process_groups:
                if not group.is_pairwise:
                    self.members.setdefault(group.id, []).append((one, group))

    def front(self, group: ProcessGroup) -> int | None:
        return max((other.enqueued for _, other in self.members.get(group.id, ())), default=None)

    def awaited(self, group: ProcessGroup) -> ProcessGroup | None:
        inside = [other for one, other in self.members.get(group.id, ()) if waits(one, other)]
        return longest(inside) if inside else None

    def status(self, one: Rank) -> RankStatus:
        fronts = [(group, self.front(group)) for group in one.process_groups]
        behind = max((front - group.enqueued for group, front in fronts if front is not None), default=0)
        timed = [group.timing for group in one.process_groups if group.timing and not group.is_pairwise]
        rounds = sum(timing.num_rounds for timing in timed)
        mean = sum(timing.sum_seconds for timing in timed) / rounds if rounds else None
        return RankStatus(one.rank, *self.place(one, fronts), behind, mean)

    def place(self, one: Rank, fronts: list[tuple[ProcessGroup, int | None]]) -> Any:
        def found(state: str, seconds: float = 0.0, name: str = "", sequence: int = 0, title: str = "") -> Any:
            return state, name, sequence, title, one.phase, seconds

        opened = [group for group in one.process_groups if waits(one, group)]
        if not one.process.is_alive:
            return found("lost" if one.process.life == "lost" else "ended", one.process.gone_seconds or 0.0)
        if one.process.is_stopped:
            return found("stopped", longest(opened).open_seconds or 0.0 if opened else 0.0)
        if opened:
            group = longest(opened)
            name = group.operation.name if group.operation else ""
            return found("waits", group.open_seconds or 0.0, name, group.open_sequence, group.title)
        lacking = [(group, self.awaited(group)) for group, front in fronts if front and group.enqueued < front]
        lacked = [(group, other) for group, other in lacking if other is not None]
        if lacked:
            group, other = max(lacked, key=lambda pair: pair[1].open_seconds or 0.0)
            name = other.operation.name if other.operation else ""
            return found("absent", other.open_seconds or 0.0, name, group.enqueued + 1, group.title)
        before = self.before.ranks.get(one.rank) if self.before else None
        now = sum(group.completed for group in one.process_groups)
        earlier = sum(group.completed for group in before.process_groups) if before else now
        return found("moves" if now != earlier else "idle")


@drawn(20, 40)
@given(jobs)
def test_statuses_are_those_of_one_rank_after_the_other(states: list[Any]) -> None:
    before = None
    for job in through_reports(states):
        plain = Plain(job, before)
        expected = [plain.status(one) for _, one in sorted(job.ranks.items())]
        found = statuses(job, before)
        assert list(found) == expected
        assert sorted(number for group in status_groups(found) for number in spelled(group.ranks)) == sorted(job.ranks)
        gravest = [STATES.index(group.state) for group in status_groups(found)]
        assert gravest == sorted(gravest, reverse=True)
        assert found.longest_wait == max((s.seconds for s in expected if s.state in ("waits", "absent")), default=0.0)
        before = job


def spelled(ranges: str) -> list[int]:
    ends = [part.split("-") for part in ranges.split(", ")]
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]


@pytest.mark.parametrize("fails", [False, True])
def test_no_poll_makes_an_object_of_every_rank(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    made: set[tuple[int, int]] = set()
    polls = 0

    def counted(row: Any, *rest: Any) -> Rank:
        one = rank_of(row, *rest)
        made.add((polls, one.rank))
        return one

    monkeypatch.setattr("tensorwire_job.protocol.report_columns.rank_of", counted)
    world = 48
    controller, history, stragglers = Controller(SECONDS), History(), Stragglers()
    states: list[Any] = []
    for time in range(12):
        ranks = [rank(n, member(10 + time, size=world), world=world) for n in range(world)]
        if fails and time > 5:
            ranks = [rank(n, member(16, waits=time - 5.0, size=world), world=world) for n in range(world)]
            ranks[7] = rank(7, member(15, idle=time - 4.0, size=world), world=world)
            ranks[7].process.exit_reason, ranks[7].process.exit_kind = ERROR, "failure"
            ranks[7].process.exit_seconds = time - 5.0
        states.append((ranks, []))
    findings: list[Finding] = []
    for job in through_reports(states):
        polls += 1
        findings = controller.decide(job).findings
        history.add(job, findings)
        stragglers.add(job)
        status_groups(history.statuses)
        slowest(history.statuses)
        assert sum(poll == polls for poll, _ in made) < world / 4  # suspects, and a few of those that wait
    assert [one.suspects for one in findings] == ([[7]] if fails else [])
