"""Whether what is said of a case is right: found at all, the rank, the class, and whom else it accuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorwire_job.model import Confidence

from .cases import says
from .watch import is_finding

if TYPE_CHECKING:
    from tensorwire_job.model import Finding

    from .cases import Case
    from .watch import Poll

_EXCERPT = 300  # of a stack, in characters
_LOOK_SECONDS = 0.5  # looks that are closer count as one
_OF_THE_LIVING = ("TW-S1", "TW-S2", "TW-S3")


@dataclass
class Judgement:
    """The judgement of one run.

    A run of the matrix is right if nothing is `wrong`. In those of variants the rank and the class are right if those
    of the first finding are so in every look that has a finding: what a person reads does not depend on when they ask.
    Looks at TW-UNKNOWN do not count where another class is found.
    """

    found: bool = False
    rank_right: bool = False
    class_right: bool = False
    tie: bool = False  # the suspects are an honest tie, which is not right
    holds: bool = False  # the sides or suspects of every look have the rank, and others too
    misnamed: bool = False  # a look names others, and not the rank
    seconds: float | None = None  # from the fault to the first finding
    said: str = ""  # the first finding of each look, as often as that changed
    wrong: list[str] = field(default_factory=list)  # each verdict that is wrong, with its evidence
    innocent: list[str] = field(default_factory=list)  # findings of high confidence that name somebody else
    levels: dict[str, list[int]] = field(default_factory=dict)  # verdicts of each confidence: right, all
    looks: int = 0
    false_looks: int = 0  # with a finding where nothing may be found, or before the fault
    notice: bool = True  # the notice that was expected came
    right: bool = False
    dead: str | None = None  # what is said of the job once it has been ended; None: nobody has looked
    same: bool | None = None  # ranks, sides and class are those of the last look before; None: that has no answer


def judge(
    case: Case, rank: int, polls: list[Poll], start: float, dead: list[Finding] | None = None, trouble: str = ""
) -> Judgement:
    """Judge all that was found from the start of a job on.

    Args:
        start: the time of the fault.
        dead: what was found once the job had been ended, if somebody looked.
        trouble: what went wrong with the run of a case of the matrix.
    """
    found = [(poll.time, [each for each in poll.findings if is_finding(each)]) for poll in polls]
    may_find = bool(case.codes)
    verdicts = [(time, findings) for time, findings in found if findings and (time >= start and may_find)]
    false = [(time, findings) for time, findings in found if findings and not (time >= start and may_find)]
    judged = Judgement(looks=_num_looks([time for time, _ in found]), false_looks=_num_looks([t for t, _ in false]))
    first = [findings[0] for _, findings in verdicts]
    first = [finding for finding in first if finding.code != "TW-UNKNOWN"] or first
    judged.found = bool(verdicts)
    judged.rank_right = _all(has_right_rank(case, rank, finding) for finding in first) or not may_find
    judged.class_right = _all(finding.code in case.codes for finding in first) or not may_find
    judged.tie = _all(_is_tie(case, rank, finding) for finding in first)
    judged.holds = not judged.rank_right and _all(_holds(case, rank, finding) for finding in first)
    judged.misnamed = any(finding.suspects and not _holds(case, rank, finding) for finding in first)
    judged.seconds = verdicts[0][0] - start if verdicts else None
    judged.said = ", then ".join(_changes(verdicts or false, rank)) or "nothing"
    distinct: dict[object, Finding] = {}
    for each in (each for _, findings in verdicts + false for each in findings):
        distinct.setdefault((*each.identity(), each.confidence), each)
    for each in distinct.values():
        _weigh(judged, case, rank, each)
    if may_find and not verdicts:
        judged.wrong.append("nothing found" + _noticed(polls))
    if not case.program:
        text = trouble or complaint(case, rank, polls, start)
        judged.wrong, judged.right = [text] if text else [], not text
        return judged
    if case.notice and not any(case.notice in text for text in _notices(polls)):
        judged.notice = False
        judged.wrong.append(f"no notice with {case.notice!r}" + _noticed(polls))
    if dead is not None:
        _compare(judged, polls, dead, rank)
        judged.false_looks += not may_find and any(map(is_finding, dead))
    is_clean = judged.notice and not judged.innocent and not judged.false_looks
    judged.right = judged.rank_right and judged.class_right and is_clean
    return judged


def complaint(case: Case, rank: int, polls: list[Poll], start: float) -> str:
    """What is wrong with what was found since a fault of the matrix; "" if it is as expected throughout.

    Strict: whatever else is found beside it makes a run wrong.
    """
    named = [(poll.time - start, finding) for poll in polls for finding in poll.findings if is_finding(finding)]
    for seconds, finding in named:
        if not is_right(case, rank, finding):
            return f"after {seconds:.1f} s {_evident(finding, rank)}"
    if case.codes and not named:
        return "nothing found"
    if case.codes and not any(map(is_finding, polls[-1].findings)):
        return "what was found did not stay"
    told = [finding for poll in polls for finding in poll.findings]
    if case.notice and not any(is_notice(case, rank, finding) for finding in told):
        return "no notice of whom the others wait for"
    if case.evidence and not any(case.evidence in fact for _, finding in named for fact in finding.evidence):
        return f"no evidence that says {case.evidence}: {named[-1][1].evidence}"
    if case.stack and not any(case.stack in finding.stacks.get(rank, "") for finding in told):
        stacks = {text for finding in told for text in finding.stacks.values()}
        return f"no stack of rank {rank} that shows {case.stack}: {' / '.join(stacks)[-_EXCERPT:] or 'none'}"
    return ""


def is_notice(case: Case, rank: int, finding: Finding) -> bool:
    """Whether it is the notice that a case of the matrix expects."""
    return finding.level == "notice" and finding.suspects == [rank] and case.notice in finding.summary


def _compare(judged: Judgement, polls: list[Poll], dead: list[Finding], rank: int) -> None:
    """Slowness shows in a job that lives alone."""
    live, dead = ([each for each in findings if is_finding(each)] for findings in (polls[-1].findings, dead))
    judged.dead = " with ".join(_words(finding, rank) for finding in dead) or "nothing"
    if not any(finding.code in _OF_THE_LIVING for finding in live):
        judged.same = _claim(live) == _claim(dead)


def _claim(findings: list[Finding]) -> object:
    if not findings:
        return None
    first = findings[0]
    return first.code, sorted(first.suspects), sorted(map(sorted, first.sides)) if not first.suspects else []


def has_right_rank(case: Case, rank: int, finding: Finding) -> bool:
    """The first suspects are those that are right, and it is no tie."""
    if _is_tie(case, rank, finding):
        return False
    expected = case.suspects(rank)
    if not expected:
        return not finding.suspects
    return sorted(finding.suspects[: len(expected)]) == sorted(expected)


def is_right(case: Case, rank: int, finding: Finding) -> bool:
    """Class and rank; in the matrix all suspects, and the sides."""
    if not case.program:
        told = sorted(finding.suspects), sorted(map(sorted, finding.sides))
        due = sorted(case.suspects(rank)), sorted(side(rank) for side in case.sides)
        return finding.code in case.codes and told == due
    return finding.code in case.codes and has_right_rank(case, rank, finding)


def _weigh(judged: Judgement, case: Case, rank: int, finding: Finding) -> None:
    """Count one verdict: for its confidence, and against it."""
    right = is_right(case, rank, finding)
    told = judged.levels.setdefault(finding.confidence.value, [0, 0])
    told[0] += right
    told[1] += 1
    text = _evident(finding, rank)
    others = set(finding.suspects) - set(case.suspects(rank) if case.codes else [])
    if others and finding.confidence is Confidence.HIGH:
        judged.innocent.append(text)
    if not right:
        judged.wrong.append(text)


def _is_tie(case: Case, rank: int, finding: Finding) -> bool:
    if case.tie is None:
        return False
    named = finding.suspects or [each for side in finding.sides for each in side]
    return sorted(named) == sorted(case.tie(rank)) or sorted(finding.suspects) == sorted(case.tie(rank))


def _holds(case: Case, rank: int, finding: Finding) -> bool:
    """The ranks that are right are among those that are named, or among those of the sides."""
    told = finding.suspects or [each for side in finding.sides for each in side]
    return set(case.suspects(rank)) <= set(told)


def _all(values: Any) -> bool:
    """Whether there are any, and all are true."""
    known = list(values)
    return bool(known) and all(known)


def _changes(looks: list[tuple[float, list[Finding]]], rank: int) -> list[str]:
    said: list[str] = []
    for _, findings in looks:
        text = " with ".join(_words(finding, rank) for finding in findings)
        if said[-1:] != [text]:
            said.append(text)
    return said


def _words(finding: Finding, rank: int) -> str:
    sides = f" of {' / '.join(says(side, rank) for side in finding.sides)}" if finding.sides else ""
    return f"{finding.code} {says(finding.suspects, rank) or 'no rank'}{sides} ({finding.confidence})"


def _evident(finding: Finding, rank: int) -> str:
    return f"{_words(finding, rank)}: {finding.summary} [{'; '.join(finding.evidence)}]"


def _notices(polls: list[Poll]) -> list[str]:
    """What was said without being a finding, in the order in which it came."""
    texts = (
        " ".join([each.summary, *each.evidence]) for poll in polls for each in poll.findings if not is_finding(each)
    )
    return list(dict.fromkeys(texts))


def _noticed(polls: list[Poll]) -> str:
    texts = _notices(polls)
    return f"; noticed: {texts[-1]}" if texts else ""


def _num_looks(times: list[float]) -> int:
    number, last = 0, float("-inf")
    for time in times:
        if time >= last + _LOOK_SECONDS:
            number, last = number + 1, time
    return number
