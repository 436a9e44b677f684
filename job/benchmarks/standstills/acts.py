"""What went wrong in a run, and what it has of each rank: its calls as they went, where it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .programs import Call


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong.

    Attributes:
        culprits: the ranks of which each is rightly named; none where no rank is to blame.
        place: "local" where a rank stands still or ends, else "pair" or "group" by how many take part in the call,
            "words" where ranks fail of what they see in others, "unseen" where these words tell nothing of the culprit;
            "nobody" where no rank is to blame.
    """

    kind: str
    culprits: tuple[int, ...]
    place: str
    what: str


@dataclass(slots=True, eq=False)
class Act:
    """One call of a rank, as it went.

    Attributes:
        place: in the calls of the rank.
        number: of collectives in their group, of messages in their direction, from 1.
        tag: by which collectives of a group meet, from 1.
        done: when it was complete; None while it is open.
        lost: a rank that has ended and with which it exchanged data; -1 while there is none.
        holder: of the file lock that it waits for, the process that has it, and since when. See locks.py.
    """

    rank: int
    place: int
    call: Call
    number: int
    entered: float
    tag: int = 0
    done: float | None = None
    lost: int = -1
    holder: int | None = None
    held_since: float = 0.0


@dataclass(slots=True)
class End:
    """How a process ended."""

    time: float
    words: str  # exit reason
    kind: str  # model.ExitKind
    is_of_others: bool  # because of what another one sent, or because it had gone
    heard: float  # when its page was written last: one that was stopped has been silent since


@dataclass(slots=True)
class RankState:
    place: int = 0
    acts: list[Act] = field(default_factory=list)
    waits_for: Act | None = None
    waits_since: float = 0.0
    local: str = ""  # "sleep", "stop", "loop", "spin" (with Python's lock held): it does nothing that others need
    local_since: float = 0.0
    signal: str = ""  # the first that it got
    signal_time: float = 0.0
    is_pending: bool = False  # a signal that waits for the interpreter
    end: End | None = None
    is_failing: bool = False
    is_done: bool = False  # at the end of its calls

    @property
    def is_alive(self) -> bool:
        return self.end is None

    @property
    def stands(self) -> bool:
        return self.waits_for is not None or bool(self.local) or not self.is_alive or self.is_done
