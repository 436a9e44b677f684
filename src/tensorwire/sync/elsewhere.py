"""Tensors that do not lie in this process's memory: what publishes them, and what changes them where they lie.

The layer that knows such tensors registers it. Without, they are refused as every array without a buffer is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UnsupportedTensorError
from ..files.names import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from ..codec import Profile
    from .copies import Copies
    from .frames import Frames
    from .versions import Position, Tensors, Version


OTHER_TIES = "expected the arrays to share memory as when the version was staged, got others that do"
"""What a target says that is about to commit."""


class Target(Protocol):
    """What a follower keeps up to date."""

    @property
    def title(self) -> str: ...

    @property
    def number(self) -> int | None:
        """The version that is there."""

    @property
    def staged(self) -> Position | None: ...

    def position(self) -> Position:
        """What is there."""

    def forget(self) -> None:
        """It may have been written to."""

    def stage(self, goal: Position, plan: Mapping[str, Sequence[Version]], frames: Frames) -> None:
        """Make what `commit` needs."""

    def commit(self) -> None:
        """Put it in place."""


class Elsewhere(Protocol):
    """A kind of memory."""

    def takes(self, array: Any) -> bool:
        """Whether an array lies there."""

    def copies(self, profile: Profile, threads: int) -> Copies:
        """For a publisher."""

    def target(self, arrays: MutableMapping[str, Any], threads: int, *, verify: bool) -> Target:
        """For a follower: arrays that are changed in place. UnsupportedTensorError if one cannot be."""


_KNOWN: list[Elsewhere] = []


def register(memory: Elsewhere) -> None:
    """Publishers and followers take what lies there from now on."""
    _KNOWN.append(memory)


def memory_of(array: Any) -> Elsewhere | None:
    """Where an array lies; None for this process's memory, or for what nothing takes.

    Raises:
        UnsupportedTensorError: it lies on a GPU, and what knows GPUs was not imported.
    """
    found = next((each for each in _KNOWN if each.takes(array)), None)
    if found is None and getattr(array, "is_cuda", False):
        raise UnsupportedTensorError(
            f"expected an import of tensorwire.torch before tensors on a GPU, got one on {array.device}",
            advice="import it, and its kernels read and change them there; or give tensor.cpu()",
        )
    return found


def misfit(
    goal: Tensors, layouts: Mapping[str, tuple[str | None, tuple[int, ...]]], ties: Mapping[str, str]
) -> tuple[str, str] | None:
    """The first array that cannot take its content where it lies, and why.

    Args:
        goal: what the arrays are to become.
        layouts: of each array its dtype and shape.
        ties: by name the array that has its memory.
    """
    if others := sorted(goal.keys() ^ layouts.keys()):
        name = others[0]
        places = ("the version", "the dict") if name in goal else ("the dict", "the version")
        text = f"expected the same tensors in the version and in the dict, got {shown(name)} in {places[0]}"
        return name, f"{text} and not in {places[1]}"
    for name, found in layouts.items():
        wanted = goal[name].layout
        if found != wanted:
            text = f"expected {shown(name)} as {wanted[0]} {wanted[1]}, as the version has it"
            return name, f"{text}, got {found[0]} {found[1]} in the dict"
        if goal[ties[name]].hash != goal[name].hash:
            return name, (
                f"expected one content of {shown(name)} and {shown(ties[name])}, which have the same memory in the "
                "dict, got two in the version"
            )
    return None
