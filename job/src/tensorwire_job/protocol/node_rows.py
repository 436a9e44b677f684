"""The rows of one node's ranks and connections, as its reports change them.

Most reports have a row for each rank, in the order of the last one. Such rows are taken over unread. The rows of other
reports are kept apart until all are asked for: a report takes time by its own size, not by that of the node.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import encoding
from .encoding import EDGE, GROUP, GROUP_NUMBER, NONE, RANK, WORK
from .integers import LENGTH, NBYTES, within

if TYPE_CHECKING:
    from ..columns import Ints

_INTEGER = np.dtype("<i8")
_MAX_KEPT: Final = 1 << 10  # rows whose places are kept: those of many large nodes would take much memory


class RankRows:
    """The rows of a node's ranks: one behind the other as they came, or by rank, or both.

    Attributes:
        num_integers: in all rows, without their lengths.
    """

    def __init__(self) -> None:
        self.num_integers = 0
        self._by_rank: dict[int, bytes] | None = {}  # None: they are in the data alone
        self._data: bytes | None = b""  # None: they are by rank alone
        self._ranks: dict[int, None] = {}  # of the data
        self._lengths: tuple[int, ...] = ()
        self._places = np.zeros(0, np.intp)  # of lengths and of numbers of descriptions, among the integers of the data
        self._names: bytes | None = None  # what stands there; None: not looked for

    def __contains__(self, rank: object) -> bool:
        return rank in (self._ranks if self._by_rank is None else self._by_rank)

    def joined(self) -> tuple[bytes, tuple[int, ...]]:
        """Each row with its length before it, and the lengths, in integers."""
        if self._data is None:
            rows = self.rows()
            self._data = b"".join(rows.values())
            self._ranks = dict.fromkeys(rows)
            self._lengths = tuple(len(row) // NBYTES - 1 for row in rows.values())
            self._names = None
        return self._data, self._lengths

    def rows(self) -> dict[int, bytes]:
        """By rank, each with its length before it."""
        if self._by_rank is None:
            assert self._data is not None
            self._by_rank, position = {}, 0
            for rank, length in zip(self._ranks, self._lengths, strict=True):
                start, position = position, position + NBYTES * (1 + length)
                self._by_rank[rank] = self._data[start:position]
        return self._by_rank

    def remove(self, ranks: Sequence[int]) -> None:
        """Remove ranks. Raises KeyError where one is not known."""
        rows = self.rows()
        self._data = None
        self.num_integers -= _num_integers([rows.pop(rank) for rank in ranks])

    def take(self, data: bytes, heads: Sequence[tuple[Any, ...]], num_groups: int, num_works: int) -> None:
        """Take over rows of integers. Raises IndexError, ValueError or struct.error where they are wrong.

        Args:
            heads: descriptions of ranks. Rows name these, groups and operations by number.
        """
        if self._are_alike(data):
            self._data, self._by_rank = data, None
            return
        new: dict[int, bytes] = {}
        position = 0
        while position < len(data):
            (length,) = LENGTH.unpack_from(data, position)
            start, position = position, position + NBYTES * (1 + length)
            numbers = _names_in(length).unpack_from(data, start + NBYTES)
            head, groups, works = numbers[0], numbers[1::2], numbers[2::2]
            if not (0 <= head < len(heads) and within(groups, 0, num_groups) and within(works, NONE, num_works)):
                raise IndexError
            new[heads[head][0]] = data[start:position]
        rows = self.rows()
        self._data = None
        self.num_integers += _num_integers(new.values()) - _num_integers(rows[rank] for rank in new if rank in rows)
        if new.keys() >= rows.keys():
            self._by_rank = new
        else:
            rows.update(new)

    def _are_alike(self, data: bytes) -> bool:
        """Whether these rows name the same descriptions as those that are there."""
        present = self._data
        if len(data) != (self._nbytes() if present is None else len(present)):
            return False
        if present is None or self._names is None:
            present, lengths = self.joined()
            self._places = _places_of(lengths)
            self._names = np.frombuffer(present, _INTEGER)[self._places].tobytes()
        return np.frombuffer(data, _INTEGER)[self._places].tobytes() == self._names

    def _nbytes(self) -> int:
        return NBYTES * (self.num_integers + len(self.rows()))


class EdgeRows:
    """The rows of a node's connections, each of which begins with the number of its description."""

    def __init__(self) -> None:
        self._set(np.zeros((0, EDGE), _INTEGER))
        self._open: set[int] = set()

    def _set(self, rows: Ints) -> None:
        self._rows = rows
        self._links = rows[:, 0].tobytes()
        self._later: list[Ints] = []  # rows of some connections, which came since
        self._num_later = 0
        self._has_closed = False

    @property
    def num_integers(self) -> int:
        return EDGE * len(self._open)

    def take(self, data: bytes, num_links: int) -> None:
        """Take over rows of integers. Raises IndexError or ValueError where they are wrong."""
        rows = np.frombuffer(data, _INTEGER).reshape(-1, EDGE)
        if rows[:, 0].tobytes() == self._links and not self._num_later and not self._has_closed:
            self._rows = rows
            return
        links = rows[:, 0].tolist()
        if not within(links, 0, num_links):
            raise IndexError
        numbers = set(links)
        if len(numbers) < len(links):  # more rows than connections
            raise ValueError
        if numbers >= self._open:
            self._set(rows)
            self._open = numbers
            return
        self._open |= numbers
        self._later.append(rows)
        self._num_later += len(rows)
        if self._num_later > len(self._rows):  # it is time to drop rows that are out of date
            self.all()

    def close(self, links: Sequence[int]) -> None:
        """Close connections. Raises KeyError where one is not open."""
        closed = set(links)
        if not closed <= self._open:
            raise KeyError
        self._open -= closed
        self._has_closed = True

    def all(self) -> Ints:
        """A row for each connection that is open."""
        if self._num_later or self._has_closed:
            both = np.concatenate([*reversed(self._later), self._rows])
            rows = both[np.unique(both[:, 0], return_index=True)[1]]  # of each, the latest
            if len(rows) > len(self._open):
                rows = rows[np.isin(rows[:, 0], list(self._open))]
            self._set(rows)
        return self._rows


def _num_integers(rows: Iterable[bytes]) -> int:
    return sum(len(row) // NBYTES - 1 for row in rows)


@functools.cache
def _names_in(length: int) -> struct.Struct:
    """Reads the numbers of descriptions in a rank's row: its head, then group and work by turns."""
    num_groups, rest = divmod(length - RANK, GROUP)
    if rest or not 0 <= num_groups <= encoding.MAX_GROUPS:
        raise ValueError
    group = f"q{(WORK - 1) * NBYTES}xq{(GROUP - WORK - 1) * NBYTES}x"
    return struct.Struct(f"<q{(RANK - 1) * NBYTES}x" + num_groups * group)


def _places_of(lengths: tuple[int, ...]) -> Ints:
    return (_kept_places if len(lengths) <= _MAX_KEPT else _places)(lengths)


def _places(lengths: tuple[int, ...]) -> Ints:
    """The places of lengths and of numbers of descriptions among the integers of rows of these lengths."""
    places, start = [], 0
    for length in lengths:
        places += [start, start + 1]
        for group in range(start + 1 + RANK, start + 1 + length, GROUP):
            places += [group + GROUP_NUMBER, group + WORK]
        start += 1 + length
    return np.array(places, dtype=np.intp)


_kept_places = functools.lru_cache(maxsize=256)(_places)
