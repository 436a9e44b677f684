"""Whether ranks that are in the same operation of a process group called the same."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...model import Operation

# Their inputs may differ in size between ranks.
_UNEVEN = frozenset({"all_to_all", "all_to_all_single", "all_gather", "gather", "scatter"})


def sides(operations: dict[int, Operation]) -> list[list[int]]:
    """The ranks by what they called, the largest side first; one side where all agree.

    Roots are compared where they are known; a rank whose root is not known is taken to agree with most, or left out
    where no root has most.
    """
    known = {number: operation for number, operation in operations.items() if operation.signature or operation.name}
    hashed = all(operation.signature for operation in known.values())
    by_call: dict[Hashable, dict[int, list[int]]] = {}
    for number, operation in known.items():
        by_root = by_call.setdefault(operation.signature if hashed else _call(operation), {})
        by_root.setdefault(operation.root, []).append(number)
    found = []
    for by_root in by_call.values():
        unknown = by_root.pop(-1, [])
        of_root = sorted(by_root.values(), key=len, reverse=True) or [[]]
        if len(of_root) == 1 or len(of_root[0]) > len(of_root[1]):
            of_root[0] += unknown
        found += of_root
    return sorted((sorted(side) for side in found), key=lambda side: (-len(side), side))


def _call(operation: Operation) -> Hashable:
    numel = -1 if operation.name in _UNEVEN else operation.numel
    return operation.name, operation.dtype, numel
