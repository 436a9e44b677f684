"""How findings speak of ranks, times and operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..model import Operation

_NAMED = 6
_MESSAGES = {"send": "to", "recv": "from"}


def ranks(numbers: Collection[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 3", "ranks 0, 1, 2, 3, 4, 5 and 58 more"."""
    ordered = sorted(numbers)
    if not ordered:
        return "no rank"
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > _NAMED:
        return f"ranks {', '.join(map(str, ordered[:_NAMED]))} and {len(ordered) - _NAMED} more"
    return f"ranks {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def verb(numbers: Collection[int], one: str, more: str) -> str:
    return one if len(numbers) == 1 else more


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 600:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min"


def nbytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def numbered(operation: Operation | None, sequence: int) -> str:
    """ "all_reduce #121", "recv from rank 3", or "operation #121" where only counts are known."""
    if operation is None or not operation.name or operation.sequence != sequence:
        return f"operation #{sequence}"
    if operation.name in _MESSAGES and operation.root >= 0:  # their numbers differ between the two ends
        return f"{operation.name} {_MESSAGES[operation.name]} rank {operation.root}"
    return f"{operation.name} #{sequence}"


def call(operation: Operation) -> str:
    """The operation as it was called: "broadcast(BF16, 1024 elements, root 2)"."""
    parts = [operation.dtype] if operation.dtype else []
    if operation.numel >= 0:
        parts.append(count(operation.numel, "element"))
    if operation.root >= 0:
        parts.append(f"root {operation.root}")
    return f"{operation.name or 'an operation'}({', '.join(parts)})"
