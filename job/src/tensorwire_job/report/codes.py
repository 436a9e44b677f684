"""The meanings of codes and confidences of findings, and advice, in short; job/docs/findings.md has the long form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model import Confidence
from ..words import BY_CHANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model import CircleRank, Code, Finding
    from .history import History


@dataclass(frozen=True)
class Meaning:
    """One code: its name, what has happened, what to do."""

    title: str
    what: str
    action: str


_NO_STACK = (
    "The suspect's process is gone, and its stack with it. Read its own log up to that moment, and let tensorwire-job "
    "watch run beside the next run: it reads the stack while the job hangs. Look for a branch that only some ranks "
    "take, a data loader that ran dry, a lock."
)

_SIDES = (
    "One of the sides is wrong; the script tells which. Compare what each called, and from which line. Look for a "
    "condition that depends on the rank, parameters in another order, two groups used in opposite orders."
)

_THREADS = (
    "Give the thread a group of its own (new_group, called by all ranks in one order before it starts), or make all "
    "its calls in the main thread. No rank has to be wrong: the order may differ in every run."
)

_ALL_FAILED = (
    "Read the logs of all ranks from the first error on. Look for an address that an earlier job left behind, a port "
    "that another process has, an interface that the nodes do not share, ranks that come minutes after the others."
)

NEW_FAULTS: dict[Code, dict[Confidence, tuple[int, int]]] = {
    "TW-H1": {Confidence.HIGH: (91, 94), Confidence.MEDIUM: (16, 27)},
    "TW-H2": {Confidence.HIGH: (72, 73), Confidence.MEDIUM: (6, 6)},
    "TW-S1": {Confidence.HIGH: (35, 35), Confidence.MEDIUM: (8, 8)},
    "TW-LOST": {Confidence.HIGH: (32, 36), Confidence.MEDIUM: (4, 12)},
}
"""Faults that the analyzer had never met, by code and confidence of the first finding that named suspects: in how many
these were right, and how many there were, with five or more. The table is in job/benchmarks/results."""


def confidence_text(finding: Finding, *, has_probe: bool = True) -> str:
    """ "high confidence: right in 91 of 94 faults that it had not met before"; no figure where none was measured."""
    measured = NEW_FAULTS.get(finding.code, {}).get(finding.confidence)
    if measured is None or finding.level != "finding" or not finding.suspects or not has_probe:
        return f"{finding.confidence} confidence"
    return "{} confidence: right in {} of {} faults that it had not met before".format(finding.confidence, *measured)


def finding_line(finding: Finding, history: History | None = None) -> str:
    """A finding on one line: "TW-H1 high confidence, for 12 s: rank 2 has not entered ..."."""
    mark = "" if finding.level == "finding" else " notice"
    age = f", {history.age(finding)}" if history else ""
    return f"{finding.code}{mark} {finding.confidence} confidence{age}: {finding.summary}"


def circle_text(circle: Sequence[CircleRank]) -> str:
    """ "rank 0 waits for rank 2, which waits for rank 1, which waits for rank 0"."""
    after = [*circle[1:], circle[0]]
    return f"rank {circle[0].rank} " + ", which ".join(f"waits for rank {link.rank}" for link in after)


MEANINGS: dict[Code, Meaning] = {
    "TW-H1": Meaning(
        "not-entered hang",
        "A rank never entered an operation that the other ranks of its group wait in.",
        "Read the suspect's stack: it shows where the rank is instead. Look for a branch that only some ranks take, "
        "a data loader that ran dry, a lock, a debugger, a stopped process.",
    ),
    "TW-H2": Meaning(
        "inconsistent hang",
        "Ranks entered different operations, shapes, dtypes, roots or orders where all have to agree.",
        "Compare the calls that the evidence names, first on the suspects: a condition that depends on the rank, "
        "parameters in another order, two groups used in opposite orders.",
    ),
    "TW-H3": Meaning(
        "hang inside an operation",
        "All ranks entered the same operation alike, and the transfer inside it stopped.",
        "Look at the suspect's node: link, switch port, device, process state. If the hardware is in doubt, take the "
        "node out and restart from the last checkpoint.",
    ),
    "TW-S1": Meaning(
        "slow computation",
        "A rank arrives late at operation after operation, and the others wait for it.",
        "Profile the suspect between operations: data loading, garbage collection, uneven work, clocks lowered by "
        "heat, a CPU quota, a neighbour on its node.",
    ),
    "TW-S2": Meaning(
        "slow communication",
        "All ranks arrive together, and the transfer itself takes too long.",
        "Look at the links that the evidence names: negotiated speed, errors, retransmissions, other traffic.",
    ),
    "TW-S3": Meaning(
        "slow computation and communication",
        "Ranks arrive late, and the transfer is slow as well.",
        "Begin with what the two have in common, the suspect's node: one cause, such as an overloaded CPU, often does "
        "both.",
    ),
    "TW-LOST": Meaning(
        "lost process",
        "A rank's process ended while others still need it.",
        "Read the suspect's own log first: what its peers print is a consequence. If there is no exit reason, ask the "
        "kernel log and the scheduler who killed the process (memory, preemption).",
    ),
    "TW-UNKNOWN": Meaning(
        "unknown trouble",
        "The job does not get on, and the evidence does not single out a cause.",
        "Read what is missing in the evidence and supply it: the probe on every rank, an agent on every node.",
    ),
}


def advice(finding: Finding) -> str:
    """The advice for this finding."""
    if BY_CHANCE in finding.summary:
        return _THREADS
    if finding.code == "TW-LOST" and not (finding.suspects or finding.sides):
        return _ALL_FAILED
    if finding.sides and not finding.suspects and finding.code != "TW-UNKNOWN":
        return _SIDES
    if finding.code == "TW-H1" and finding.ended and not finding.stacks:
        return _NO_STACK
    return MEANINGS[finding.code].action
