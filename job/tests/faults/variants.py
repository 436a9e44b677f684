"""A fault of another kind than cases.py has: a training program of its own, which the fault befalls at a known moment.

A program is a plain script, as a user writes it, that knows nothing of the probe: programs/NAME.py, started once for
each rank. programs/common.py tells it whom the fault befalls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tensorwire_job.model import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

GATES = Thresholds(hang_seconds=5.0, slow_seconds=5.0, lost_seconds=2.0)
Ending = Literal["", "SIGINT", "SIGTERM"]
Launcher = Literal["", "torchrun", "accelerate"]


@dataclass(frozen=True)
class Variant:
    """What goes wrong in a program, and what has to be said of it.

    With `ending`, all ranks get that signal `ending_seconds` after the fault, and what `diagnose` says of the dead job
    is judged; without, what is said of the live one.
    """

    name: str
    program: str
    about: str  # what goes wrong, in one sentence
    codes: tuple[str, ...] = ()  # classes that are right; () where nothing may be found
    suspects: Callable[[int], list[int]] = lambda rank: [rank]  # who is right
    tie: Callable[[int], list[int]] | None = None  # suspects that are an honest tie: found, but not right
    ranks: tuple[int, ...] = (0, 1, 2, 3)  # that it befalls, in turn
    seconds: float = 20.0  # to look on from the fault
    ending: Ending = ""
    ending_seconds: float = 8.0
    ending_gap: float = 0.0  # seconds between the signals to two ranks
    notice: str = ""  # words that a notice must have, where `codes` is ()
    needs: str = ""  # as in needs.py
    environment: dict[str, str] = field(default_factory=dict)
    launcher: Launcher = ""  # that starts the ranks; "": they are started one by one
    before: str = ""  # what was said of it before it was in this matrix, and how often that was right

    @property
    def expected(self) -> str:
        """In words, with R for the rank that it befalls."""
        if not self.codes:
            return "nothing, and a notice" if self.notice else "nothing"
        ranks = sorted({says(self.suspects(rank), rank) for rank in self.ranks})
        return f"{' or '.join(self.codes)} {' or '.join(ranks)}".rstrip()


def says(suspects: list[int], rank: int) -> str:
    """Suspects in words, with R for the rank that the fault befell."""
    return ", ".join("R" if each == rank else str(each) for each in suspects)
