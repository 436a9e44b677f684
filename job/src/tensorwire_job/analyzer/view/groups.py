"""The process groups of a job: their members in view in columns, and as objects where a member is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...model import ProcessGroup, group_title

if TYPE_CHECKING:
    from ...columns import Bools, Floats, Ints, RankColumns
    from ...model import Operation, Timing


def _column(name: str, of_newcomers: float = 0) -> cached_property[np.ndarray]:
    """A column of the members' rows, with this value for newcomers."""

    def make(group: Group) -> np.ndarray:
        known: np.ndarray = getattr(group._columns.rows, name)[group._rows]
        if not len(group._newcomers):
            return known
        return np.append(known, np.full(len(group._newcomers), of_newcomers, dtype=known.dtype))

    return cached_property(make)


class Group:
    """A process group and its members in view.

    Args:
        rows: of the members in the columns.
        newcomers: members that do not know of the group yet. They have entered nothing.

    Attributes:
        numbers: the members' ranks. The other columns have a place for each of these.
    """

    def __init__(self, columns: RankColumns, rows: Ints, newcomers: Iterable[int] = ()) -> None:
        self.id, self.name, self.size = columns.group(int(rows[0]))
        self._columns = columns
        self._rows = rows
        self._newcomers = np.fromiter(newcomers, dtype=np.int64)

    @property
    def title(self) -> str:
        return group_title(self.name or self.id)

    @property
    def is_whole(self) -> bool:
        """All members are in view, so that all that lack in an operation are known."""
        return len(self.numbers) >= self.size

    @property
    def all_members(self) -> str:
        """A name for all that have entered an operation."""
        return "all members" if self.is_whole else f"the {len(self.numbers)} of {self.size} members in view"

    @property
    def peers(self) -> set[int]:
        """The other ends of members that are in a send or receive, or whose last operation was one."""
        return set(self.ends[self.ends >= 0].tolist())

    @cached_property
    def numbers(self) -> Ints:
        return np.append(self._columns.row_numbers[self._rows], self._newcomers)

    @property
    def holders(self) -> set[int]:
        """The ranks that know of the group."""
        return set(self._columns.row_numbers[self._rows].tolist())

    @cached_property
    def members(self) -> dict[int, int]:
        """The ranks, each with its place in the columns."""
        return dict(zip(self.numbers.tolist(), range(len(self.numbers)), strict=True))

    enqueued = _column("enqueued")
    completed = _column("completed")
    open_seconds = _column("open_seconds", np.nan)
    idle_seconds = _column("idle_seconds", np.nan)
    open_sequence = _column("open_sequence", 1)
    pairwise = _column("pairwise")
    sending = _column("sending")
    ends = _column("peers", -1)  # of operations that are pairwise, the other end; -1 unknown, as of all others
    moved = _column("moved", -1)  # bytes, as far as the transport counts them; else -1
    baseline_rates = _column("baseline_rates", np.nan)  # operations per second in good times, as far as members know
    timed = _column("timed")

    @cached_property
    def places(self) -> Ints:
        """The members' places in the columns of all ranks."""
        newcomers = [self._columns.place_of[number] for number in self._newcomers.tolist()]
        return np.append(self._columns.rows.places[self._rows], np.array(newcomers, dtype=np.int64))

    @cached_property
    def heartbeat_seconds(self) -> Floats:
        return self._columns.places.heartbeat_seconds[self.places]

    def calls(self, numbers: Sequence[int]) -> list[tuple[Operation, list[int]]]:
        """The calls of these ranks, as far as they are known: each once, with the ranks that made it."""
        rows = self._rows[np.isin(self.numbers[: len(self._rows)], numbers)]
        _, first, which = np.unique(self._columns.rows.calls[rows], return_index=True, return_inverse=True)
        rows = rows[np.argsort(first[which], kind="stable")]  # in the order of the first that made each call
        starts = np.flatnonzero(np.diff(np.sort(first[which]), prepend=-1))
        found = self._columns.operations(rows[starts])
        made = np.split(self._columns.row_numbers[rows], starts[1:])
        return [(op, ranks.tolist()) for op, ranks in zip(found, made, strict=True) if op is not None]

    def operations(self, numbers: Iterable[int]) -> dict[int, Operation]:
        """The last call of each of these ranks, as far as it is known."""
        known = [(number, index) for number in numbers if (index := self.members[number]) < len(self._rows)]
        found = self._columns.operations(self._rows[[index for _, index in known]])
        return {number: op for (number, _), op in zip(known, found, strict=True) if op is not None}

    def timings(self) -> dict[int, Timing]:
        """The times of members that are timed."""
        found = {number: self.member(number).timing for number in self.numbers[self.timed].tolist()}
        return {number: timing for number, timing in found.items() if timing is not None}

    def member(self, number: int) -> ProcessGroup:
        """What this member sees of the group."""
        index = self.members[number]
        if index < len(self._rows):
            return self._columns.process_group(int(self._rows[index]))
        return ProcessGroup(self.id, self.name, self.size, 0, 0, None, None, None)


