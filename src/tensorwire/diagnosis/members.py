"""The members of process groups in few numbers: those of meshes lie in a grid of ranks.

A grid is its first rank and for each dimension its extent and stride; the last dimension runs fastest. Groups that
are flattened from dimensions of a mesh need as many as those have that are not next to one another.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from .model import MAX_RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

Grid = tuple[int, tuple[tuple[int, int], ...]]
"""The first rank, and extent and stride of each dimension."""

MAX_DIMENSIONS: Final = 3
"""What a page has room for; core/probe/page.h says the same."""
_MAX_KEPT: Final = 1 << 14  # ranks of a grid that is kept: whoever names hundreds of large ones takes no memory


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


def ranks_of(grid: Grid) -> range | tuple[int, ...]:
    """The ranks of a grid; none where there is no job with those."""
    count = math.prod(extent for extent, _ in grid[1])
    return _kept_ranks(grid) if count <= _MAX_KEPT else _ranks(grid)


def _ranks(grid: Grid) -> range | tuple[int, ...]:
    first, dimensions = grid
    if not dimensions or not all(extent > 0 < stride for extent, stride in dimensions):
        return ()
    last, count = first, 1
    for extent, stride in dimensions:
        last += (extent - 1) * stride
        count *= extent
    if not 0 <= first <= last < MAX_RANKS or count > MAX_RANKS:
        return ()
    *outer, (extent, stride) = dimensions
    if all(extent == 1 for extent, _ in outer):
        return range(first, first + extent * stride, stride)
    steps = [range(0, extent * stride, stride) for extent, stride in dimensions]
    return tuple(first + sum(offsets) for offsets in itertools.product(*steps))


_kept_ranks = lru_cache(maxsize=256)(_ranks)


def numbers_of(ranks: Sequence[int]) -> list[int]:
    """Of the grid of these ranks, for a report: the first one, extent and stride of each dimension; none without."""
    grid = grid_of(ranks)
    return [] if grid is None else [grid[0], *itertools.chain(*grid[1])]


def members_of(numbers: Sequence[int]) -> range | tuple[int, ...]:
    """The inverse. Raises TypeError or ValueError where the numbers are of no grid."""
    if not all(type(number) is int and 0 <= number < MAX_RANKS for number in numbers):
        raise TypeError
    if not numbers:
        return ()
    first, *dimensions = numbers
    if len(dimensions) > 2 * MAX_DIMENSIONS:
        raise ValueError
    return ranks_of((first, tuple(zip(dimensions[::2], dimensions[1::2], strict=True))))
