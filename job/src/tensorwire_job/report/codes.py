"""The meanings of codes and confidences of findings, and advice, in short; job/docs/findings.md has the long form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model import Confidence

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

RECORDED = {Confidence.HIGH: (23, 23), Confidence.MEDIUM: (5, 5), Confidence.LOW: (1, 1)}
"""How many verdicts of a confidence were right, and how many there were, when the recorded faults were analyzed again:
``python -m job.tests.faults --levels``."""


def confidence_text(confidence: Confidence, *, has_probe: bool = True) -> str:
    """ "high confidence, right in 23 of 23 recorded faults"; all of these jobs had the probe."""
    if not has_probe:
        return f"{confidence} confidence, not measured: there was no probe"
    right, told = RECORDED[confidence]
    share = f"right in {right} of {told} recorded faults" if told else "not measured: no recorded fault had it"
    return f"{confidence} confidence, {share}"


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
    if finding.code == "TW-H1" and finding.ended and not finding.stacks:
        return _NO_STACK
    return MEANINGS[finding.code].action
