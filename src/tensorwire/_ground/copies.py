"""What belongs to one object in one process is neither copied nor pickled.

A copy of what holds a descriptor would hold the same number. Whichever of the two goes first closes it, the system
gives the number to the next file, and the other one reads that. A copy of a lock, a thread, a map or an address is as
wrong, and so is any of them in another process.
"""

from __future__ import annotations

from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, SupportsIndex, TypeVar

    Object = TypeVar("Object")


def not_copied(held: str, instead: str) -> Callable[[Any, SupportsIndex], NoReturn]:
    """The method by which objects of a class refuse to be copied. `copy`, `pickle` and what builds on them ask it::

        class Reader:
            __reduce_ex__ = not_copied("an open file", "open it again by its path")

    Args:
        held: what belongs to the object alone.
        instead: what a caller does who wanted a copy, or the object in another process.
    """

    def refuse(self: Any, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"expected an object that can be copied or pickled, got {type(self).__name__}, which has {held}; {instead}"
        )

    return refuse


def twin_of(original: Object) -> Object:
    """A second object with the same attributes, where a class knows that both can go on side by side."""
    twin = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    return twin
