"""Where the ranks of a job stand: the same view for a terminal, for JSON and for the page. It judges nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .. import words
from ..numbered import without_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..model import Observation, ProcessGroup, Rank

State = Literal["idle", "moves", "ended", "waits", "absent", "stopped", "lost"]
"""Of a rank: is in no operation; completes operations; its process has said good-bye; waits in an operation; is
missing in one that others wait in; its process is stopped, or is gone without a word."""

STATES: tuple[State, ...] = ("idle", "moves", "ended", "waits", "absent", "stopped", "lost")
"""The states, the most serious last."""

_Key = tuple[State, str, int, str, str]
_FEW = 6  # status groups that a reader takes in one by one
_MAX_RANGES = 12
_LATE = 0.05  # of the median rank's T: a rank that waits less than it by so little is none that others wait for

WAIT_SECONDS = 1.0
"""An operation that has been open for less is not worth a word: the counts of a rank are up to 50 ms old, and large
transfers take a while."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank does.

    Attributes:
        state: what it does.
        operation, sequence, process group: what it waits in or is absent from, else "", 0 and "".
        seconds: how long it has waited, others have waited for it, or its process is gone; 0 where nobody waits.
        behind: operations by which it is behind the first rank of the same group, the most over its groups.
        seconds_per_round: mean T over the rounds that all ranks timed, None where they did not.
    """

    rank: int
    state: State
    operation: str
    sequence: int
    process_group: str
    phase: str
    seconds: float
    behind: int
    seconds_per_round: float | None


def together(status: RankStatus | StatusGroup) -> _Key:
    """What ranks of one status group have in common."""
    return status.state, status.operation, status.sequence, status.process_group, status.phase


@dataclass(frozen=True, slots=True)
class StatusGroup:
    """Ranks of equal status; `seconds` is the longest of them, `ranks` is compressed: "0-2, 4"."""

    state: State
    operation: str
    sequence: int
    process_group: str
    phase: str
    num_ranks: int
    ranks: str
    seconds: float

    @property
    def text(self) -> str:
        """In words, without the ranks."""
        return status_text(self)

    def few_ranks(self) -> str:
        """The ranks, for a person: the first few ranges of many."""
        parts = self.ranks.split(", ")
        left = len(parts) - _MAX_RANGES
        return f"{', '.join(parts[:_MAX_RANGES])} and {left} more ranges" if left > 1 else self.ranks


def statuses(observation: Observation, previous: Observation | None = None) -> list[RankStatus]:
    """One status per rank, by rank. `previous` tells the ranks that complete operations from those that are idle."""
    front: dict[str, int] = {}
    waits: dict[str, tuple[float, str]] = {}  # of process groups where a rank waits: how long, in what
    for rank in observation.ranks.values():
        for group in rank.process_groups:
            if group.is_pairwise:
                continue  # the two ends count apart
            front[group.id] = max(front.get(group.id, 0), group.enqueued)
            if _waits(rank, group) and (group.open_seconds or 0.0) > waits.get(group.id, (0.0, ""))[0]:
                waits[group.id] = (group.open_seconds or 0.0, group.operation.name if group.operation else "")
    return [
        _status(rank, previous.ranks.get(rank.rank) if previous else None, front, waits)
        for _, rank in sorted(observation.ranks.items())
    ]


def status_groups(statuses: Iterable[RankStatus], *, apart: Collection[int] = ()) -> list[StatusGroup]:
    """Equal statuses together; the most serious first, then the fewest ranks.

    Of many, those in process groups that differ in a number are one, unless they are of ranks that are to stay apart.
    """
    alike: dict[_Key, list[RankStatus]] = {}
    for status in statuses:
        alike.setdefault(together(status), []).append(status)
    if len(alike) > _FEW:
        alike = _without_numbers(alike, apart)
    found = [
        StatusGroup(
            *key, len(group), words.ranges(status.rank for status in group), max(status.seconds for status in group)
        )
        for key, group in alike.items()
    ]
    return sorted(found, key=lambda group: (-STATES.index(group.state), group.num_ranks, group.ranks))


def _without_numbers(alike: dict[_Key, list[RankStatus]], apart: Collection[int]) -> dict[_Key, list[RankStatus]]:
    kinds: dict[_Key, list[_Key]] = {}
    for key, group in alike.items():
        state, operation, sequence, process_group, phase = key
        own = any(status.rank in apart for status in group)
        kind = process_group if own else without_number(process_group)
        kinds.setdefault((state, operation, sequence, kind, phase), []).append(key)
    found = {}
    for (state, operation, sequence, kind, phase), keys in kinds.items():
        name = f"{kind} ({len(keys)} groups)" if len(keys) > 1 else keys[0][3]
        found[state, operation, sequence, name, phase] = [status for key in keys for status in alike[key]]
    return found


def slowest(statuses: Iterable[RankStatus], *, limit: int = 5) -> list[RankStatus]:
    """The ranks that others wait for, the worst first, if there are any: absent, behind, or late in timed rounds.

    The smallest T is the latest rank: it waits least inside the operation. Counts of ranks that complete operations
    were read one after the other: that they differ says nothing.
    """
    found = list(statuses)
    middle = middle_of_rounds(found)

    def late(status: RankStatus) -> float:
        return 0.0 if status.seconds_per_round is None else max(middle - status.seconds_per_round, 0.0)

    candidates = [
        status
        for status in found
        if status.state == "absent" or (status.behind and status.state != "moves") or late(status) > _LATE * middle
    ]
    candidates.sort(key=lambda status: (-STATES.index(status.state), -status.behind, -late(status), status.rank))
    return candidates[:limit]


def middle_of_rounds(statuses: Iterable[RankStatus]) -> float:
    """T per round of the median rank; 0 where none was timed."""
    known = sorted(status.seconds_per_round for status in statuses if status.seconds_per_round is not None)
    return known[len(known) // 2] if known else 0.0


def status_text(status: RankStatus | StatusGroup) -> str:
    """A status in words: "waits in all_reduce #12 of default_pg"."""
    operation = f"{status.operation or 'operation'} #{status.sequence} of {status.process_group}"
    words = {
        "moves": "completes operations",
        "idle": "in no operation",
        "waits": f"waits in {operation}",
        "absent": f"not in {operation}",
        "stopped": "process is stopped",
        "ended": "process has ended",
        "lost": "process is lost",
    }[status.state]
    return f"{words} ({status.phase})" if status.phase else words


def lives(observation: Observation) -> dict[str, int]:
    """How many processes run, are stopped, exited or lost; and how many ranks were never seen."""
    counts = Counter(str(rank.process.life) for rank in observation.ranks.values())
    counts["unseen"] = max(0, observation.world_size - len(observation.ranks))
    return {life: counts[life] for life in ("running", "stopped", "exited", "lost", "unseen")}


def _waits(rank: Rank, group: ProcessGroup) -> bool:
    return rank.process.is_alive and group.is_open_for(WAIT_SECONDS)


def _status(rank: Rank, before: Rank | None, front: dict[str, int], waits: dict[str, tuple[float, str]]) -> RankStatus:
    behind = max((front[group.id] - group.enqueued for group in rank.process_groups if group.id in front), default=0)
    groups = [group for group in rank.process_groups if not group.is_pairwise]  # waits for messages are no rounds
    timings = [group.timing for group in groups if group.timing and group.timing.num_rounds]
    rounds = sum(timing.num_rounds for timing in timings)
    mean = sum(timing.sum_seconds for timing in timings) / rounds if rounds else None

    def status(
        state: State, seconds: float = 0.0, name: str = "", sequence: int = 0, process_group: str = ""
    ) -> RankStatus:
        return RankStatus(rank.rank, state, name, sequence, process_group, rank.phase, seconds, behind, mean)

    if not rank.process.is_alive:
        return status("lost" if rank.process.life == "lost" else "ended", rank.process.gone_seconds or 0.0)
    open_groups = [group for group in rank.process_groups if _waits(rank, group)]
    if rank.process.is_stopped:
        return status("stopped", max((group.open_seconds or 0.0 for group in open_groups), default=0.0))
    if open_groups:
        group = max(open_groups, key=lambda group: group.open_seconds or 0.0)
        name = group.operation.name if group.operation else ""
        return status("waits", group.open_seconds or 0.0, name, group.open_sequence, group.title)
    missing = [group for group in rank.process_groups if group.id in waits and not group.has_entered(front[group.id])]
    if missing:
        group = max(missing, key=lambda group: waits[group.id][0])
        seconds, name = waits[group.id]
        return status("absent", seconds, name, group.enqueued + 1, group.title)
    now = sum(group.completed for group in rank.process_groups)
    earlier = sum(group.completed for group in before.process_groups) if before else now
    return status("moves" if now != earlier else "idle")
