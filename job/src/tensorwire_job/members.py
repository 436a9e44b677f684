"""The members of process groups in few numbers: those of meshes lie in a grid of ranks.

A grid is its first rank and for each dimension its extent and stride; the last dimension runs fastest. A group that is
flattened from dimensions of a mesh needs one dimension for each stretch of them that are next to one another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .model import MAX_RANKS

Grid = tuple[int, tuple[tuple[int, int], ...]]
"""The first rank, and extent and stride of each dimension."""

MAX_DIMENSIONS: Final = 3
"""A page has room for so many; job/core/page.h says the same."""


class GridRanks(Sequence[int]):
    """The ranks of a grid of several dimensions, made where they are asked for: a large one takes no memory.

    Args:
        grid: lies within the ranks of a job.
    """

    __slots__ = ("_grid",)

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @property
    def grid(self) -> Grid:
        return self._grid

    def __len__(self) -> int:
        return math.prod(extent for extent, _ in self._grid[1])

    def __iter__(self) -> Iterator[int]:
        first, (*outer, (extent, stride)) = self._grid
        steps = [range(0, extent * stride, stride) for extent, stride in outer]
        starts = (first + sum(offsets) for offsets in itertools.product(*steps))
        return itertools.chain.from_iterable(range(start, start + extent * stride, stride) for start in starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        rest = range(len(self))[index]
        number = self._grid[0]
        for extent, stride in reversed(self._grid[1]):
            rest, offset = divmod(rest, extent)
            number += offset * stride
        return number

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        rest = number - self._grid[0]
        for extent, stride in _by_stride(self._grid[1]):
            rest -= min(rest // stride, extent - 1) * stride
        return rest == 0 <= number - self._grid[0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GridRanks):
            return self._grid == other._grid
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"GridRanks({self._grid})"


def grid_of(ranks: Sequence[int]) -> Grid | None:
    """The grid whose ranks these are, in this order; None where there is none of so few dimensions."""
    dimensions: list[tuple[int, int]] = []
    rest = ranks
    while len(rest) > 1 and len(dimensions) < MAX_DIMENSIONS:
        stride = rest[1] - rest[0]
        extent = next((at for at in range(2, len(rest)) if rest[at] - rest[at - 1] != stride), len(rest))
        dimensions.insert(0, (extent, stride))
        rest = rest[::extent]
    if not dimensions:
        dimensions = [(1, 1)]
    if not ranks or any(stride <= 0 for _, stride in dimensions):
        return None
    grid = ranks[0], tuple(dimensions)
    return grid if list(ranks_of(grid)) == list(ranks) else None


def ranks_of(grid: Grid) -> Sequence[int]:
    """The ranks of a grid; none where no job has such ranks."""
    first, dimensions = grid
    if not dimensions or not all(extent > 0 < stride for extent, stride in dimensions):
        return ()
    reach = 0
    for extent, stride in reversed(_by_stride(dimensions)):
        if extent > 1 and stride <= reach:  # dimensions overlap, which they do in no mesh
            return ()
        reach += (extent - 1) * stride
    if not 0 <= first <= first + reach < MAX_RANKS:
        return ()
    used = tuple(each for each in dimensions if each[0] > 1) or dimensions[-1:]
    if len(used) == 1:
        ((extent, stride),) = used
        return range(first, first + extent * stride, stride)
    return GridRanks((first, used))


def _by_stride(dimensions: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """The dimensions, the one of the longest steps first."""
    return sorted(dimensions, key=lambda dimension: -dimension[1])


def numbers_of(ranks: Sequence[int]) -> list[int]:
    """The grid of these ranks, for a report: the first one, then extent and stride of each dimension. Empty without."""
    grid = ranks.grid if isinstance(ranks, GridRanks) else grid_of(ranks)
    return [] if grid is None else [grid[0], *itertools.chain(*grid[1])]


def members_of(numbers: Sequence[int]) -> Sequence[int]:
    """The inverse. Raises TypeError or ValueError where the numbers are of no grid."""
    if not all(type(number) is int and 0 <= number <= MAX_RANKS for number in numbers):
        raise TypeError
    if not numbers:
        return ()
    first, *dimensions = numbers
    if first == MAX_RANKS or len(dimensions) > 2 * MAX_DIMENSIONS:
        raise ValueError
    return ranks_of((first, tuple(zip(dimensions[::2], dimensions[1::2], strict=True))))
