"""What the analyzer says of standstills, and how often it is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorwire_job.analyzer import Analyzer
from tensorwire_job.analyzer.verdicts import part
from tensorwire_job.model import ASKED

from .evidence import observe, stack

if TYPE_CHECKING:
    from tensorwire_job.model import Finding

    from .evidence import Noise
    from .play import Player

LOOKS = 5
INTERVAL = 3.0  # seconds
_GRACE = 40.0  # that ranks have to live after a signal that they have caught
RIGHT, OPEN, WRONG, NOTHING = "right", "open", "wrong", "not named"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said: the ranks that were named, those of the sides, class and confidence of the first finding.

    Attributes:
        considered: the ranks that explain the hang in the analyzer's graph, before it decides between them.
    """

    named: tuple[int, ...] = ()
    sides: tuple[int, ...] = ()
    code: str = ""
    confidence: str = ""
    summary: str = ""
    considered: frozenset[int] = frozenset()

    @property
    def claim(self) -> tuple[object, ...]:
        """What has to be the same of a job that lives and of the same job once it is dead."""
        return self.code, self.named, self.sides if not self.named else ()

    def includes(self, culprits: Iterable[int]) -> bool:
        """Whether a culprit is named, in a side, or among the ranks between which the analyzer decided."""
        return not self.considered.union(self.named, self.sides).isdisjoint(culprits)

    def outcome(self, culprits: Iterable[int]) -> str:
        """Right where a culprit alone is named, or some culprits of several; open where it is one of those named or of
        the sides. Where no rank is to blame, right where none is named."""
        due, told = set(culprits), set(self.named or self.sides)
        if not due:
            return WRONG if self.named else RIGHT
        if not told:
            return NOTHING
        if self.named and told <= due:
            return RIGHT
        return OPEN if told & due else WRONG


def judge(player: Player, noise: Noise | None = None) -> Verdict:
    """What a person is told who asks for a while, some time after nothing has moved any more."""
    analyzer = Analyzer(ASKED)
    findings: list[Finding] = []
    first = player.now + ASKED.hang_seconds + 1.0 + _GRACE * player.has_caught
    with _explanations() as considered:
        for look in range(LOOKS):
            considered.clear()
            analysis = analyzer.update(observe(player, first + look * INTERVAL, noise))
            findings = analysis.findings
            for rank in analysis.stacks_of:
                analyzer.add_stack(rank, stack(player, rank))
    told = [finding for finding in findings if finding.level == "finding"]
    if not told:
        return Verdict(considered=frozenset(considered))
    named = tuple(sorted({rank for finding in told for rank in finding.suspects}))
    sides = tuple(sorted({rank for finding in told for side in finding.sides for rank in side}))
    return Verdict(named, sides, told[0].code, str(told[0].confidence), told[0].summary, frozenset(considered))


@contextmanager
def _explanations() -> Iterator[set[int]]:
    """The ranks that the graph of the analyzer has for explanations meanwhile. No finding has all of them."""
    found: set[int] = set()
    explain = part.explain

    def noted(*arguments: Any) -> Any:
        explanation = explain(*arguments)
        vertices = (*explanation.single, *explanation.together, *explanation.partly)
        found.update(vertex for vertex in vertices or explanation.circle if vertex >= 0)
        return explanation

    part.explain = noted
    try:
        yield found
    finally:
        part.explain = explain


def end_all(player: Player) -> None:
    """The job ends: ranks run out of time, or a person ends them with a signal; and SIGKILL for those that are left."""
    source = player.random
    name = source.choice(("time-out", "SIGTERM", "SIGINT", "SIGKILL"))
    begin, last = source.uniform(40.0, 120.0), 15.0
    if name == "time-out":
        player.time_out()
        last = 2000.0
    for rank in range(len(player.ranks)):
        gap = source.choice((0.0, source.uniform(0.0, 0.02), source.uniform(0.0, 2.0)))
        if name != "time-out":
            player.after(begin + gap, lambda rank=rank: player.signal(rank, name))
        player.after(begin + last + gap, lambda rank=rank: player.signal(rank, "SIGKILL"))
    player.play()