class Groups(Mapping[str, Group]):
    """All process groups that ranks know of, by id. Each is made where it is asked for.

    Values of rows are told apart by group with `any`, `most`, `medians`, `having` and `unlike`, in the order of the
    groups.
    """

    def __init__(self, columns: RankColumns, world_size: int) -> None:
        self._columns = columns
        self._world_size = world_size
        numbers, places = columns.rows.groups, columns.rows.places
        order = np.argsort(numbers, kind="stable")
        # A rank is a member once, though it may say otherwise: the last row counts.
        self._order = order[_ends_of_runs(numbers[order]) | _ends_of_runs(places[order])]
        by_group = numbers[self._order]
        self._starts = np.flatnonzero(np.roll(_ends_of_runs(by_group), 1))
        self._ends = np.append(self._starts[1:], len(by_group))
        self._made: dict[int, Group] = {}

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {self._columns.group(row)[0]: index for index, row in enumerate(self._order[self._starts].tolist())}

    def __getitem__(self, identity: str) -> Group:
        return self._at(self._index_of[identity])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index_of)

    def __len__(self) -> int:
        return len(self._starts)

    def having(self, rows: Bools) -> list[Group]:
        """The groups that have one of these rows."""
        return [self._at(index) for index, has in enumerate(self.any(rows)) if has]

    def unlike(self, values: Ints, rows: Bools) -> list[Group]:
        """The groups in which these rows differ in their values."""
        ends = np.iinfo(values.dtype)
        least = self._reduced(np.minimum, np.where(rows, values, ends.max))
        most = self.most(np.where(rows, values, ends.min))
        return [self._at(index) for index in range(len(self)) if least[index] < most[index]]

    def any(self, rows: Bools) -> list[bool]:
        return self._reduced(np.logical_or, rows)

    def most(self, values: Ints) -> list[int]:
        return self._reduced(np.maximum, values)

    def medians(self, values: Floats) -> list[float | None]:
        """The medians of values above 0; None where there is none."""
        labels = np.repeat(np.arange(len(self)), self._ends - self._starts)
        values = values[self._order]
        labels, values = labels[values > 0], values[values > 0]
        values = values[np.lexsort((values, labels))]
        starts, ends = (np.searchsorted(labels, np.arange(len(self)), side) for side in ("left", "right"))
        has = ends > starts
        low, high = (starts + ends - 1)[has] // 2, (starts + ends)[has] // 2
        found = np.full(len(self), None)
        found[has] = (values[low] + values[high]) / 2
        return list(found)

    def _reduced(self, function: np.ufunc, values: np.ndarray) -> list[Any]:
        return function.reduceat(values[self._order], self._starts).tolist() if len(self) else []

    def _at(self, index: int) -> Group:
        made = self._made.get(index)
        if made is None:
            rows = self._order[self._starts[index] : self._ends[index]]
            made = Group(self._columns, rows)
            if len(rows) < made.size and not made.completed.any():
                made = Group(self._columns, rows, self._newcomers(made))
            self._made[index] = made
        return made

    def _newcomers(self, group: Group) -> list[int]:
        """Members that do not know of the process group yet, or not before its first operation.

        Once an operation was completed, a rank without it is one that nothing is known of.
        """
        places, overflow = self._columns.place_of, self._columns.places.overflow
        ranks = self.ranks_of(group)
        # A rank may claim a group of a million ranks: they are not walked through.
        few, others = (ranks, places) if len(ranks) <= len(places) else (sorted(places), ranks)
        in_view = [number for number in few if number in others]
        return [number for number in in_view if number not in group.members and not overflow[places[number]]]

    def ranks_of(self, group: Group) -> Sequence[int]:
        """The ranks of a group, where they are known: it says so itself, or has all there are."""
        if group.size == self._world_size:
            return range(self._world_size)
        return next((told for number in group.members if (told := group.member(number).members)), ())


def _ends_of_runs(values: Ints) -> Bools:
    """Where the next value is another, or none is."""
    ends = np.ones(len(values), dtype=np.bool_)
    ends[:-1] = values[1:] != values[:-1]
    return ends
