"""The verdict on ranks that stand still together: who explains it, what these did or did not do, and who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import words
from ..graph import explain
from ..view.confidence import Basis
from ..view.histories import out_of_habit
from ..view.job import RUNS
from ..view.out_of_step import out_of_step
from ..view.patience import LONG, is_unusual
from ..view.states import FOR_KEY, IN_INIT, States
from ..view.waits import Wait, most_prominent
from .hang_inside import all_entered, stopped_inside
from .mismatch import inconsistent
from .unlike_calls import accused, parted, unlike_calls

if TYPE_CHECKING:
    from ...model import Level
    from ..graph import Explanation
    from ..view.job import Job
    from ..view.transport import Transport
    from ..view.verdict import Verdict

_MAX_WAITS = 4  # that the evidence has
_MAX_ACCOUNTS = 5
_STALE_SECONDS = 3.0
_COMPILES = "torch.compile"
_OUT_OF_HABIT = "its last calls do not follow each other as those before did, and those of the others do"


@dataclass
class Part:
    """Ranks that stand still together, and have nothing to do with others that may stand still too."""

    job: Job
    transport: Transport
    states: States
    part: set[int]
    waits: list[Wait]

    def verdict(self) -> Verdict:
        explanation = explain(self.states.graph, self.part)
        verdict = self._verdict(explanation)
        verdict.finding.circle = self.states.links(explanation.circle)
        return verdict

    def _verdict(self, explanation: Explanation) -> Verdict:
        if len(self.waits) == 1 and self.waits[0].is_pairwise and not self.waits[0].missing:
            return self._entered(self.waits[0])
        inside = [found for each in explanation.single if (found := self.states.entered_by_all(each)) is not None]
        ranks = [number for number in explanation.single if number >= 0]
        if inside:
            return self._entered(inside[0])
        if len(ranks) == 1:
            return self._of(ranks, Basis.STATE, [])
        if ranks:
            return self._tie(ranks)
        if explanation.together:
            return self._of_several(explanation.together, Basis.STATE)
        if explanation.partly:
            return self._of_several(explanation.partly, Basis.COMPARISON)
        return self._sides()

    def _entered(self, wait: Wait) -> Verdict:
        if wait.group is None:
            if wait.call == IN_INIT:
                return init_does_not_return(self.job, wait)
            return self._no_verdict(wait)
        unlike = unlike_calls(self.job, wait) if len(wait.sides) < 2 else None
        return unlike or all_entered(self.job, self.transport, wait, len(self._victims([wait.vertex])))

    def _no_verdict(self, wait: Wait) -> Verdict:
        return self.job.verdict(
            "hang", "TW-UNKNOWN", None, [], f"all ranks are in {wait.title}, and the cause is unknown",
            [wait.told()], Basis.REMAINDER, victims=len(wait.inside), seconds=wait.seconds,
            witnesses=wait.inside[:32],
        )  # fmt: skip

    def _tie(self, ranks: list[int]) -> Verdict:
        """Several explain it as well: their histories decide, or else the order that all others follow.

        A few that wait for a key may wait for one that nobody has to set.
        """
        for wait in self.waits:
            if wait.call == FOR_KEY and 2 * len(wait.inside) < len(self.job.ranks) and set(wait.inside) <= set(ranks):
                return self._waits_for_key(wait)
        for found, basis, why in (
            (accused(self.job), Basis.COMPARISON, parted(self.job)),
            (out_of_step(self.job), Basis.COMPARISON, self._order_of(out_of_step(self.job))),
            (out_of_habit(self.job.columns, ranks), Basis.COMPARISON, [_OUT_OF_HABIT]),
        ):
            left = [number for number in ranks if number in found]
            if len(left) == 1:
                return self._of(left, basis, why)
        places: dict[int, list[int]] = {}
        for number in ranks:
            own = self.states.of[number]
            places.setdefault(id(most_prominent(own)) if own else number, []).append(number)
        if len(ranks) == 2 or len(places) == 1:
            return self._sides_of([[number] for number in ranks])
        return self._sides_of(list(places.values()))

    def _waits_for_key(self, wait: Wait) -> Verdict:
        """H1: the others wait for it, and it waits for what none of them may have to do."""
        others = [each for each in self.states.leading_to(wait.inside) if each is not wait]
        about = most_prominent(others or [wait])
        has, victims = words.verb(wait.inside, "has", "have"), self._victims(wait.inside)
        return self.job.verdict(
            "hang", "TW-H1", about.group, wait.inside,
            f"{words.ranks(wait.inside)} {has} not entered {about.title}; "
            f"{words.count(len(victims), 'rank')} {words.verb(victims, 'waits', 'wait')} for "
            f"{words.verb(wait.inside, 'it', 'them')}",
            [about.told(), *(self._account(about, number) for number in wait.inside[:_MAX_ACCOUNTS])],
            Basis.COMPARISON, victims=len(victims), seconds=about.seconds,
        )  # fmt: skip

    def _of_several(self, vertices: Sequence[int], basis: Basis) -> Verdict:
        inside = [wait for each in vertices if (wait := self.states.entered_by_all(each)) is not None]
        ranks = [number for number in vertices if number >= 0]
        if not ranks:
            return self._entered(most_prominent(inside))
        return self._of(self._in_order(ranks), basis, [])

    def _in_order(self, ranks: Sequence[int]) -> list[int]:
        """Ranks that have declared what they do are suspected last, and first the one that is furthest behind."""
        entered: dict[int, int] = {}
        for wait in self.waits:
            if wait.group is not None:
                for number in set(ranks).intersection(wait.missing):
                    entered[number] = min(
                        entered.get(number, wait.sequence), wait.group.members[number].enqueued
                        if number in wait.group.index_of else 0,
                    )  # fmt: skip
        return sorted(ranks, key=lambda number: (number in self.job.phases, entered.get(number, 0), number))

    def _of(self, ranks: list[int], basis: Basis, why: list[str]) -> Verdict:
        """On ranks that explain it, all alike: all wait, or none does."""
        job, states = self.job, self.states
        if states.of[ranks[0]] and len(ranks) == 1:
            return self._called_another(ranks[0], basis, why)
        waits = states.leading_to(ranks)
        lacking = [wait for wait in waits if not set(ranks).isdisjoint(wait.missing)]
        if not lacking:  # it is in the operation, with another call
            return self._sides()
        wait = most_prominent(lacking)
        dead = [number for number in ranks if not job.ranks[number].process.is_alive]
        moving = [number for number in ranks if number in states.moving]
        if len(moving) == len(ranks):
            meant = self._goes_on(wait, ranks)
            if meant is not None:
                return meant
            strays = [n for n in out_of_step(job) if n in self._victims(ranks) and n not in states.moving]
            if strays:
                return self._left_order(wait, strays)
        if len(ranks) == 1 and self._was_inside(wait, ranks[0]):
            return stopped_inside(job, wait, ranks[0], len(self._victims(ranks)))
        return self._not_entered(wait, ranks, moving, dead, basis, why)

    def _not_entered(
        self, wait: Wait, ranks: list[int], moving: list[int], dead: list[int], basis: Basis, why: list[str]
    ) -> Verdict:
        """H1; a notice where all have declared what they do instead, or compile. LOST where they are gone."""
        job = self.job
        stopped = set(job.columns.numbers[job.columns.places.are_stopped].tolist())
        victims = self._victims(ranks)
        members = set(wait.group.numbers.tolist()) if wait.group else set()
        also = sorted(stopped & members - set(ranks)) if set(ranks) <= stopped else []
        named = [number for number in ranks if number in wait.missing]
        suspects, victims = [*ranks, *also], victims - set(also)
        doubts = self._doubts(wait, named, moving)
        is_vague = wait.group is None and wait.call != IN_INIT  # which ranks have to come to it
        if doubts or is_vague or any(job.is_busy(job.ranks[number]) for number in named):
            basis = max(basis, Basis.COMPARISON)
        if 2 * len(ranks) > (wait.group.size if wait.group else job.world_size) and not also:
            basis = max(basis, Basis.COMPARISON)
        facts = [other.told() for other in [wait, *(each for each in self._path(ranks) if each is not wait)]]
        facts = facts[:_MAX_WAITS]
        facts += [self._account(wait, number) for number in named[:_MAX_ACCOUNTS]]
        facts += [f"rank {number} is stopped as well, in an operation" for number in also[:_MAX_ACCOUNTS]]
        late = [number for number in wait.missing if number not in ranks and self.states.of[number]]
        in_calls = [number for number in late if any(each.group is None for each in self.states.of[number])]
        facts += [job.account(number) for number in in_calls[:_MAX_ACCOUNTS]]
        if late:
            facts.append(
                f"{words.ranks(late)} {words.verb(late, 'has', 'have')} not entered it either, "
                f"but {words.verb(late, 'waits', 'wait')} in another operation"
            )
        level: Level = "finding"
        if all(job.phases.get(number) for number in ranks) or self._compile(ranks):
            level = "notice"
        return job.verdict(
            "no progress" if wait.group is None else "hang",
            "TW-LOST" if dead and len(dead) == len(ranks) else "TW-H1",
            wait.group,
            suspects,
            self._summary(wait, ranks, named, also, victims),
            [*facts, *doubts, *why],
            basis,
            victims=len(victims),
            level=level,
            seconds=wait.seconds,
            is_incomplete=bool(wait.unseen) or self._rests_on_stale([*ranks, *wait.inside]),
        )

    def _rests_on_stale(self, numbers: Sequence[int]) -> bool:
        """Whether the page of a rank that runs is old."""
        columns = self.job.columns
        places = [columns.place_of[number] for number in numbers if number in columns.place_of]
        old = columns.places.heartbeat_seconds[places] > _STALE_SECONDS
        runs = columns.places.are_alive[places] & ~columns.places.are_stopped[places]
        return bool((old & runs).any())

    def _account(self, wait: Wait, number: int) -> str:
        where, works = "", self.job.doing(self.job.ranks[number]) if wait.group is None else ""
        if wait.group is not None and not wait.is_pairwise and number in wait.group.index_of:
            where = f"has entered #{wait.group.members[number].enqueued} and nothing since"
        if wait.call == IN_INIT and number in self.job.runnable:
            works = works or RUNS
        return self.job.account(number, where=where, works=works)

    def _summary(self, wait: Wait, ranks: list[int], named: list[int], also: list[int], victims: set[int]) -> str:
        job = self.job
        entered = f"its end of {wait.title}" if wait.is_pairwise else wait.title
        has = words.verb(named, "has", "have")
        if also:
            waiting = f"; {words.count(len(victims), 'rank')} {words.verb(victims, 'waits', 'wait')} for them"
            all_stopped = [*ranks, *also]
            text = f"{words.ranks(all_stopped)} are stopped, {words.ranks(named)} outside {entered}"
            return text + (waiting if victims else "")
        what = f"entered {entered}"
        if wait.call == IN_INIT:
            what = f"called {wait.call}"
        elif wait.is_any:
            what = f"set what others wait for ({wait.call})"
        elif wait.group is None:
            what = f"come to {wait.call}"
        whom = "in it" if wait.group is None else f"for {words.verb(named, 'it', 'them')}"
        phases = sorted({job.phases[number] for number in ranks if job.phases.get(number)})
        return (
            f"{words.ranks(named)} {has} not {what}; {words.count(len(victims), 'rank')} "
            f"{words.verb(victims, 'waits', 'wait')} {whom}"
            + (f" (in declared phase: {', '.join(phases)})" if phases and wait.group else "")
        )

    def _doubts(self, wait: Wait, named: list[int], moving: list[int]) -> list[str]:
        """What speaks for it that they may well come, or that the trouble is with those inside."""
        job, doubts = self.job, []
        if wait.is_pairwise and not any(job.ranks[number].timed for number in named):
            doubts.append("until operations are timed, nobody sees that a rank waits for what isend or irecv began")
        if moving:
            doubts.append(
                f"{words.ranks(moving)} {words.verb(moving, 'completes', 'complete')} other operations meanwhile"
            )
        working = {number: doing for number in named if (doing := job.doing(job.ranks[number]))}
        doubts += [f"rank {number} makes progress by itself: it {doing}" for number, doing in list(working.items())[:3]]
        if wait.call == IN_INIT and job.runnable.intersection(named) and not working:
            doubts.append(f"{words.ranks(named)} may be on the way")
        return doubts

    def _called_another(self, number: int, basis: Basis, why: list[str]) -> Verdict:
        """H2: it is in something that those do not come to who wait for it."""
        job = self.job
        own = most_prominent(self.states.of[number])
        if own.group is not None and len(own.sides) > 1 and not own.is_pairwise and not own.missing:
            return inconsistent(job, own.group, own.sequence, own.sides, own.operations, [number], basis)
        others = [wait for wait in self.states.leading_to([number]) if number not in wait.blocked]
        facts = [wait.told() for wait in [own, *others][:_MAX_WAITS]]
        if any(wait.group is None for wait in [own, *others]):  # which ranks have to come to it is not known for sure
            basis = max(basis, Basis.COMPARISON)
        lacked = own.lacked_by(number)
        places = sorted({wait.title for each in lacked for wait in self.states.of.get(each, ())})
        there = f"{words.ranks(lacked)} {words.verb(lacked, 'is', 'are')} in {words.names(places)}"
        summary = f"rank {number} is in {own.title}, and {there}: each waits for the other"
        if not places:
            summary = f"rank {number} is in {own.title}, which {words.ranks(lacked)} do not come to"
        return job.verdict(
            "hang",
            "TW-H2",
            own.group,
            [number],
            summary,
            [*facts, *why],
            basis,
            victims=len(self._victims([number])),
            seconds=max(wait.seconds for wait in self.waits),
        )

    def _sides(self) -> Verdict:
        """Nobody alone explains it: what they are in is what divides them."""
        wait = most_prominent(self.waits)
        if wait.group is not None and len(wait.sides) > 1 and not wait.is_pairwise:
            return inconsistent(self.job, wait.group, wait.sequence, wait.sides, wait.operations, None)
        lacked = {number for each in self.waits for number in each.missing}
        sides = [sorted(lacked.intersection(each.blocked)) for each in self.waits]
        return self._sides_of([side for side in sides if side])

    def _sides_of(self, sides: list[list[int]]) -> Verdict:
        job = self.job
        waits = sorted(self.waits, key=lambda wait: (-len(wait.blocked), -wait.seconds, wait.title))
        wait = most_prominent(waits)
        if (
            wait.group is not None
            and len(wait.sides) > 1
            and not wait.is_pairwise
            and not wait.missing
            and len(waits) == 1
        ):
            return inconsistent(job, wait.group, wait.sequence, wait.sides, wait.operations, None)
        what = " and ".join(each.title for each in waits[:_MAX_WAITS])
        return job.verdict(
            "hang",
            "TW-H2",
            wait.group,
            [],
            f"ranks wait for each other in {what}, and it is unknown which are wrong: "
            + " or ".join(words.ranks(side) for side in sides[:_MAX_WAITS]),
            [each.told() for each in waits[:_MAX_WAITS]] + parted(job),
            Basis.STATE,
            victims=len({number for each in waits for number in each.blocked}),
            sides=sorted(sides, key=lambda side: (-len(side), side)),
            seconds=max(each.seconds for each in waits),
        )

    def _left_order(self, wait: Wait, strays: list[int]) -> Verdict:
        """H2: these wait for ranks that go on elsewhere, as all others do."""
        inside = [each for each in self.waits if not set(strays).isdisjoint(each.blocked)]
        wait = most_prominent(inside) if inside else wait
        return self.job.verdict(
            "hang",
            "TW-H2",
            wait.group,
            strays,
            f"{words.ranks(strays)} left the order of operations that the other ranks follow, and "
            f"{words.verb(strays, 'is', 'are')} in {wait.title}; {words.ranks(wait.missing)} "
            f"{words.verb(wait.missing, 'goes', 'go')} on elsewhere",
            [wait.told(lacked=False), *self._order_of(strays)],
            Basis.COMPARISON,
            victims=len(self._victims(wait.missing) - set(strays)),
            seconds=wait.seconds,
        )

    def _order_of(self, strays: list[int]) -> list[str]:
        """How far these are in each of their groups, and how far the others are in groups of that name."""
        job, facts = self.job, []
        for number in strays[:3]:
            for own in job.ranks[number].process_groups:
                others = [
                    enqueued
                    for group in job.groups.values()
                    if (group.name, group.size) == (own.name, own.size)
                    for other, enqueued in zip(group.numbers.tolist(), group.enqueued.tolist(), strict=True)
                    if other not in strays
                ]
                if others and not own.is_pairwise:
                    up_to = f" to #{max(others)}" if max(others) > min(others) else ""
                    facts.append(
                        f"rank {number} has entered #{own.enqueued} of {own.title}, "
                        f"the other ranks #{min(others)}{up_to}"
                    )
        return facts[:6]

    def _goes_on(self, wait: Wait, ranks: list[int]) -> Verdict | None:
        """A notice on ranks that go on elsewhere, and on who waits for them; None once that lasts for too long."""
        job = self.job
        if max(each.seconds for each in self.waits) >= LONG * job.thresholds.hang_seconds:
            return None
        if any(self._is_unusual(each) for each in self.states.leading_to(ranks)):
            return None
        named = [number for number in ranks if number in wait.missing]
        summary = (
            f"{words.ranks(wait.blocked)} {words.verb(wait.blocked, 'waits', 'wait')} in {wait.title} for "
            f"{words.ranks(named)}, who {words.verb(named, 'goes', 'go')} on elsewhere"
        )
        return job.verdict(
            "hang",
            "TW-H1",
            wait.group,
            ranks,
            summary,
            [wait.told(), *(self._account(wait, number) for number in named[:_MAX_ACCOUNTS])],
            Basis.REMAINDER,
            victims=len(self._victims(ranks)),
            level="notice",
            seconds=wait.seconds,
        )

    def _is_unusual(self, wait: Wait) -> bool:
        return wait.group is not None and is_unusual(self.job, wait.group, wait.seconds)

    def _was_inside(self, wait: Wait, number: int) -> bool:
        """Whether a stopped rank, whose counts stand still, sent data while the others were in what it lacks."""
        if wait.group is None or number not in wait.group.index_of:
            return False
        return (
            self.job.ranks[number].process.is_stopped
            and wait.group.members[number].enqueued == wait.sequence - 1
            and self.transport.has_sent(self.job, number, wait.seconds)
        )

    def _compile(self, numbers: list[int]) -> bool:
        """Whether these ranks compile, and do get on with it: that takes long, and not as long on every rank.

        Between two graphs a rank does not compile for a moment. It works then all the same, and others compile.
        """
        ranks = [self.job.ranks[number] for number in numbers]
        return (
            any(rank.activity == _COMPILES for rank in ranks)
            and all(rank.activity in (_COMPILES, "") for rank in ranks)
            and all(self.job.has_done(rank, self.job.thresholds.hang_seconds) for rank in ranks)
        )

    def _path(self, ranks: Sequence[int]) -> list[Wait]:
        return self.states.leading_to(ranks)

    def _victims(self, vertices: Sequence[int]) -> set[int]:
        return self.states.victims(vertices)


def init_does_not_return(job: Job, wait: Wait) -> Verdict:
    runnable = sorted(job.runnable)
    what = f"init_process_group does not return at {words.ranks(wait.inside)}"
    what += f"; {words.ranks(wait.unseen)} not in view" if wait.unseen else ", and the cause is unknown"
    return job.verdict(
        "no progress", "TW-UNKNOWN", None, wait.unseen, what, [wait.told(), *_running(job)], Basis.REMAINDER,
        victims=len(wait.inside), witnesses=wait.inside[:32], seconds=wait.seconds,
        level="notice" if runnable else "finding",
    )  # fmt: skip


def _running(job: Job) -> list[str]:
    return [job.account(number, works=RUNS) for number in sorted(job.runnable)[:_MAX_ACCOUNTS]]
