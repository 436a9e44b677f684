"""Where the ranks of a job stand: the same view for a terminal, for JSON and for the page. It judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np

from .. import words
from ..columns import RankColumns, taken
from ..model import LIVES, group_title
from ..numbered import without_number

if TYPE_CHECKING:
    from ..columns import Bools, Floats, Ints
    from ..model import Observation

State = Literal["idle", "moves", "ended", "waits", "absent", "stopped", "lost"]
"""A rank is in no operation; completes operations; has a process that said good-bye; waits in an operation; is missing
in one that others wait in; has a process that is stopped, or is gone without a word."""

STATES: tuple[State, ...] = get_args(State)
"""The states, the most serious last."""

_NUMBER_OF: dict[str, int] = {state: number for number, state in enumerate(STATES)}
_Key = tuple[State, str, int, str, str]
_FEW = 6  # status groups that a reader takes in one by one
_MAX_RANGES = 12
_LATE = 0.05  # of the median rank's T: no rank waits for one that waits less by so little

WAIT_SECONDS = 1.0
"""An operation that has been open for less is not worth a word: the counts of a rank are up to 50 ms old, and large
transfers take a while."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The status of one rank.

    Attributes:
        operation, sequence, process group: where it waits or is absent, else "", 0 and "".
        seconds: how long it has waited, others have waited for it, or its process is gone; 0 where no rank waits.
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
    """The key that ranks of one status group share."""
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
        """The status in words, without the ranks."""
        return status_text(self)

    def few_ranks(self) -> str:
        """The ranks, for a person: the first few ranges of many."""
        parts = self.ranks.split(", ")
        left = len(parts) - _MAX_RANGES
        return f"{', '.join(parts[:_MAX_RANGES])} and {left} more ranges" if left > 1 else self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """A value for each status. Rows are those of the ranks' columns; -1: there is none."""

    places: Ints  # of the ranks
    states: Ints  # indices into STATES
    rows: Ints  # of the process group
    called: Ints  # row whose operation it is
    sequences: Ints
    phases: Ints  # a number for each; 0: none is declared
    seconds: Floats
    behind: Ints
    seconds_per_round: Floats  # NaN where the rank was not timed


class Statuses(Sequence[RankStatus]):
    """One status per rank, by rank. Code that goes over all of them reads columns."""

    def __init__(self, ranks: RankColumns, columns: _Columns) -> None:
        self._ranks = ranks
        self.columns = columns

    @property
    def numbers(self) -> Ints:
        """The number of each status's rank."""
        return self._ranks.numbers[self.columns.places]

    @property
    def longest_wait(self) -> float:
        """The longest time that a rank waits or is absent."""
        found = np.isin(self.columns.states, [_NUMBER_OF["waits"], _NUMBER_OF["absent"]])
        return float(self.columns.seconds[found].max(initial=0.0))

    def of(self, numbers: Collection[int]) -> list[RankStatus]:
        """The statuses of these ranks."""
        found = np.isin(self.numbers, list(numbers))
        return [self[place] for place in np.flatnonzero(found).tolist()]

    def alike(self) -> Iterator[Ints]:
        """Places whose statuses share the key of `together`. Places of one key may come in several parts."""
        columns, rows = self.columns, self._ranks.rows
        kinds = [columns.states, columns.sequences, columns.phases]
        kinds += [_at(rows.groups, columns.rows, -1), _at(rows.calls, columns.called, -1)]
        order = np.lexsort(kinds)
        differ = np.any([kind[order][1:] != kind[order][:-1] for kind in kinds], axis=0)
        yield from np.split(order, np.flatnonzero(differ) + 1)

    def __len__(self) -> int:
        return len(self.columns.places)

    @overload
    def __getitem__(self, index: int) -> RankStatus: ...

    @overload
    def __getitem__(self, index: slice) -> Statuses: ...

    def __getitem__(self, index: int | slice) -> RankStatus | Statuses:
        columns = self.columns
        if isinstance(index, slice):
            return Statuses(self._ranks, taken(columns, index))
        number, row, called = int(self.numbers[index]), int(columns.rows[index]), int(columns.called[index])
        operation = self._ranks.operations(np.array([called]))[0] if called >= 0 else None
        identity, name, _ = self._ranks.group(row) if row >= 0 else ("", "", 0)
        mean = float(columns.seconds_per_round[index])
        return RankStatus(
            rank=number,
            state=STATES[columns.states[index]],
            operation=operation.name if operation else "",
            sequence=int(columns.sequences[index]),
            process_group=group_title(name or identity),
            phase=self._ranks.phases.get(number, ""),
            seconds=float(columns.seconds[index]),
            behind=int(columns.behind[index]),
            seconds_per_round=None if mean != mean else mean,
        )


