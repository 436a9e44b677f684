"""Arrays by name that follow a publisher."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .._ground.allocation import new_buffer
from .._ground.text import count
from ..codec import (
    AS_BYTES,
    ChangedElements,
    ContentHasher,
    array_layout,
    as_array,
    changed_in_place,
    tensor_view,
    tied_names,
)
from ..errors import BaseMismatchError, ErrorContext, UnsupportedTensorError
from .checkpoints import tensor_of
from .elsewhere import OTHER_TIES, misfit
from .frames import piece_nbytes
from .versions import Position, nbytes_of

if TYPE_CHECKING:
    from .frames import Fetched, Frames
    from .versions import Tensor, Tensors, Version

_ANEW = "stage again"


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
        self._ties: Mapping[str, str] = {}  # by name of an array the one that has the frames
        self._goal: Position | None = None
        self._room = new_buffer(0)  # for a piece of an array
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
            UnsupportedTensorError: as at the beginning; or new arrays have no such dtype.
        """
        self._drop()
        ties = self._ties = self._checked_ties(goal.tensors, plan, frames) if self._in_place and self._arrays else {}
        for name, links in plan.items():
            held = self._arrays.get(name)
            if not links:
                self._check_same(name, held, goal.tensors)
            elif ties:
                if ties[name] not in self._frames:  # one frame is for all that are tied
                    self._frames[ties[name]] = [frames.fetch(name, link) for link in links]
            else:
                fetched = (frames.fetch(name, link) for link in links)
                self._new[name] = self._made(name, held, fetched, goal.tensors[name])
        self._goal = goal

    def new_array(self, name: str) -> Any:
        """The array that `commit` puts, or makes, under a name that the staged version changes.

        Raises:
            BaseMismatchError: the array that is to change was removed, or written to, since the version was staged.
            FormatError: a frame is damaged.
        """
        assert self._goal is not None
        if name in self._new:
            return self._new[name]
        return self._made(name, self._array_to_change(name), self._frames[self._ties[name]], self._goal.tensors[name])

    def changed_elements(self, name: str) -> ChangedElements:
        """Where that array differs from the one that is there.

        Raises:
            BaseMismatchError, FormatError: as `new_array`.
        """
        assert self._goal is not None
        goal = self._goal.tensors[name]
        found = ChangedElements(goal.dtype, nbytes_of(goal))
        if name in self._new:
            self._compare(name, goal, found)
        else:
            self._decode_changes(name, found)
        return found

    def framework_of(self, name: str) -> Literal["np", "pt"]:
        """The one of a new array: what was asked for, or that of the array which is replaced, or of another one."""
        if self._framework is not None:
            return self._framework
        torch = sys.modules.get("torch")
        like = self._arrays.get(name, next(iter(self._arrays.values()), None))
        return "pt" if torch is not None and isinstance(like, torch.Tensor) else "np"

    def _compare(self, name: str, goal: Tensor, found: ChangedElements) -> None:
        """Look for the changes of an array that is made already."""
        held = self._arrays.get(name)
        base = None if held is None or array_layout(held) != goal.layout else tensor_view(held).data
        new, step = tensor_view(self._new[name]).data, piece_nbytes((), 1)
        for start in range(0, len(new), step):
            found.add(new[start : start + step], None if base is None else base[start : start + step])

    def _decode_changes(self, name: str, found: ChangedElements) -> None:
        """Look for changes piece by piece in what frames make of the array that is there, which stays what it is."""
        fetched, base = self._frames[self._ties[name]], tensor_view(self._array_to_change(name)).data
        step, hasher = piece_nbytes(fetched, self._threads), ContentHasher(threads=self._threads)
        if len(self._room) < min(step, len(base)):
            self._room = new_buffer(min(step, len(base)))
        for start in range(0, len(base), step):
            old = base[start : start + step]
            piece = self._room[: len(old)]
            piece[:] = old
            for each in fetched:
                each.make_piece(name, start, piece, self._threads)
            hasher.update(piece)
            found.add(piece, old)
        fetched[-1].check(name, hasher.hexdigest(), had_base=fetched[0].is_relative)

    def _array_to_change(self, name: str) -> Any:
        """The array that frames are for."""
        assert self._goal is not None
        held = self._arrays.get(name)
        if held is None or array_layout(held) != self._goal.tensors[name].layout:
            raise BaseMismatchError(
                "was removed, or replaced by another array, since a version was staged", tensor=name, advice=_ANEW
            )
        return held

    def _made(self, name: str, held: Any, fetched: Iterable[Fetched], goal: Tensor) -> Any:
        """A new array."""
        steps = iter(fetched)
        first = next(steps)
        out = new_buffer(nbytes_of(first.tensor))  # what it needs is no lie of the index: the frame says the same
        base = tensor_view(held).data if first.is_relative and held is not None else None
        first.make(name, out, base, self._threads)
        for each in steps:
            each.make(name, out, out, self._threads)
        dtype, shape = goal.layout
        with ErrorContext(tensor=name):
            try:
                return as_array(out, dtype, shape, self.framework_of(name))
            except UnsupportedTensorError as error:
                error.advice = error.advice.replace(AS_BYTES, "a directory as target takes all dtypes")
                raise

    def commit(self) -> None:
        """Exchange references; in place, decode.

        Raises:
            BaseMismatchError: arrays came or went since a version was staged, or others share memory, and nothing was
                changed; or as Fetched.put.
            ValueError, UnsupportedTensorError: as `stage`; nothing was changed.
        """
        assert self._goal is not None
        goal, self._position = self._goal, None
        if self._in_place and self._arrays:
            if self._new:
                raise BaseMismatchError("expected an empty dict, as it was, got arrays in it", advice=_ANEW)
            if self._checked_ties(goal.tensors, {}, None) != self._ties:  # one frame was for all of the same memory
                raise BaseMismatchError(OTHER_TIES, advice=_ANEW)
        if gone := sorted(goal.tensors.keys() - self._arrays.keys() - self._new.keys()):
            raise BaseMismatchError("was removed since a version was staged", tensor=gone[0], advice=_ANEW)
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

    def _checked_ties(
        self, goal: Tensors, plan: Mapping[str, Sequence[Version]], frames: Frames | None
    ) -> dict[str, str]:
        """By name the array that has its memory, as `tied_names`. What would leave that memory, which others hold as
        well, is refused."""
        ties = tied_names(self._arrays)
        layouts = {name: array_layout(array) for name, array in self._arrays.items()}
        found = misfit(goal, layouts, ties)
        if found is None:
            return ties
        name, text = found
        if frames is not None:
            for link in plan.get(name, ()):
                frames.fetch(name, link)  # so that an index which lies is told first
        raise ValueError(f"{text}; give a dict that fits, or an empty one; without in_place arrays are replaced")

    def _drop(self) -> None:
        self._new, self._frames, self._ties, self._goal, self._room = {}, {}, {}, None, new_buffer(0)
