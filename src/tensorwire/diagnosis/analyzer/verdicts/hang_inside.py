"""Operations that all members in view have entered: called differently (H2), or stopped on the way (H3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import words
from ..view.confidence import Basis
from ..view.patience import RECENT_SHARE
from ..view.transport import Blame, least_moved
from ..view.verdict import MAX_SUSPECTS
from .mismatch import inconsistent

if TYPE_CHECKING:
    from ...model import Code
    from ..view.job import Job
    from ..view.transport import Transport
    from ..view.verdict import Verdict
    from ..view.waits import Wait

# Nobody can leave these before all have entered. Of other operations the root or a sender may be through early, or a
# rank that has nothing to exchange with some of the others.
_TOGETHER = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce",
    "all_reduce_coalesced", "barrier", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
})  # fmt: skip
_WITNESSES = 2


def all_entered(job: Job, transport: Transport, wait: Wait, num_victims: int) -> Verdict:
    """H2 where the calls differ, else H3 at the rank that the transport points at, else what is missing to tell.

    If a group is not wholly in view, only what was read as it is counts: the others may wait for one that is not in
    view. A stopped process and a retransmission timer that has backed off are facts of the kernel, and come
    first: with one of them the two ends may be in two messages, of which the earlier was sent and not received.
    Unread data and busy edges may be the consequence of another mismatch: that a rank has left an operation
    nobody can leave alone comes before them.
    """
    group, operations = wait.of_group, wait.operations
    pairwise = wait.is_pairwise
    if not pairwise and len(wait.sides) > 1:
        return inconsistent(job, group, wait.sequence, wait.sides, operations)
    ranks = wait.inside if pairwise else list(group.members)
    window = RECENT_SHARE * job.thresholds.hang_seconds
    blame = transport.stopped(job, ranks) or transport.broken(job, ranks, window)
    if blame is None and pairwise:
        unlike = _unlike_ends(job, wait, num_victims)
        if unlike is not None:
            return unlike
    elif blame is None:
        blame = _left_alone(wait)
        if blame is not None:
            return _verdict(job, wait, "TW-H2", blame, num_victims)
    if blame is not None:
        return _verdict(job, wait, "TW-H3", blame, num_victims)
    unseen = _unseen_peer(job, wait) if pairwise else job.unseen(group)
    if unseen or not (pairwise or group.is_whole):
        return _verdict(job, wait, "TW-UNKNOWN", Blame(unseen, _not_in_view(unseen), Basis.REMAINDER), num_victims)
    blame = transport.unread(job, ranks) or transport.busy(job, ranks, window)
    if blame is not None:
        return _verdict(job, wait, "TW-H3", blame, num_victims)
    blame = least_moved(wait.of_group)
    if blame is None and not any(operation.signature or operation.name for operation in operations.values()):
        blame = Blame([], ["only counts are known, not what the ranks called"], Basis.REMAINDER)
        return _verdict(job, wait, "TW-UNKNOWN", blame, num_victims)
    nothing = Blame(
        [], ["no process is stopped, and no edge between these ranks is known to be stuck"], Basis.REMAINDER
    )
    return _verdict(job, wait, "TW-H3", blame or nothing, num_victims)


def stopped_inside(job: Job, wait: Wait, number: int, num_victims: int) -> Verdict:
    """H3 on a stopped rank whose last counts are older than the operation it was in."""
    fact = f"rank {number} is stopped (state T), and sent data after others had entered the operation"
    return _verdict(job, wait, "TW-H3", Blame([number], [fact], Basis.COMPARISON), num_victims)


def _verdict(job: Job, wait: Wait, code: Code, blame: Blame, num_victims: int) -> Verdict:
    group = wait.of_group
    what = wait.title
    suspects = blame.suspects[:MAX_SUSPECTS]
    if code == "TW-UNKNOWN":
        seen = f"all {len(wait.inside)} ranks that are seen in it" if len(wait.inside) > 1 else "the one rank in it"
        summary = f"{what} hangs at {seen}, and the cause is unknown"
        if blame.suspects:
            summary += f"; {words.ranks(blame.suspects)} not in view"
        elif not group.is_whole:
            summary += ": it is not known which other ranks are in the group"
    elif code == "TW-H2":
        summary = f"{words.ranks(suspects)} left {what}, which the other ranks are still in: the calls do not match"
    elif suspects:
        summary = f"{what} stopped inside at {words.ranks(suspects)}; {_entered(wait)}"
    else:
        summary = f"{what} stopped inside, and at which rank is unknown; {_entered(wait)}"
    evidence = [f"{words.count(len(wait.inside), 'rank')} in {what}, the longest for {words.seconds(wait.seconds)}"]
    calls = {words.call(operation) for operation in wait.operations.values() if operation.name}
    if len(calls) == 1:
        evidence.append(f"all called {calls.pop()}")
    victims = max(0, num_victims - len(suspects))
    evidence += blame.evidence
    return job.verdict(
        "hang",
        code,
        group,
        suspects,
        summary,
        evidence,
        blame.basis,
        victims=victims,
        seconds=wait.seconds,
        witnesses=witnesses_of(job, wait),
    )


def _unlike_ends(job: Job, wait: Wait, num_victims: int) -> Verdict | None:
    """H2 on a message of which the two ends do not fit: another size or dtype, or another tag, which no page has."""
    calls = wait.of_group.operations(wait.inside)
    signatures = {operation.signature for operation in calls.values() if operation.signature}
    if len(signatures) < 2:
        return None
    ends = sorted(calls)
    facts = [f"rank {number} is in {words.call(calls[number])}" for number in ends]
    facts.append("the signatures of these calls differ, which size, dtype and tag go into")
    return job.verdict(
        "hang",
        "TW-H2",
        wait.of_group,
        [],
        f"the two ends of {wait.title} do not fit each other, and it is unknown which is wrong",
        facts,
        Basis.STATE,
        victims=num_victims,
        sides=[[number] for number in ends],
        seconds=wait.seconds,
    )


def witnesses_of(job: Job, wait: Wait) -> list[int]:
    """Whose stacks tell more of an operation that nobody is known to hold up: ranks in it, and ranks outside."""
    outside: list[int] = np.setdiff1d(job.columns.numbers, wait.inside)[:_WITNESSES].tolist()
    return sorted(wait.inside)[:_WITNESSES] + outside


def _entered(wait: Wait) -> str:
    who = "both ranks" if wait.is_pairwise else wait.of_group.all_members
    return f"{who} had entered it alike"


def _not_in_view(unseen: list[int]) -> list[str]:
    return [f"{words.ranks(unseen)} {words.verb(unseen, 'is', 'are')} not in view"] if unseen else []


def _left_alone(wait: Wait) -> Blame | None:
    """The few that have completed an operation which needs all, and which the others are still in."""
    if not any(operation.name in _TOGETHER for operation in wait.operations.values()):
        return None
    ahead = sorted(wait.of_group.members.keys() - set(wait.inside))
    if not ahead or 2 * len(ahead) >= len(wait.of_group.members):
        return None
    return Blame(
        ahead, [f"{words.ranks(ahead)} {words.verb(ahead, 'has', 'have')} completed #{wait.sequence}"], Basis.COMPARISON
    )


def _unseen_peer(job: Job, wait: Wait) -> list[int]:
    peers = {operation.root for operation in wait.operations.values()}
    return sorted(peer for peer in peers if peer >= 0 and peer not in job.ranks)
