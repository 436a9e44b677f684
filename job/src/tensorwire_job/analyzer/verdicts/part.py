"""The verdict on ranks that stand still together: who explains it, what these did or did not do, and who waits.

What all members in view have entered: calls that differ (H2), operations that stopped on the way (H3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import words
from ...confidence import Basis
from ...model import FOR_KEY, FOR_LOCK, MAX_SUSPECTS, holder_of_lock
from ..graph import explain
from ..view import transport
from ..view.histories import out_of_habit, out_of_step
from ..view.job import RUNS
from ..view.transport import Blame
from ..view.waits import IN_INIT, Wait, most_prominent
from .unlike_calls import inconsistent, parted, unlike_calls
from .unlike_groups import unlike_groups

if TYPE_CHECKING:
    from ...model import Code
    from ..graph import Explanation
    from ..view.job import Job, Verdict
    from ..view.states import States

_MAX_WAITS = 4  # that the evidence has
_MAX_ACCOUNTS = 5
_COMPILES = "torch.compile"
_OUT_OF_HABIT = "its last calls do not follow each other as those before did, and those of the others do"
_WITH_ANOTHER_PEER = "no rank is at the other end of its message, and a rank waits for it with a message that would fit"
_WITNESSES = 2
_MAX_WITNESSES = 32


@dataclass
class Part:
    """Ranks that stand still together, and have nothing to do with others that may stand still too."""

    job: Job
    states: States
    part: set[int]
    waits: list[Wait]

    def verdict(self) -> Verdict:
        explanation = explain(self.states.graph, self.part)
        verdict = unlike_groups(self.job, self.waits) or self._verdict(explanation)
        verdict.finding.circle = self.states.links(explanation.circle)
        return verdict

    def _verdict(self, explanation: Explanation) -> Verdict:
        found = explanation.single or explanation.together or explanation.partly
        inside = [self.states.by_vertex[each] for each in found if each in self.states.by_vertex]
        ranks = [number for number in found if number >= 0]
        if inside and (explanation.single or not ranks):
            return self._entered(most_prominent(inside))
        if len(explanation.single) > 1:
            return self._tie(ranks)
        if ranks:
            return self._of(self._likeliest_first(ranks), Basis.COMPARISON if explanation.partly else Basis.STATE)
        return self._nobody()

    def _hang(self, code: Code, wait: Wait, suspects: list[int], summary: str, facts: list[str], basis: Basis,
              *, victims: int | None = None, **more: Any) -> Verdict:  # fmt: skip
        """Less sure where it rests on a page that is old, or on ranks that are not in view."""
        more = {"seconds": wait.seconds} | more
        victims = len(self.states.victims(suspects)) if victims is None else victims
        doubtful = bool(wait.unseen) or self.job.are_stale([*suspects, *wait.inside])
        return self.job.verdict(
            "hang", code, wait.group, suspects, summary, facts, basis, victims=victims, is_incomplete=doubtful, **more
        )

    def _locked_out(self, wait: Wait) -> Verdict:
        """Ranks that wait for a process that is no rank: these are where to look, though none of them is wrong."""
        victims = self.states.victims([wait.vertex]) - set(wait.inside)
        waiting = words.does(wait.inside, "waits", "wait")
        summary = f"{waiting} for a file lock that pid {wait.pid} has, which is no rank in view"
        summary += f"; {words.waiting(victims)} for {words.verb(wait.inside, 'it', 'them')}" if victims else ""
        path = [wait, *(each for each in self.states.leading_to([wait.vertex]) if each is not wait)]
        facts = [each.told() for each in path[:_MAX_WAITS]]
        facts += [self.job.account(number) for number in wait.inside[:_MAX_ACCOUNTS]]
        return self._hang(
            "TW-H1" if victims else "TW-UNKNOWN", wait, wait.inside if victims else [], summary, facts,
            Basis.COMPARISON, victims=len(victims or wait.inside), witnesses=wait.inside,
        )  # fmt: skip

    def _entered(self, wait: Wait) -> Verdict:
        if wait.pid:
            return self._locked_out(wait)
        unlike = unlike_calls(self.job, wait) if wait.group and not wait.sides else None
        return unlike or all_entered(self.job, wait, len(self.states.victims([wait.vertex])))

    def _tie(self, ranks: list[int]) -> Verdict:
        """Several explain it as well: their histories decide, or else the order that all others follow.

        A few that wait for a key may wait for one that no rank has to set.
        """
        for wait in self.waits:
            if wait.call == FOR_KEY and 2 * len(wait.inside) < len(self.job.ranks) and set(wait.inside) <= set(ranks):
                others = [each for each in self.waits if not set(wait.inside).isdisjoint(each.missing)]
                return self._not_entered(most_prominent(others or [wait]), wait.inside, Basis.COMPARISON)
        accused = [number for difference in self.job.differences for number in difference.accused]
        strays = out_of_step(self.job.columns, self.job.groups)
        for found, why in (
            (accused, parted(self.job)),
            (strays, self._order_of(strays)),
            (out_of_habit(self.job.columns, ranks), [_OUT_OF_HABIT]),
            (self._with_another_peer(ranks), [_WITH_ANOTHER_PEER]),
        ):
            left = [number for number in ranks if number in found]
            if len(left) == 1:
                return self._of(left, Basis.COMPARISON, why)
        places: dict[int, list[int]] = {}
        for number in ranks:
            own = self.states.of[number]
            places.setdefault(id(most_prominent(own)) if own else number, []).append(number)
        return self._sides(list(places.values()) if len(places) > 1 else [[number] for number in ranks])

    def _with_another_peer(self, ranks: list[int]) -> list[int]:
        """Ranks at one end of a message of which the other is not there, while a rank that explains nothing waits for
        such an end with the other one."""
        ends = {
            (number, wait.missing[0], bool(wait.of_group.sending[wait.of_group.members[number]]))
            for wait in self.waits
            if wait.is_pairwise and wait.missing
            for number in wait.inside
        }
        others = {(peer, not sends) for number, peer, sends in ends if number not in ranks}
        met = {(peer, number) for number, peer, _ in ends}
        return [n for n, peer, sends in ends if n in ranks and (n, sends) in others and (n, peer) not in met]

    def _likeliest_first(self, ranks: Sequence[int]) -> list[int]:
        """Ranks that have declared what they do are suspected last, and first the one that is furthest behind."""

        def entered(number: int) -> int:
            groups = [wait.group for wait in self.waits if wait.group is not None and number in wait.missing]
            return min((group.member(number).enqueued for group in groups if number in group.members), default=0)

        return sorted(ranks, key=lambda number: (number in self.job.phases, entered(number), number))

    def _of(self, ranks: list[int], basis: Basis, why: Sequence[str] = ()) -> Verdict:
        """On ranks that explain it, all alike: all wait, or none does."""
        if len(ranks) == 1 and self.states.of[ranks[0]]:
            return self._called_another(ranks[0], basis, why)
        lacking = [wait for wait in self.states.leading_to(ranks) if not set(ranks).isdisjoint(wait.missing)]
        if not lacking:  # it is in the operation, with another call
            return self._nobody()
        go_on = self.states.moving.issuperset(ranks)
        is_meant = go_on and not any(map(self.states.is_overdue, self.states.leading_to(ranks)))
        if go_on and not is_meant:
            found = out_of_step(self.job.columns, self.job.groups)
            strays = sorted(self.states.victims(ranks).intersection(found) - self.states.moving)
            if len(strays) == 1:
                return self._called_another(strays[0], Basis.COMPARISON, self._order_of(strays))
        wait = most_prominent(lacking)
        return self._not_entered(wait, ranks, basis, why, is_meant=is_meant)

    def _not_entered(
        self, wait: Wait, ranks: list[int], basis: Basis, why: Sequence[str] = (), *, is_meant: bool = False
    ) -> Verdict:
        """H1; a notice where all have declared what they do, compile, or may go on. LOST where all are gone."""
        job, states = self.job, self.states
        named = [number for number in ranks if number in wait.missing]
        also = self._stopped_inside(wait, ranks)
        victims = self.states.victims(ranks) - set(also)
        doubts = self._doubts(wait, ranks, named)
        is_vague = wait.group is None and wait.call != IN_INIT and not wait.pid  # which ranks have to come to it
        are_most = 2 * len(ranks) > (wait.group.size if wait.group else job.world_size) and not also
        are_busy = any(job.is_busy(job.ranks[number]) for number in named)
        in_lock = any(holder_of_lock(job.ranks[n].activity) is not None and job.holders(n) != [n] for n in named)
        if doubts or is_vague or are_most or are_busy or in_lock:  # of a rank that may wait for its lock
            basis = max(basis, Basis.COMPARISON)
        path = [wait, *(each for each in states.leading_to(ranks) if each is not wait)]
        facts = [each.told() for each in path[:_MAX_WAITS]]
        facts += [self._account(wait, number) for number in named[:_MAX_ACCOUNTS]]
        facts += [f"rank {number} is stopped as well, in an operation" for number in also[:_MAX_ACCOUNTS]]
        are_gone = not any(job.ranks[number].process.is_alive for number in ranks)
        are_declared = is_meant or all(job.phases.get(number) for number in ranks) or self._compile(ranks)
        summary = self._summary(wait, named, also, victims, is_meant=is_meant)
        suspects, sides = [*ranks, *also], list[list[int]]()
        if are_most and not (are_declared or are_busy or doubts) and self._are_alike(wait, ranks):
            suspects, sides = [], [sorted(ranks), wait.inside]
            summary += f", and it is unknown which are wrong: {' or '.join(map(words.ranks, sides))}"
        return self._hang(
            "TW-LOST" if are_gone else "TW-H1", wait, suspects, summary, [*facts, *doubts, *why],
            Basis.REMAINDER if is_meant else basis, victims=len(victims),
            level="notice" if are_declared else "finding", sides=sides,
        )  # fmt: skip

    def _are_alike(self, wait: Wait, ranks: list[int]) -> bool:
        """Whether these live, made their last call in one line, and show nothing of what they do: so many may be where
        they should be, and those that wait for them not."""
        found = [self.job.ranks[number] for number in ranks]
        last = {(call.line, call.operation.name) for rank in found for call in rank.calls[-1:]}
        return wait.group is not None and len(last) == 1 and all(
            rank.calls and rank.process.life == "running" and rank.activity in ("", FOR_LOCK) for rank in found
        )  # fmt: skip

    def _stopped_inside(self, wait: Wait, ranks: list[int]) -> list[int]:
        """Where these are stopped, the other members that are."""
        members = set(wait.group.numbers.tolist()) if wait.group and self.job.stopped.issuperset(ranks) else set()
        return sorted(self.job.stopped & members - set(ranks))

    def _account(self, wait: Wait, number: int) -> str:
        """ "rank 2 waits for no rank: it has entered #25 and nothing since; its process is in state S"."""
        rank, works = self.job.ranks[number], ""
        what = "is in no operation that the probe sees"
        if wait.call == IN_INIT:
            what = f"has not called {IN_INIT}"
            works = RUNS if number in self.job.runnable else ""
        elif wait.group is not None and not wait.is_pairwise and number in wait.group.members:
            what = f"has entered #{wait.group.member(number).enqueued} and nothing since"
        if wait.group is None:
            works = self.job.doing(rank) or works
        if rank.process.is_alive and number not in self.states.moving and not self.states.of[number]:
            what = f"waits for no rank: it {what}"
        return self.job.account(number, where=what, works=works)

    def _summary(self, wait: Wait, named: list[int], also: list[int], victims: set[int], *, is_meant: bool) -> str:
        entered = f"its end of {wait.title}" if wait.is_pairwise else wait.title
        waiting = words.waiting(victims)
        if also:
            text = f"{words.ranks([*named, *also])} are stopped, {words.ranks(named)} outside {entered}"
            return text + (f"; {waiting} for them" if victims else "")
        what, whom = f"entered {entered}", f"for {words.verb(named, 'it', 'them')}"
        if wait.group is None:
            what, whom = f"come to {wait.call}", "in it"
            if wait.pid:
                what, whom = f"given back the file lock that it holds (pid {wait.pid})", "for it"
            elif wait.call == IN_INIT:
                what = f"called {wait.call}"
            elif wait.is_any:
                what = f"set what others wait for ({wait.call})"
        phases = sorted({self.job.phases[number] for number in named if self.job.phases.get(number)})
        declared = f" (in declared phase: {', '.join(phases)})" if phases and wait.group else ""
        what += f", and {words.verb(named, 'goes', 'go')} on elsewhere" if is_meant else ""
        return f"{words.does(named, 'has', 'have')} not {what}; {waiting} {whom}{declared}"

    def _doubts(self, wait: Wait, ranks: list[int], named: list[int]) -> list[str]:
        """What speaks for it that they may well come, or that the trouble is with those inside."""
        job, doubts = self.job, []
        moving = [number for number in ranks if number in self.states.moving]
        if wait.is_pairwise and not any(job.ranks[number].timed for number in named):
            doubts.append("until operations are timed, it is not seen that a rank waits for what isend or irecv began")
        if moving:
            doubts.append(f"{words.does(moving, 'completes', 'complete')} other operations meanwhile")
        # A CPU that is used by a rank without a heartbeat speaks for a thread that spins with Python's lock held.
        beating = [number for number in named if not job.are_stale([number])]
        working = {number: doing for number in beating if (doing := job.doing(job.ranks[number]))}
        doubts += [f"rank {number} makes progress by itself: it {doing}" for number, doing in list(working.items())[:3]]
        if len(wait.inside) == 1 == len(named) and out_of_habit(job.columns, [*wait.inside, *named]) == wait.inside:
            doubts.append(f"{words.ranks(wait.inside)} may be in the wrong place: {_OUT_OF_HABIT}")
        if wait.call == IN_INIT and job.runnable.intersection(beating) and not working:
            doubts.append(f"{words.ranks(named)} may be on the way")
        return doubts

    def _called_another(self, number: int, basis: Basis, why: Sequence[str]) -> Verdict:
        """H2: it is in something that those do not come to who wait for it."""
        own = most_prominent(self.states.of[number])
        if own.sides and not own.is_pairwise and not own.missing:
            return inconsistent(self.job, own, [number], basis)
        others = [wait for wait in self.states.leading_to([number]) if number not in wait.blocked]
        facts = [wait.told() for wait in [own, *others][:_MAX_WAITS]]
        if any(wait.group is None for wait in [own, *others]):  # which ranks have to come to it is not known for sure
            basis = max(basis, Basis.COMPARISON)
        lacked = own.lacked_by(number)
        waits = [wait for each in lacked for wait in self.states.of[each]]
        here = f"rank {number} {'waits for' if own.pid else 'is in'} {own.title}"
        summary = f"{here}, which {words.does(lacked, 'does', 'do')} not come to"
        if waits:
            how = ("waits for", "wait for") if all(wait.pid for wait in waits) else ("is in", "are in")
            places = words.names(sorted({wait.title for wait in waits}))
            summary = f"{here}, and {words.does(lacked, *how)} {places}: each waits for the other"
        seconds = max(wait.seconds for wait in self.waits)
        return self._hang("TW-H2", own, [number], summary, [*facts, *why], basis, seconds=seconds)

    def _nobody(self) -> Verdict:
        """No rank alone explains it: what they are in is what divides them."""
        lacked = {number for each in self.waits for number in each.missing}
        sides = [sorted(lacked.intersection(each.blocked)) for each in self.waits]
        return self._sides([side for side in sides if side])

    def _sides(self, sides: list[list[int]]) -> Verdict:
        waits = self.waits  # the most prominent first
        if waits[0].sides and not waits[0].missing:
            return self._entered(waits[0])
        what = " and ".join(each.title for each in waits[:_MAX_WAITS])
        which = " or ".join(words.ranks(side) for side in sides[:_MAX_WAITS])
        return self._hang(
            "TW-H2", waits[0], [],
            f"ranks wait for each other in {what}, and it is unknown which are wrong: {which}",
            [each.told() for each in waits[:_MAX_WAITS]] + parted(self.job), Basis.STATE,
            victims=len({number for each in waits for number in each.blocked}),
            sides=sorted(sides, key=lambda side: (-len(side), side)), seconds=max(each.seconds for each in waits),
        )  # fmt: skip

    def _order_of(self, strays: list[int]) -> list[str]:
        """How far these are in each of their groups, and how far the others are in groups of that name."""
        facts = []
        for number in strays[:3]:
            for own in self.job.ranks[number].process_groups:
                alike = [each for each in self.job.groups.values() if (each.name, each.size) == (own.name, own.size)]
                others = {n for each in alike for n in each.enqueued[~np.isin(each.numbers, strays)].tolist()}
                if others and not own.is_pairwise:
                    theirs = " to ".join(f"#{n}" for n in sorted({min(others), max(others)}))
                    facts.append(f"rank {number} has entered #{own.enqueued} of {own.title}, the other ranks {theirs}")
        return facts[:6]

    def _compile(self, numbers: list[int]) -> bool:
        """Whether these ranks compile, and do get on with it: that takes long, and not as long on every rank.

        Between two graphs a rank does not compile for a moment. It works then all the same, and others compile.
        """
        ranks = [self.job.ranks[number] for number in numbers]
        return _COMPILES in {rank.activity for rank in ranks} <= {_COMPILES, ""} and all(map(self.job.doing, ranks))


def all_entered(job: Job, wait: Wait, num_victims: int) -> Verdict:
    """H2 where the calls differ, else H3 at the rank that the transport points at, else what is missing to tell. The
    cause of a call that no group counts is unknown."""
    if wait.group is None:
        return _does_not_return(job, wait)
    if wait.sides and not (wait.is_pairwise and _stuck(job, wait)):
        return inconsistent(job, wait)
    return _verdict(job, wait, *_cause(job, wait), num_victims)


def _does_not_return(job: Job, wait: Wait) -> Verdict:
    """All that are in view are in a call that no group counts; a notice while some of them run."""
    runnable = sorted(job.runnable)
    rest = f"; {words.ranks(wait.unseen)} not in view" if wait.unseen else ", and the cause is unknown"
    return job.verdict(
        "hang", "TW-UNKNOWN", None, wait.unseen, f"{wait.call} does not return at {words.ranks(wait.inside)}{rest}",
        [wait.told(), *(job.account(number, works=RUNS) for number in runnable[:MAX_SUSPECTS])], Basis.REMAINDER,
        victims=len(wait.inside), witnesses=wait.inside[:_MAX_WITNESSES], seconds=wait.seconds,
        level="notice" if runnable else "finding",
    )  # fmt: skip


def _stuck(job: Job, wait: Wait) -> Blame | None:
    """What the kernel knows for a fact: a stopped process, or a retransmission timer that has backed off.

    With one of them the two ends may be in two messages, of which the earlier was sent and not received.
    """
    return transport.stopped(job, wait.members) or transport.broken(job, wait.members, job.recent_seconds)


def _cause(job: Job, wait: Wait) -> tuple[Code, Blame]:
    """In the order of how much it tells. If a group is not wholly in view, unread data and busy edges tell nothing: the
    others may wait for one that is not in view."""
    group = wait.of_group
    blame = _stuck(job, wait)
    if blame is not None:
        return "TW-H3", blame
    unseen = [number for number in wait.unseen if number >= 0]
    if unseen or not (wait.is_pairwise or group.is_whole):
        facts = [f"{words.does(unseen, 'is', 'are')} not in view"] if unseen else []
        return "TW-UNKNOWN", Blame(unseen, facts, Basis.REMAINDER)
    blame = transport.unread(job, wait.members) or transport.busy(job, wait.members, job.recent_seconds)
    blame = blame or transport.least_moved(group)
    if blame is not None:
        return "TW-H3", blame
    if not any(operation.signature or operation.name for operation, _ in wait.calls):
        return "TW-UNKNOWN", Blame([], ["only counts are known, not what the ranks called"], Basis.REMAINDER)
    nothing = "no process is known to be stopped, and no edge between these ranks to be stuck"
    return "TW-H3", Blame([], [nothing], Basis.REMAINDER)


def _verdict(job: Job, wait: Wait, code: Code, blame: Blame, num_victims: int) -> Verdict:
    group, what, suspects = wait.of_group, wait.title, blame.suspects[:MAX_SUSPECTS]
    sides: list[list[int]] = []
    if code == "TW-UNKNOWN":
        seen = f"all {len(wait.inside)} ranks that are seen in it" if len(wait.inside) > 1 else "the one rank in it"
        summary = f"{what} hangs at {seen}, and the cause is unknown"
        if blame.suspects:
            summary += f"; {words.ranks(blame.suspects)} not in view"
        elif not group.is_whole:
            summary += ": it is not known which other ranks are in the group"
    else:
        place = f" at {words.ranks(suspects)}" if suspects else ", and at which rank is unknown"
        left = [] if suspects else sorted(set(wait.blocked).difference(wait.inside))
        if left:  # either those did not do their part, or these do not call what they called
            place, sides = f" at {words.ranks(wait.inside)}, and {words.ranks(left)} left it", [wait.inside, left]
        who = "both ranks" if wait.is_pairwise else group.all_members
        summary = f"{what} stopped inside{place}; {who} had entered it{'' if sides else ' alike'}"
    facts = [f"{words.count(len(wait.inside), 'rank')} in {what}, the longest for {words.seconds(wait.seconds)}"]
    calls = {words.call(operation) for operation, _ in wait.calls if operation.name}
    facts += [f"all called {call}" for call in calls if len(calls) == 1]
    outside: list[int] = np.setdiff1d(job.columns.numbers, wait.inside)[:_WITNESSES].tolist()
    return job.verdict(
        "hang", code, group, suspects, summary, facts + blame.evidence, blame.basis,
        victims=max(0, num_victims - len(suspects)), seconds=wait.seconds, is_incomplete=job.are_stale(wait.inside),
        sides=sides, witnesses=sorted(wait.inside)[:_WITNESSES] + outside,
    )  # fmt: skip
