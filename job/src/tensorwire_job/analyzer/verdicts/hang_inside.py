"""What all members in view have entered: calls that differ (H2), operations that stopped on the way (H3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ..view import transport
from ..view.confidence import Basis
from ..view.job import RUNS
from ..view.patience import recent
from ..view.transport import Blame
from ..view.verdict import MAX_SUSPECTS
from .unlike_calls import inconsistent

if TYPE_CHECKING:
    from ...model import Code
    from ..view.job import Job
    from ..view.verdict import Verdict
    from ..view.waits import Wait

_WITNESSES = 2
_MAX_WITNESSES = 32


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
    return transport.stopped(job, wait.members) or transport.broken(job, wait.members, recent(job))


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
    blame = transport.unread(job, wait.members) or transport.busy(job, wait.members, recent(job))
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
