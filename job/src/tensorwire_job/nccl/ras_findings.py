"""Findings about a job without the probe, from two answers of NCCL's RAS service, some time apart.

Experimental: it may change or go with any version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import words
from ..confidence import Basis, confidence_of
from ..model import MAX_SUSPECTS, Finding

if TYPE_CHECKING:
    from .ras import RasCommunicator, RasProcess, RasStatus

# RAS counts launches, so ranks behind may be in a long kernel. A process that it gives up may live.
_BASIS = Basis.COMPARISON


def findings_of(before: RasStatus, after: RasStatus, seconds: float) -> list[Finding]:
    """TW-LOST for processes that RAS has given up; TW-H1 where ranks are behind and none launches any more.

    Ranks are those of the communicator, as RAS has no others; the evidence names their processes. `seconds` lie between
    the two answers. Where processes did not answer RAS in time, the confidence is lower, and the evidence says so.
    """
    findings = []
    timeouts = after.num_timeouts
    gaps = [f"RAS waited {words.count(timeouts, 'time')} in vain for an answer of a process"] if timeouts else []
    if after.dead:
        missing = [member for group in after.communicators for member in group.missing]
        dead = set(after.dead)
        ranks = sorted({member.rank for member in missing if member.process in dead})
        findings.append(
            Finding(
                code="TW-LOST",
                level="finding",
                time=seconds,
                suspects=ranks[:MAX_SUSPECTS],
                sides=[],
                process_group="",
                summary=f"NCCL has given up {_processes(after.dead)}",
                evidence=[f"RAS of NCCL {after.nccl_version} calls {len(after.dead)} processes of the job dead", *gaps],
                confidence=confidence_of("TW-LOST", _BASIS, ranks, is_incomplete=bool(gaps)),
            )
        )
    earlier = {group.hash: group for group in before.communicators}
    for group in after.communicators:
        known = earlier.get(group.hash)
        if known is None or known.counts != group.counts:
            continue  # it goes on
        findings += [_behind(group, function, ranks, seconds, gaps) for function, ranks in group.behind().items()]
    return findings


def _behind(group: RasCommunicator, function: str, ranks: list[int], seconds: float, gaps: list[str]) -> Finding:
    counts = sorted((count for count in group.counts if count.function == function), key=lambda count: count.launched)
    lowest, highest = counts[0], counts[-1]
    title = f"communicator {group.hash}"
    evidence = [
        f"{len(count.ranks)} of {group.size} ranks have launched {function} {count.launched} times"
        for count in counts[:4]
    ]
    evidence.append(f"no rank of this communicator has launched anything for {seconds:.0f} s")
    members = {member.rank: member for member in [*group.ranks, *group.missing]}
    evidence += [
        f"rank {rank} is pid {member.process.pid} on {member.process.host}"
        for rank in ranks[:MAX_SUSPECTS]
        if (member := members.get(rank)) is not None and member.process is not None
    ]
    return Finding(
        code="TW-H1",
        level="finding",
        time=seconds,
        suspects=ranks[:MAX_SUSPECTS],
        sides=[],
        process_group=title,
        summary=f"{words.ranks(ranks)} launched {function} {lowest.launched} times in {title}, "
        f"others {highest.launched}, and no rank goes on",
        evidence=evidence + gaps,
        confidence=confidence_of("TW-H1", _BASIS, ranks, is_incomplete=bool(gaps)),
        victims=max(0, group.size - len(lowest.ranks)),
    )


def _processes(processes: Iterable[RasProcess]) -> str:
    named = [f"pid {process.pid} on {process.host}" for process in processes]
    more = f" and {len(named) - MAX_SUSPECTS} more" if len(named) > MAX_SUSPECTS else ""
    return ", ".join(named[:MAX_SUSPECTS]) + more