def statuses(observation: Observation, previous: Observation | None = None) -> Statuses:
    """One status per rank. `previous` tells the ranks that complete operations from those that are idle."""
    ranks = RankColumns.of(observation.ranks)
    places, rows = ranks.places, ranks.rows
    number, opened = len(ranks), rows.open_seconds
    num_groups = int(rows.groups.max(initial=-1)) + 1
    collective = ~rows.pairwise  # the two ends of a message count apart
    front = np.full(num_groups, -1)
    np.maximum.at(front, rows.groups[collective], np.maximum(rows.enqueued[collective], 0))
    waits = places.are_alive[rows.places] & (opened >= WAIT_SECONDS)
    witnesses = _longest(opened, waits & collective, rows.groups, num_groups)  # what others wait in
    own = _longest(opened, waits, rows.places, number)
    waited = witnesses[rows.groups]
    lacks = (waited >= 0) & (rows.enqueued < front[rows.groups])
    lacking = _longest(opened[waited], lacks, rows.places, number)

    lost, gone = places.lives == LIVES.index("lost"), ~places.are_alive
    goes_on = ranks.completed != _completed_before(ranks, previous)
    conditions = {"lost": lost, "ended": gone, "stopped": places.are_stopped, "waits": own >= 0, "absent": lacking >= 0}
    conditions["moves"] = goes_on
    states = np.select(list(conditions.values()), [_NUMBER_OF[state] for state in conditions], _NUMBER_OF["idle"])
    is_waiting, is_absent = states == _NUMBER_OF["waits"], states == _NUMBER_OF["absent"]
    row = np.select([is_waiting, is_absent], [own, lacking], -1)
    called = np.select([is_waiting, is_absent], [own, _at(waited, lacking, -1)], -1)
    seconds = np.select(
        [gone, places.are_stopped | is_waiting, is_absent],
        [np.nan_to_num(places.gone_seconds), _at(opened, own, 0.0), _at(opened, called, 0.0)],
        0.0,
    )
    sequences = np.select([is_waiting, is_absent], [_at(rows.open_sequence, row, 0), _at(rows.enqueued, row, 0) + 1], 0)
    return Statuses(
        ranks,
        _Columns(
            places=np.arange(number),
            states=states,
            rows=row,
            called=called,
            sequences=sequences,
            phases=_phases(ranks),
            seconds=seconds,
            behind=_behind(ranks, front),
            seconds_per_round=_seconds_per_round(ranks),
        ),
    )


def _longest(seconds: Floats, among: Bools, keys: Ints, number: int) -> Ints:
    """For each key, the first of the rows with the most seconds among these; -1 where there is none."""
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((-rows, seconds[rows]))]
    found = np.full(number, -1)
    found[keys[rows]] = rows  # the last of each key stays
    return found


def _at(values: np.ndarray, rows: Ints, otherwise: float) -> Any:
    """The values of rows, where there is one."""
    if not len(values):
        return np.full(len(rows), otherwise)
    return np.where(rows < 0, otherwise, values[rows])


def _completed_before(ranks: RankColumns, previous: Observation | None) -> Ints:
    """The count of operations that each rank had completed; the present one, where the rank was not there."""
    found = np.array(ranks.completed)
    if previous is not None:
        before = RankColumns.of(previous.ranks)
        _, now, then = np.intersect1d(ranks.numbers, before.numbers, assume_unique=True, return_indices=True)
        found[now] = before.completed[then]
    return found


