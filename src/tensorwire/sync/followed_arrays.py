"""Arrays by name that follow a publisher."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .._ground.text import count
from ..codec import array_layout, as_array, changed_in_place, new_buffer, tensor_view, tied_names
from ..errors import BaseMismatchError, ErrorContext
from ..files.names import shown
from .checkpoints import tensor_of
from .versions import Position, nbytes_of

if TYPE_CHECKING:
    from .frames import Fetched, Frames
    from .versions import Tensors, Version


class ArraysTarget:
    """The arrays of a mapping. Without `in_place` those that changed are replaced by new ones, and who holds an old one
    keeps it; with `in_place` they keep their memory, and frames wait for the commit. With `verify` those that a version
    does not change are hashed when it is staged."""

    def __init__(
        self,
        arrays: MutableMapping[str, Any],
        threads: int,
        *,
        framework: Literal["np", "pt"] | None,
        in_place: bool,
        verify: bool,
    ) -> None:
        """`framework`: of new arrays; by default that of those which they replace.

        Raises:
            UnsupportedTensorError: with `in_place`, an array takes no content where it lies.
        """
        self._arrays, self._threads, self._in_place, self._verify = arrays, threads, in_place, verify
        self._framework = framework
        self._position: Position | None = None
        self._new: dict[str, Any] = {}
        self._frames: dict[str, list[Fetched]] = {}
        self._goal: Position | None = None
        if in_place:
            tied_names(arrays)

    @property
    def title(self) -> str:
        return count(len(self._arrays), "array")

    def position(self) -> Position:
        """What is there; arrays that were not hashed yet are hashed now, all if one came or went."""
        if self._position is None or self._position.tensors.keys() != self._arrays.keys():
            tensors = {name: tensor_of(name, array, self._threads) for name, array in self._arrays.items()}
            self._position = Position(None, "", tensors)
        return self._position

    def forget(self) -> None:
        """The arrays may have been written to: hash them again."""
        self._position = None

    @property
    def number(self) -> int | None:
        return None if self._position is None else self._position.number

    @property
    def staged(self) -> Position | None:
        return self._goal

    def stage(self, goal: Position, plan: Mapping[str, Sequence[Version]], frames: Frames) -> None:
        """Make what `commit` needs: new arrays, or the frames for old ones.

        Raises:
            BaseMismatchError: an array that stays is not what it was.
            ValueError: with `in_place`, the arrays have other names, dtypes or shapes than the version, or one memory
                where it has several contents.
            UnsupportedTensorError: as at the beginning.
        """
        self._drop()
        ties = self._ties(goal.tensors, plan, frames) if self._in_place and self._arrays else {}
        for name, links in plan.items():
            held = self._arrays.get(name)
            if not links:
                self._check_same(name, held, goal.tensors)
            elif ties:
                if ties[name] not in self._frames:  # one frame is for all that are tied
                    self._frames[ties[name]] = [frames.fetch(name, link) for link in links]
            else:
                self._new[name] = self._made(name, held, links, goal.tensors, frames)
        self._goal = goal

    def _made(self, name: str, held: Any, links: Sequence[Version], goal: Tensors, frames: Frames) -> Any:
        """A new array."""
        first = frames.fetch(name, links[0])
        out = new_buffer(nbytes_of(first.tensor))  # what it needs is no lie of the index: the frame says the same
        base = tensor_view(held).data if first.is_relative and held is not None else None
        first.make(name, out, base, self._threads)
        frames.apply(name, links[1:], out, self._threads)
        dtype, shape = goal[name].layout
        return as_array(out, dtype, shape, self._framework or self._framework_of(held))

    def commit(self) -> None:
        """Exchange references; in place, decode.

        Raises:
            BaseMismatchError: arrays came or went since a version was staged, and nothing was changed; or as
                Fetched.put.
            ValueError, UnsupportedTensorError: as `stage`; nothing was changed.
        """
        assert self._goal is not None
        goal, self._position = self._goal, None
        if self._in_place and self._arrays:
            if self._new:
                raise BaseMismatchError("expected an empty dict, as it was, got arrays in it", advice="stage again")
            self._ties(goal.tensors, {}, None)
        if gone := sorted(goal.tensors.keys() - self._arrays.keys() - self._new.keys()):
            raise BaseMismatchError("was removed since a version was staged", tensor=gone[0], advice="stage again")
        for name, fetched in self._frames.items():
            with ErrorContext(tensor=name), changed_in_place(self._arrays[name]) as content:
                for each in fetched:
                    each.put(name, content, self._threads)
        self._arrays.update(self._new)
        for name in [name for name in self._arrays if name not in goal.tensors]:
            del self._arrays[name]
        self._drop()
        self._position = goal

    def _check_same(self, name: str, held: Any, goal: Tensors) -> None:
        """Raise BaseMismatchError if an array that no version changes is not what it was."""
        if self._verify and tensor_of(name, held, self._threads) != goal[name]:
            raise BaseMismatchError("expected an array as the last version left it, got another content", tensor=name)

    def _ties(self, goal: Tensors, plan: Mapping[str, Sequence[Version]], frames: Frames | None) -> dict[str, str]:
        """By name the array that has its memory, as `tied_names`. What would leave that memory, which others hold as
        well, is refused."""
        ties = tied_names(self._arrays)
        found = self._misfit(goal, ties)
        if found is None:
            return ties
        name, text = found
        if frames is not None:
            for link in plan.get(name, ()):
                frames.fetch(name, link)  # so that an index which lies is told first
        raise ValueError(f"{text}; give a dict that fits, or an empty one; without in_place arrays are replaced")

    def _misfit(self, goal: Tensors, ties: Mapping[str, str]) -> tuple[str, str] | None:
        """The first array that cannot take its content in place, and why."""
        if others := sorted(goal.keys() ^ self._arrays.keys()):
            name = others[0]
            places = ("the version", "the dict") if name in goal else ("the dict", "the version")
            text = f"expected the same tensors in the version and in the dict, got {shown(name)} in {places[0]}"
            return name, f"{text} and not in {places[1]}"
        for name, array in self._arrays.items():
            wanted, found = goal[name].layout, array_layout(array)
            if found != wanted:
                text = f"expected {shown(name)} as {_text(wanted)}, as the version has it"
                return name, f"{text}, got {_text(found)} in the dict"
            if goal[ties[name]].hash != goal[name].hash:
                return name, (
                    f"expected one content of {shown(name)} and {shown(ties[name])}, which have the same memory in the "
                    "dict, got two in the version"
                )
        return None

    def _drop(self) -> None:
        self._new, self._frames, self._goal = {}, {}, None

    def _framework_of(self, held: Any) -> Literal["np", "pt"]:
        """That of the array which is replaced, or of the others."""
        torch = sys.modules.get("torch")
        like = next(iter(self._arrays.values()), None) if held is None else held
        return "pt" if torch is not None and isinstance(like, torch.Tensor) else "np"


def _text(layout: tuple[str | None, tuple[int, ...]]) -> str:
    return f"{layout[0]} {layout[1]}"
