"""The hang gate, and what hangs: roots and circles of the wait-for graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import hang_inside, hang_not_entered, hang_order
from .patience import RECENT_SHARE
from .transport import PROGRESS
from .waits import WaitGraph

if TYPE_CHECKING:
    from .job import Job
    from .transport import Transport
    from .verdict import Verdict
    from .waits import Wait

_MAX_FINDINGS = 4


def find_hangs(job: Job, transport: Transport) -> list[Verdict]:
    """Verdicts on all that hangs; none while the oldest operation is younger than the gate, or bytes still move."""
    graph = WaitGraph(job)
    old = [wait for wait in graph.waits if wait.seconds >= job.thresholds.hang_seconds]
    # Who waits through others may have waited longer than those at the root.
    blocked = graph.reached_from(old)
    verdicts = [
        hang_not_entered.not_entered(job, transport, graph, component)
        for component in _components([wait for wait in blocked if wait.unblocked])
    ]
    entered = [
        (wait, hang_inside.all_entered(job, transport, wait, len(graph.victims([wait]))))
        for wait in blocked
        if not wait.missing and not _is_ending(job, wait) and not _moves(job, transport, wait)
    ]
    verdicts += [verdict for wait, verdict in entered if not _may_lack_others(wait, verdict)]
    verdicts += [hang_order.opposite_order(job, graph, circle) for circle in graph.circles(blocked)]
    # Whoever such an operation lacks may well be in one of the others: it tells nothing where these tell something.
    verdicts = verdicts or [verdict for _, verdict in entered]
    verdicts.sort(
        key=lambda verdict: (
            verdict.finding.level == "notice",
            -verdict.finding.victims,
            verdict.finding.confidence.order,
            verdict.finding.summary,
        )
    )
    return verdicts[:_MAX_FINDINGS]


def _may_lack_others(wait: Wait, verdict: Verdict) -> bool:
    """Whether all that is known is that ranks wait in it, of a group that is not wholly in view."""
    return not (wait.is_pairwise or wait.group.is_whole) and verdict.finding.code == "TW-UNKNOWN"


def _is_ending(job: Job, wait: Wait) -> bool:
    """Whether somebody has entered or left the operation of late: whom the others waited for has come, however long
    that took, and they are about to leave as well."""
    group = wait.group
    inside = np.isin(group.numbers, wait.inside)
    left = (group.enqueued >= wait.sequence) & (not wait.is_pairwise)  # and may be in the next one by now
    since_left = np.where(np.isnan(group.open_seconds), group.idle_seconds, group.open_seconds)
    ages = np.where(inside, group.open_seconds, np.where(left, since_left, np.nan))
    return bool((ages < RECENT_SHARE * job.thresholds.hang_seconds).any())


def _moves(job: Job, transport: Transport, wait: Wait) -> bool:
    """Whether bytes still move in this operation: it is large, and nothing hangs.

    Ranks that complete other operations meanwhile may move bytes for those, so they do not count.
    """
    recent = RECENT_SHARE * job.thresholds.hang_seconds
    completing = job.columns.row_numbers[job.columns.rows.idle_seconds < recent]
    still = set(wait.inside) - set(completing.tolist())
    return transport.progress(job, wait.group, still, recent) >= PROGRESS


def _components(waits: list[Wait]) -> list[list[Wait]]:
    """Waits that lack a rank in common are one trouble."""
    of_rank: dict[int, list[Wait]] = {}
    for wait in waits:
        for number in wait.unblocked:
            of_rank.setdefault(number, []).append(wait)
    seen: set[int] = set()
    components = []
    for first in waits:
        component, queue = [], [first]
        while queue:
            wait = queue.pop()
            if id(wait) in seen:
                continue
            seen.add(id(wait))
            component.append(wait)
            for number in wait.unblocked:
                queue += of_rank.pop(number, ())
        if component:
            components.append(component)
    return components
