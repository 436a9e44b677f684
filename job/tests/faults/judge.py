"""Whether what was found is what had happened. Strict: whatever else is found beside it makes a run wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .watch import Poll, is_finding

if TYPE_CHECKING:
    from tensorwire_job.model import Finding

    from .cases import Case

_EXCERPT = 300  # of a stack, in characters


def is_expected(case: Case, rank: int, finding: Finding) -> bool:
    """Class and rank."""
    same_sides = sorted(map(sorted, finding.sides)) == sorted(case.sides(rank))
    return finding.code == case.code and sorted(finding.suspects) == sorted(case.suspects(rank)) and same_sides


def complaint(case: Case, rank: int, polls: list[Poll], start: float) -> str:
    """What is wrong with what was found since the fault; "" if it is as expected throughout."""
    named = [(poll.time - start, finding) for poll in polls for finding in poll.findings if is_finding(finding)]
    for seconds, finding in named:
        if not case.code or not is_expected(case, rank, finding):
            return f"after {seconds:.1f} s {_said(finding)}"
    if case.code and not named:
        return "nothing found"
    if case.code and not any(map(is_finding, polls[-1].findings)):
        return "what was found did not stay"
    told = [finding for poll in polls for finding in poll.findings]
    if case.notice and not any(is_notice(finding, rank) for finding in told):
        return "no notice of whom the others wait for"
    if case.evidence and not any(case.evidence in fact for _, finding in named for fact in finding.evidence):
        return f"no evidence that says {case.evidence}: {named[-1][1].evidence}"
    if case.stack and not any(case.stack in finding.stacks.get(rank, "") for finding in told):
        stacks = {text for finding in told for text in finding.stacks.values()}
        return f"no stack of rank {rank} that shows {case.stack}: {' / '.join(stacks)[-_EXCERPT:] or 'none'}"
    return ""


def is_notice(finding: Finding, rank: int) -> bool:
    return finding.level == "notice" and finding.suspects == [rank]


def _said(finding: Finding) -> str:
    sides = f" {finding.sides}" if finding.sides else ""
    evidence = "; ".join(finding.evidence)
    return f"{finding.code} {finding.suspects}{sides} ({finding.confidence} confidence): {finding.summary} [{evidence}]"