def _phases(ranks: RankColumns) -> Ints:
    found = np.zeros(len(ranks), dtype=np.int64)
    names: dict[str, int] = {}
    for number, phase in ranks.phases.items():
        found[ranks.place_of[number]] = 1 + names.setdefault(phase, len(names))
    return found


def _behind(ranks: RankColumns, front: Ints) -> Ints:
    """By how much each rank is behind the first of a group, where that is known: the most over its groups."""
    rows = ranks.rows
    least = np.iinfo(np.int64).min
    found = np.full(len(ranks), least)
    known = front[rows.groups] >= 0
    np.maximum.at(found, rows.places[known], (front[rows.groups] - rows.enqueued)[known])
    found[found == least] = 0
    return found


def _seconds_per_round(ranks: RankColumns) -> Floats:
    rows = ranks.rows
    collective = ~rows.pairwise  # waits for messages are no rounds
    rounds, seconds = np.zeros((2, len(ranks)))
    np.add.at(rounds, rows.places[collective], rows.timed_rounds[collective])
    np.add.at(seconds, rows.places[collective], rows.timed_seconds[collective])
    seconds[rounds == 0] = np.nan
    return seconds / np.maximum(rounds, 1)


def status_groups(statuses: Statuses, *, apart: Collection[int] = ()) -> list[StatusGroup]:
    """Equal statuses together; the most serious first, then the fewest ranks.

    Where there are many, those in process groups that differ in a number are joined, except ranks to keep apart.
    """
    alike: dict[_Key, list[int]] = {}  # places
    for places in statuses.alike() if len(statuses) else ():
        alike.setdefault(together(statuses[int(places[0])]), []).extend(places.tolist())
    if len(alike) > _FEW:
        alike = _without_numbers(alike, set(np.flatnonzero(np.isin(statuses.numbers, list(apart))).tolist()))
    numbers, seconds = statuses.numbers, statuses.columns.seconds
    found = [
        StatusGroup(*key, len(places), words.ranges(numbers[places].tolist()), float(seconds[places].max()))
        for key, places in alike.items()
    ]
    return sorted(found, key=lambda group: (-STATES.index(group.state), group.num_ranks, group.ranks))


def _without_numbers(alike: dict[_Key, list[int]], apart: set[int]) -> dict[_Key, list[int]]:
    kinds: dict[_Key, list[_Key]] = {}
    for key, places in alike.items():
        state, operation, sequence, process_group, phase = key
        kind = process_group if not apart.isdisjoint(places) else without_number(process_group)
        kinds.setdefault((state, operation, sequence, kind, phase), []).append(key)
    found = {}
    for (state, operation, sequence, kind, phase), keys in kinds.items():
        name = f"{kind} ({len(keys)} groups)" if len(keys) > 1 else keys[0][3]
        found[state, operation, sequence, name, phase] = [place for key in keys for place in alike[key]]
    return found


def slowest(statuses: Statuses) -> list[RankStatus]:
    """The ranks that others wait for, at most five, the worst first: absent, behind, or late in timed rounds.

    The rank with the smallest T is the latest: it waits least inside the operation. Counts of ranks that complete
    operations were read one after the other, so a difference says nothing.
    """
    columns, middle = statuses.columns, middle_of_rounds(statuses)
    states, behind = columns.states, columns.behind
    late = np.nan_to_num(np.maximum(middle - columns.seconds_per_round, 0.0))
    is_behind = (behind != 0) & (states != _NUMBER_OF["moves"])
    found = np.flatnonzero((states == _NUMBER_OF["absent"]) | is_behind | (late > _LATE * middle))
    order = np.lexsort((found, -late[found], -behind[found], -states[found]))
    return [statuses[place] for place in found[order][:5].tolist()]


def middle_of_rounds(statuses: Statuses) -> float:
    """T per round of the median rank; 0 where none was timed."""
    known = statuses.columns.seconds_per_round
    known = np.sort(known[~np.isnan(known)])
    return float(known[len(known) // 2]) if len(known) else 0.0


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
    counts = np.bincount(RankColumns.of(observation.ranks).places.lives, minlength=len(LIVES)).tolist()
    return {**dict(zip(LIVES, counts, strict=True)), "unseen": max(0, observation.world_size - len(observation.ranks))}
