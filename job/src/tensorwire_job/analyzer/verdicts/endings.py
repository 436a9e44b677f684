"""Jobs of which processes have ended: what stood still before, or else the process that ended first.

A rank that ends because another has, or because the job was told to end, says nothing of the cause. It keeps the wait
that it ended in: what the job was in at the first end is judged as that of a job that lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ... import words
from ...confidence import Basis
from ...model import MAX_SUSPECTS
from ..view import exit_reasons as ends
from ..view.past import rewound
from .hangs import find_hangs
from .unlike_calls import parted, unlike_calls
from .unlike_groups import unlike_groups

if TYPE_CHECKING:
    from ...model import Rank
    from ..view.job import Job, Verdict

# Last signs of life are known to a heartbeat of the probe, and a peer fails within a moment.
_MOMENT = 0.1
_AFTERMATH = 2.0
_AT_ONCE = 0.05  # in which a signal reaches all ranks that it is sent to; a launcher takes longer once one has gone
_LAUNCHER_SECONDS = 1.2  # in which it has seen that one has gone, and ends the others
# Ranks of a job that trains wait for one another for milliseconds, but also for a checkpoint, an evaluation or a first
# batch. A person who ends a job that hangs has watched it for longer than that.
_WATCHED = 10.0
_PATIENCE = 2.0  # ranks of a healthy job enter an operation closer together
_AS_GLOO = "as gloo does on more data than it expects"
_SIZED_BY_PEERS = ("all_to_all", "all_to_all_single", "scatter")
_LIVES_ON = 2.5  # who fails ends within a moment, and agents poll about once a second


class Ended:
    """How ranks have ended, or were asked to.

    Args:
        dead: ranks that are gone, or have failed and live on.
        named: ranks that were found to be lost before.

    Attributes:
        failed: ranks that did not leave well.
        left: ranks that left well, whether the others were done or not.
        asked: ranks that were asked by a signal, and how long ago; `start` is the first time.
        are_noted: the probes of these ranks note signals.
        outlives_it: the job went on after the signal, until it ended of something else.
        first: how long ago the job changed first: a rank failed, gave up, or was asked to end.
        were_silent: ranks had given no sign of life for a while by then.
        is_asked_first: none had failed or given up before.
    """

    def __init__(self, job: Job, dead: dict[int, Rank], named: Set[int]) -> None:
        end = _first_end(dead)
        self.are_noted, self.named = bool(job.columns.signals), named
        job = ends.without_outlived(job, dead, end)
        has_gone_on = ends.goes_on(job, job.columns.signals, end)
        if has_gone_on and _fails_by_itself(job, dead, end):
            job = ends.without(job, job.columns.signals)
        self.job, self.dead = job, {number: job.ranks[number] for number in dead}
        self.failed = {n: rank for n, rank in self.dead.items() if rank.process.exit_reason not in ends.LEFT}
        self.left = {n: rank for n, rank in self.dead.items() if n not in self.failed}
        asked = {n: job.ranks[n].process.signal_seconds or ends.said(job.ranks[n]) for n in job.columns.signals}
        interrupted = {n: rank for n, rank in self.failed.items() if ends.was_interrupted(rank)}
        asked |= {n: ends.said(rank) for n, rank in interrupted.items() if n not in asked}
        self.start = max(asked.values(), default=0.0)
        self.asked = {n: age for n, age in asked.items() if self.start - age <= ends.TOGETHER}
        self.first, self.were_silent = self._change()
        self.is_asked_first = bool(asked) and self.start >= self.first
        kinds = {rank.process.exit_kind for rank in self.failed.values()}
        self.outlives_it = has_gone_on and "interruption" not in kinds
        if self.outlives_it:
            self.first = end

    def _change(self) -> tuple[float, bool]:
        """How long ago the job changed first, and whether ranks had been silent until then: they were not gone, or the
        others would have lost a connection at once. A rank that fails of something else tells nothing about that."""
        ages = self.asked | {n: max(ends.said(rank), self.asked.get(n, 0.0)) for n, rank in self.failed.items()}
        spoke = self.asked.keys() | {n for n, r in self.failed.items() if r.process.exit_reason or r.process.signal}
        silent = self.failed.keys() - spoke
        if self.asked and not self.are_noted:  # those that are killed with one that speaks may be heard of before
            ages |= {n: self.start for n in silent if self.start < ages[n] <= self.start + _AFTERMATH}
        own = {n for n, rank in self.failed.items() if ends.has_own_words(rank) and ages[n] != self.asked.get(n)}
        order = sorted(ages, key=lambda number: (-ages[number], number not in own))  # names decide nothing
        first, were_silent = max(ages.values(), default=0.0), False
        for number, after in pairwise(order):
            if number not in silent:
                break
            if after not in own and ages[number] - ages[after] > self.job.thresholds.lost_seconds:
                first, were_silent = ages[after], True
        return first, were_silent

    def verdicts(self, hangs: list[Verdict]) -> list[Verdict] | None:
        """[] where the job was well, and None where no rank has ended that others need, or the time to tell has not
        come. `hangs` are verdicts on hangs that stood when the first of them ended."""
        job, failed = self.job, self.failed
        early = {n: rank for n, rank in self.left.items() if ends.gone(rank) > self.first and not _is_done(job, rank)}
        if 2 * len(early) > len(job.ranks):  # who waits for so many that have ended well calls once too often
            early = {}
        if early and (failed or self.asked or self._waiting()):
            others = [number for number in job.ranks if number not in early]
            if len(others) <= len(early) and max(map(ends.gone, early.values())) >= job.thresholds.lost_seconds:
                return self._two_sides(list(early), f"{words.ranks(early)} ended well while others had more to do")
            return self._lost(early, certain=True)
        if not failed and not self.asked:
            return None
        own_words = {n for n, rank in failed.items() if ends.has_own_words(rank)}
        if self.is_asked_first or not any(ends.said(failed[n]) >= self.first - _MOMENT for n in own_words):
            before = self._before(hangs)
            is_told_by_words = not self.is_asked_first and self._are_in_init(failed)
            if before and not (is_told_by_words and before[0].finding.code == "TW-UNKNOWN"):
                return before
        if self.is_asked_first and not self.were_silent:
            return [] if self.outlives_it else self._asked_alone()
        first, _ = _first(failed)
        if not own_words and self._is_time(first):
            unlike = unlike_calls(job) or (unlike_groups(job) if any(map(_aborted, failed.values())) else None)
            if unlike is not None:
                unlike.finding.evidence += _evidence([failed[n] for n in list(failed)[:MAX_SUSPECTS]])
                return [unlike]
            inside = {n: what for n in first if _aborted(failed[n]) and (what := _sized_by_peers(failed[n]))}
            if inside:
                who = f"{words.ranks(inside)} aborted in {' or '.join(dict.fromkeys(inside.values()))}"
                return self._two_sides([*inside], f"{who}, {_AS_GLOO}", Basis.REMAINDER)
            # They died of a connection that another rank closed: a rank that left just before, if there is one.
            left = {n: rank for n, rank in self.left.items() if 0.0 < ends.gone(rank) - self.first <= _AFTERMATH}
            if left and len(left) <= len(failed) and all(map(ends.is_secondary, failed.values())):
                return self._lost(left)
        return self._lost(failed)

    def _two_sides(self, ranks: list[int], summary: str, basis: Basis = Basis.COMPARISON) -> list[Verdict]:
        """H2: these ended, or died, of calls that do not fit those of the others, and either may be wrong."""
        others = [number for number in self.job.ranks if number not in ranks]
        which = f"{words.ranks(ranks)} or {words.ranks(others)}"
        facts = _evidence([self.job.ranks[number] for number in ranks[:MAX_SUSPECTS]]) + parted(self.job)
        return [
            self.job.verdict(
                "lost", "TW-H2", None, [], f"{summary}; it is unknown which are wrong: {which}", facts,
                basis, victims=len(others), sides=[ranks, others],
                seconds=max(ends.gone(self.job.ranks[number]) for number in ranks),
            )
        ]  # fmt: skip

    def _way(self, number: int) -> str:
        """How it was asked."""
        process = self.job.ranks[number].process
        return process.signal or process.exit_reason.replace("KeyboardInterrupt", "SIGINT")

    def _how(self) -> str:
        return min(self._way(number) for number, age in self.asked.items() if age == self.start)

    def _asked_alone(self) -> list[Verdict] | None:
        """LOST on the ranks that alone were told to end; [] where most got the signal, and nothing shows that others
        did not: it was sent to all, though perhaps to one after the other.

        A launcher ends all others at once by SIGTERM, a while after one has gone. Clocks of two nodes are not compared.
        """
        ranks, way = self.job.ranks, self._how()
        asked = [number for number in self.asked if self._way(number) == way]
        alone = [number for number in asked if self.start - self.asked[number] <= _AT_ONCE]
        node = next(ranks[number].node for number in alone if self.asked[number] == self.start)
        later = [self.asked[number] for number in asked if number not in alone and ranks[number].node == node]
        if way == "SIGTERM" and later and max(later) - min(later) <= _AT_ONCE:
            alone = [number for number in alone if ranks[number].node == node]
            has_seen = max(ends.gone(ranks[number]) for number in alone) >= max(later)
            if has_seen and self.start - max(later) <= _LAUNCHER_SECONDS:
                asked = alone
        if not self.are_noted:  # one that speaks of it stands for all, unless others wait on
            gate, rows = self.job.thresholds.hang_seconds, self.job.columns.rows
            wait_on = self.job.columns.places.are_alive[rows.places] & (rows.open_seconds >= gate)
            asked = list(self.asked) if wait_on.any() else []
        if not asked:
            return []
        # One that has completed nothing since does not react before its wait ends.
        by_it = {n: ranks[n] for n in asked if n in self.dead or ends.stands_still(ranks[n], self.asked[n])}
        others_live = any(n not in asked and ends.gone(rank) < self.start - ends.TOGETHER for n, rank in ranks.items())
        if self.are_noted and not others_live and 2 * len(asked) > len(ranks):
            return self._perhaps_alone(sorted(asked), by_it, way)
        # A rank that has died of a lost connection by now may have been about to get it too.
        is_certain = any(rank.process.is_alive for n, rank in ranks.items() if n not in self.asked)
        return None if self.dead.keys().isdisjoint(by_it) else self._lost(by_it, certain=is_certain, all_of=True)

    def _perhaps_alone(self, asked: list[int], by_it: Mapping[int, Rank], way: str) -> list[Verdict] | None:
        """[] where a signal that most got was for all. LOST with sides where others failed without it, though they had
        lived on for more than a moment after the last rank of their node that got it: it may have been for all or not.
        """
        ranks, last = self.job.ranks, dict[str, float]()
        for number in sorted(asked, key=lambda number: -self.asked[number]):
            last[ranks[number].node] = self.asked[number]
        lived = {
            number: last[rank.node] - self.asked.get(number, ends.gone(rank))
            for number, rank in self.failed.items()
            if rank.node in last and (number not in self.asked or self._way(number) == "SIGTERM" != way)
        }  # SIGTERM may be the launcher's, after another signal
        without = sorted(number for number, seconds in lived.items() if seconds > _AT_ONCE)
        if not without:
            return []
        if self.dead.keys().isdisjoint(by_it) or not self._is_time([*asked, *without]):
            return None
        longest = words.seconds(max(lived.values()))
        what = f"{words.ranks(asked)} got {way}, and {words.ranks(without)} lived on for up to {longest} without it"
        told = [ranks[number] for number in (*asked[:MAX_SUSPECTS], *without[:MAX_SUSPECTS])]
        return [
            self.job.verdict(
                "lost", "TW-LOST", None, [], f"{what}; it is unknown whether it was for all ranks", _evidence(told),
                Basis.REMAINDER, victims=len(without), sides=[asked, without], seconds=self.start,
            )
        ]  # fmt: skip

    def _before(self, hangs: list[Verdict]) -> list[Verdict]:
        """What stood still when the job first changed: as it was found then, or as it is found of that moment now."""
        patience = self.job.thresholds.hang_seconds
        if self.is_asked_first:
            patience = min(patience, _WATCHED)
        elif any(map(ends.ran_out_of_time, self.failed.values())):
            patience = min(patience, _PATIENCE)
        then = rewound(self.job, self.first, patience)
        found = [verdict for verdict in hangs if verdict.finding.level == "finding"]
        if not any(verdict.finding.suspects or verdict.finding.sides for verdict in found):
            found = [self._of_then(verdict) for verdict in find_hangs(then)] or found
        if found and not any(each.finding.suspects or each.finding.sides for each in found):
            return [self._stayed(found[0], then) or found[0]]
        return found

    def _stayed(self, verdict: Verdict, then: Job) -> Verdict | None:
        """H3 on the few that did not give up as the others did: they were silent from earlier on, or said nothing."""
        finding, ranks = verdict.finding, self.job.ranks
        group = next((group for group in self.job.groups.values() if group.title == finding.process_group), None)
        members = [number for number in group.members if number in then.ranks] if group else []
        silent = [number for number in members if then.ranks[number].heartbeat_seconds > _PATIENCE]
        quiet = [
            n for n in members if not (ends.has_spoken(ranks[n]) or (self.is_asked_first and ranks[n].process.signal))
        ]
        numbers = silent or (quiet if 2 * len(quiet) < len(members) else [])
        if group is None or not 0 < len(numbers) < len(members):
            return None
        how = "was last heard of before the others gave up" if silent else "ended without a reason, as no other did"
        what = finding.summary.partition(";")[0].partition(", and")[0].removesuffix(" stopped inside")
        return self.job.verdict(
            "lost", "TW-H3", group, numbers,
            f"{what} stopped inside at {words.ranks(numbers)}; {group.all_members} had entered it",
            [*finding.evidence, *(f"rank {number} {how}" for number in numbers[:MAX_SUSPECTS])],
            Basis.COMPARISON if silent else Basis.REMAINDER, victims=len(members) - len(numbers),
            seconds=None if finding.since is None else self.job.time - finding.since,
        )  # fmt: skip

    def _of_then(self, verdict: Verdict) -> Verdict:
        """What is found of that moment, told of now; with a rank that tells how they ended."""
        finding = verdict.finding
        if self.is_asked_first and not self.outlives_it:
            how, told = f"the job was ended ({self._how()})", list[str]()
        else:  # a rank that ran out of time tells how, or else the first
            ended = (
                {n: rank for n, rank in self.failed.items() if ends.ran_out_of_time(rank)} or self.failed or self.dead
            )
            how, told = "the first rank ended", _evidence([ended[_first(ended)[0][0]]])
        since = (finding.time if finding.since is None else finding.since) - self.first  # it was told as of then
        evidence = [*finding.evidence, *told]
        then = replace(finding, summary=f"when {how}: {finding.summary}", since=since, evidence=evidence)
        return replace(verdict, kind="lost", finding=then)

    def _lost(
        self, candidates: dict[int, Rank], *, certain: bool = False, all_of: bool = False
    ) -> list[Verdict] | None:
        """The first of these to end, or all. What others lack is a process: no stack of it could be found.

        None of several that died because another had is named: that may be one that is not in view, or no rank.
        """
        first, is_first = (sorted(candidates), certain) if all_of else _first(candidates)
        same, sides, speakers = ends.alike(candidates), list[list[int]](), set[int]()
        if not (certain or all_of):
            sides, speakers = ends.blamed(candidates, self.job.world_size)
            if set(first).isdisjoint(speakers.union(*sides[: len(sides) == 1])):  # what they say came later
                sides, speakers = [], set()
        if sides:
            return self._named_by_words(sides, sorted(speakers)) if self._is_time(sorted(speakers)) else None
        if not set(first).isdisjoint(same):  # they failed because another had
            first, is_first = same, False
        is_first = is_first and speakers.isdisjoint(first)
        if not self._is_time(first):
            return None
        ranks, waiting = self.job.ranks, self._waiting() - set(first)
        seconds = max(ends.gone(ranks[number]) for number in first)
        others = [n for n in self.dead if n not in first and not (n in self.left and ends.gone(ranks[n]) > seconds)]
        what = "; ".join(f"rank {n} {words.ended(ranks[n])}" for n in first)
        are_secondary = not certain and all(ends.is_secondary(ranks[number]) for number in first)
        are_in_init = are_secondary and self._are_in_init(first)
        if first == same or (are_in_init and len(first) > 1):
            who = f"all {len(first)} ranks" if len(first) == self.job.world_size else words.ranks(first)
            what = f"{who} failed with {self._quoted(first)}"
        what += f"; {words.ranks(others)} followed" if others else ""
        what += f"; {words.waiting(waiting)}" if waiting else ""
        told = [*first[:MAX_SUSPECTS], *sorted(others, key=lambda number: -ends.gone(ranks[number]))[:4]]
        facts = _evidence([ranks[number] for number in told])
        aborted = [number for number in first if _aborted(ranks[number])]
        facts += [f"{words.ranks(aborted)} aborted, {_AS_GLOO}, though what is known of the calls agrees"] * bool(
            aborted
        )
        may_be_of_all = ends.has_failed(ranks[first[0]]) and bool(self.job.out_of_view)
        is_firm = is_first and not (aborted or are_secondary or may_be_of_all or ends.has_compared(ranks[first[0]]))
        basis = Basis.STATE if is_firm else Basis.COMPARISON
        if are_in_init:
            facts.append("no rank had come out of init_process_group: the first that gave up is not to blame for that")
            if again := ranks[first[0]].generation:
                facts.append(f"this is restart {again} of the job: the generation before it had ended as well")
            first, basis = [], Basis.REMAINDER
        if are_secondary and len(first) > 1 and not all_of:
            first, sides, basis = [], [[number] for number in first], Basis.REMAINDER
        victims = len(others) + len(waiting)
        return [
            self.job.verdict(
                "lost", "TW-LOST", None, first, what, facts, basis, victims=victims, sides=sides, seconds=seconds
            )
        ]

    def _named_by_words(self, sides: list[list[int]], speakers: list[int]) -> list[Verdict]:
        """LOST on the rank that others name as they fail, or with sides where as many name one as another."""
        ranks, named = self.job.ranks, sides[0] if len(sides) == 1 else []
        others = [number for number in self.dead if number not in named]
        told = [n for n in dict.fromkeys((*named, *speakers[:MAX_SUSPECTS])) if n in self.dead]
        voices = [number for number in speakers if number not in named]
        what = f"{words.ranks(voices)} failed with {self._quoted(voices)}"
        if named:
            what = f"{words.does(named, 'is', 'are')} named by others: {what}"
        else:
            what += f"; it is unknown which are wrong: {' or '.join(map(words.ranks, sides))}"
        return [
            self.job.verdict(
                "lost", "TW-LOST", None, named, what, _evidence([ranks[number] for number in told]), Basis.COMPARISON,
                victims=len(others), sides=[] if named else sides, seconds=max(ends.gone(ranks[n]) for n in speakers),
            )
        ]  # fmt: skip

    def _quoted(self, numbers: list[int]) -> str:
        """What they failed with; where they do not say the same, what another one says too."""
        texts = {number: self.job.ranks[number].process.exit_reason for number in numbers}
        first = texts[numbers[0]]
        other = next((number for number in numbers if texts[number] != first), None)
        return first if other is None else f"{first} (rank {other}: {texts[other]})"

    def _are_in_init(self, numbers: Iterable[int]) -> bool:
        """Whether these were in init_process_group, and no rank had come out of it."""
        ranks = self.job.ranks
        has_begun = any(rank.setup not in ("before init", "in init") for rank in ranks.values())
        return not has_begun and all(ends.was_in_init(ranks[number]) for number in numbers)

    def _waiting(self) -> set[int]:
        are_open = self.job.columns.rows.open_seconds >= self.job.thresholds.lost_seconds
        return set(self.job.columns.row_numbers[are_open].tolist()) - self.dead.keys()

    def _is_time(self, first: list[int]) -> bool:
        """Whether nothing is about to take their place. That is known at once where they have failed and do not end."""
        if not self.named.isdisjoint(first):
            return True
        patience = self.job.thresholds.lost_seconds
        ranks = [self.job.ranks[number] for number in first]
        if all(rank.process.is_alive for rank in ranks):
            patience = min(patience, _LIVES_ON)
        return max(map(ends.said, ranks)) >= patience


def _first(failed: dict[int, Rank]) -> tuple[list[int], bool]:
    """The ranks of these that may have ended first, as far as it can be told, and whether that is certain."""
    earliest = max(ends.said(rank) for rank in failed.values())
    near = [number for number, rank in failed.items() if ends.said(rank) >= earliest - _AFTERMATH]
    own = [number for number in near if not ends.is_secondary(failed[number])] or near
    start = max(ends.said(failed[number]) for number in own)
    tied = sorted((n for n in own if ends.said(failed[n]) >= start - _MOMENT), key=lambda n: (-ends.said(failed[n]), n))
    return tied[:MAX_SUSPECTS], len(tied) == 1


def _fails_by_itself(job: Job, dead: dict[int, Rank], end: float) -> bool:
    """Whether the first to end crashed, or had an error that no other had, long after a signal."""
    first = max(dead, key=lambda number: ends.said(dead[number]), default=-1)
    is_own = first >= 0 and (ends.has_failed(dead[first]) or dead[first].process.exit_kind == "crash")
    later = {number: age - ends.TOGETHER for number, age in job.columns.signals.items()}
    return is_own and first not in ends.alike(dead) and ends.goes_on(job, later, end)


def _first_end(dead: dict[int, Rank]) -> float:
    """How long ago the first rank ended. A silent one may have been stopped for long, until it was killed."""
    spoken = [ends.said(rank) for rank in dead.values() if rank.process.exit_reason]
    return max(spoken) if spoken else min(map(ends.said, dead.values()), default=0.0)


def _aborted(rank: Rank) -> bool:
    return rank.process.exit_reason.endswith("SIGABRT")


def _sized_by_peers(rank: Rank) -> str:
    """What it was in, if its peers say how much they send in it: messages, which ranks do not number alike, those from
    any source, and collectives of which the sizes of one rank say nothing of those of another."""
    found = [own.operation for own in rank.process_groups if own.open_seconds is not None and own.operation is not None]
    if rank.is_waiting or any(each.is_pairwise for each in (*found, *(call.operation for call in rank.calls[-1:]))):
        return "a message"
    return next((each.name for each in found if each.name in _SIZED_BY_PEERS), "")


def _is_done(job: Job, rank: Rank) -> bool:
    """Whether the rank had entered all that the others have. Messages are numbered alike by no two ranks."""
    groups = [group for group in rank.process_groups if not group.is_pairwise]
    return all(group.has_entered(int(job.groups[group.id].enqueued.max())) for group in groups)


def _evidence(ranks: list[Rank]) -> list[str]:
    told = ((rank, words.ended(rank, f" {words.seconds(ends.gone(rank))} ago")) for rank in ranks)
    return [f"rank {rank.rank} (pid {rank.pid} on {rank.node}) {end}{words.last_operation(rank)}" for rank, end in told]
