"""Arrays by name that follow a publisher."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from ..codec import as_array, new_buffer, tensor_view
from .checkpoints import nbytes_of, tensor_of
from .versions import Position

if TYPE_CHECKING:
    from .frames import Fetched, Frames
    from .versions import Version


class ArraysTarget:
    """The arrays of a mapping. Without `in_place` those that changed are replaced by new ones, and who holds an old one
    keeps it; with `in_place` they keep their memory, and frames wait for the commit."""

    def __init__(self, arrays: MutableMapping[str, Any], threads: int, *, in_place: bool) -> None:
        self._arrays, self._threads, self._in_place = arrays, threads, in_place
        self._position: Position | None = None
        self._new: dict[str, Any] = {}
        self._frames: dict[str, list[Fetched]] = {}
        self._goal: Position | None = None

    def position(self) -> Position:
        """What is there; arrays that nobody has hashed yet are hashed now."""
        if self._position is None:
            tensors = {name: tensor_of(array, self._threads) for name, array in self._arrays.items()}
            self._position = Position(None, "", "", tensors)
        return self._position

    def forget(self) -> None:
        """Somebody has written to the arrays: hash them again."""
        self._position = None

    @property
    def number(self) -> int | None:
        return None if self._position is None else self._position.number

    @property
    def staged(self) -> Position | None:
        return self._goal

    def stage(self, goal: Position, plan: Mapping[str, Sequence[Version]], frames: Frames) -> None:
        """Make what `commit` needs: new arrays, or the frames for old ones."""
        self._drop()
        for name, links in plan.items():
            if not links:
                continue
            held = self._arrays.get(name)
            is_there = held is not None and self.position().tensors[name].layout == goal.tensors[name].layout
            if self._in_place and is_there:
                self._frames[name] = [frames.fetch(name, link) for link in links]
                continue
            first = frames.fetch(name, links[0])
            out = new_buffer(nbytes_of(first.tensor))  # what it needs is no lie of the index: the frame says the same
            first.make(name, out, tensor_view(held).data if is_there else None, self._threads)
            for link in links[1:]:
                frames.fetch(name, link).make(name, out, out, self._threads)
            dtype, shape = goal.tensors[name].layout
            self._new[name] = as_array(out, dtype, shape, self._framework(held))
        self._goal = goal

    def commit(self) -> None:
        """Exchange references; in place, decode."""
        assert self._goal is not None
        goal, self._position = self._goal, None
        for name, fetched in self._frames.items():
            data = tensor_view(self._arrays[name]).data
            for each in fetched:
                each.put(name, data, self._threads)
        self._arrays.update(self._new)
        for name in [name for name in self._arrays if name not in goal.tensors]:
            del self._arrays[name]
        self._drop()
        self._position = goal

    def _drop(self) -> None:
        self._new, self._frames, self._goal = {}, {}, None

    def _framework(self, held: Any) -> Any:
        """That of the array which is replaced, or of the others."""
        like = next(iter(self._arrays.values()), None) if held is None else held
        return "pt" if type(like).__module__.partition(".")[0] == "torch" else "np"
