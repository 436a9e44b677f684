"""Orders of summation that the products on a device know."""

from __future__ import annotations

from typing import NamedTuple

from .plan import RUN

MOST_PARTS = 16
_USUAL_PARTS = 8


class DeviceOrder(NamedTuple):
    """How the products of a row and an input are summed (thin.cuh). 16 consecutive columns are a step, and one
    instruction of a tensor core adds its products to an accumulator in float32.

    Attributes:
        parts: of the columns, all of the same whole number of runs but for the last one, which may have fewer. The
            steps of each are summed in their order, from zero, and then the parts in theirs.
        two: whether a part has two accumulators, for even and for odd slices of 32 columns, added at its end.
        rounded: whether the sum of a part is rounded to the weight's dtype before parts are added.
    """

    parts: int
    two: bool = False
    rounded: bool = False

    def part_runs(self, columns: int) -> int:
        """Runs of a part but the last one."""
        return -(-(columns // RUN) // self.parts)

    def as_made(self, columns: int) -> DeviceOrder:
        """The same order in other words: with as many parts as there are, which may be fewer."""
        parts = -(-(columns // RUN) // self.part_runs(columns))
        return DeviceOrder(parts, self.two, self.rounded and parts > 1)


def usual_order(columns: int) -> DeviceOrder:
    """That of fused products: up to 8 parts, one for each warp that shares a row."""
    return DeviceOrder(_USUAL_PARTS).as_made(columns)


def candidates(columns: int) -> list[DeviceOrder]:
    """Orders that a library may have: all that are unlike, those of one part first."""
    found = [
        DeviceOrder(parts, two, rounded).as_made(columns)
        for parts in (*range(1, 9), 10, 12, MOST_PARTS)
        for two in (False, True)
        for rounded in (False, True)
    ]
    return list(dict.fromkeys(found))
