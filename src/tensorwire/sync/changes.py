"""What a staged version changes, for engines that hold weights of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._ground.copies import not_copied
from .._ground.text import count, escape, in_a_line
from ..codec import array_shape, as_array, dtype_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .followed_arrays import ArraysTarget
    from .versions import Tensors


class Patch(NamedTuple):
    """The elements of a tensor that a version changes: those whose bits differ, so -0.0 after 0.0 is a change, and a
    NaN may be a value. ``flat[indices] = values`` makes the new tensor of the old one.

    Attributes:
        name: of the tensor.
        shape: of the array, in elements.
        dtype: as in safetensors, "BF16" say.
        indices: numbers of these elements in the flat array, ascending: int32, or int64 if it has more than 2**31 - 1.
        values: what they are now.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    indices: Any
    values: Any

    def __repr__(self) -> str:
        return in_a_line(self, escape(self.name), self.dtype, self.shape, count(len(self.indices), "element"))


class Changes:
    """What `Follower.commit` will change, from `Follower.changes`. It holds until the follower stages or commits again.
    One thread at a time may use the follower and this. Nothing here changes the arrays of the follower.

    Attributes:
        version: the number of the version that is staged.
        names: of the tensors that change, or are new.
    """

    __reduce_ex__ = not_copied("what a follower has staged", "send what tensors() or patches() gives")

    version: int
    names: tuple[str, ...]
    _target: ArraysTarget
    _tensors: Tensors
    _holds: Callable[[], bool]

    @classmethod
    def _of(cls, version: int, names: tuple[str, ...], target: ArraysTarget, holds: Callable[[], bool]) -> Changes:
        """What `target` has staged. `holds`: whether it is staged still."""
        goal = target.staged
        assert goal is not None
        made = cls()
        made.version, made.names = version, names
        made._target, made._tensors, made._holds = target, goal.tensors, holds
        return made

    def __repr__(self) -> str:
        return in_a_line(self, f"version {self.version}", count(len(self.names), "tensor"))

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The tensors that change, new and whole, as arrays of the follower's framework.

        They are those that `commit` puts into the dict; with `in_place` each is made when its turn comes.

        Raises:
            ValueError: the follower has staged or committed since.
            FormatError: a frame is damaged.
            BaseMismatchError: an array that is to change was removed, or written to.
        """
        for name in self.names:
            self._check()
            yield name, self._target.new_array(name)

    def patches(self) -> Iterator[Patch]:
        """The elements that change, of one tensor after the other.

        They are relative to what the follower holds, whichever versions are between. A tensor that it does not hold, or
        with another dtype or shape, has all elements in its patch. With `in_place` frames are decoded a few MiB at a
        time, beside the array, and a patch is given once the content hash of all that they make is right.

        Raises:
            ValueError, FormatError, BaseMismatchError: as `tensors`.
        """
        for name in self.names:
            self._check()
            yield self._patch(name)

    def _patch(self, name: str) -> Patch:
        found, framework = self._target.changed_elements(name), self._target.framework_of(name)
        dtype, shape = self._tensors[name].layout
        arrays = (
            as_array(memoryview(data), of, (len(data) * 8 // dtype_bits(of),), framework)
            for data, of in ((found.indices, found.index_dtype), (found.values, dtype))
        )
        return Patch(name, array_shape(dtype, shape, framework), dtype, *arrays)

    def _check(self) -> None:
        if not self._holds():
            raise ValueError(
                f"expected version {self.version} to be staged still, but the follower has staged or committed since; "
                "call changes() of it again, before commit()"
            )
