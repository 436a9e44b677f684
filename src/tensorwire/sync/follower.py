"""The side of the engine: versions fetched and made beside the weights that serve, then put in their place."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .._ground.copies import not_copied
from .._ground.text import count, in_a_line
from ..codec import num_threads
from ..errors import BaseMismatchError, UnsupportedTensorError
from ..storage.locations import is_path, locate
from .changes import Changes
from .directories import DirectoryTarget, InPlaceTarget
from .elsewhere import memory_of
from .followed_arrays import ArraysTarget
from .frames import Frames
from .store import Store
from .versions import MAX_NUMBER, Position, Version, is_number, result, state_of, steps

if TYPE_CHECKING:
    import os

    from ..storage.progress import Progress
    from .elsewhere import Target

_POLL_SECONDS = 0.5


class Staged(NamedTuple):
    """A version that `Follower.commit` puts in place.

    Attributes:
        version: its number.
        names: of the tensors that change.
    """

    version: int
    names: tuple[str, ...]

    def __repr__(self) -> str:
        return in_a_line(self, f"version {self.version}", f"{count(len(self.names), 'tensor')} to change")


class Follower:
    """Follows the versions of a store, as a checking reader (docs/format.md). `stage` does all the work while the old
    weights serve; `commit` is short. One thread at a time may use it.

    Args:
        store: the directory or URL that a `Publisher` writes to.
        target: a dict of NumPy arrays or of torch tensors, or a directory of plain safetensors files, which may be
            absent at first. Tensors on a device need `in_place`, and an import of tensorwire.torch before. A directory
            has a checkpoint of the store or none, and one follower. Its files are links to those of the version that
            serves, in a folder of its own below ``.tensorwire-sync``.
        framework: what new arrays of a dict are, "np" or "pt"; by default what those that they replace are, and NumPy
            arrays in an empty dict.
        in_place: arrays keep their memory, and files their place on the disk. `stage` then takes nothing but memory
            for the compressed changes, and `commit` decodes them. A file with a second name (a hard link) is refused.
            The arrays have the names, dtypes and shapes of the publisher; an empty dict is filled once.
        copies: for a directory whose engine or file system follows no links: plain files stand there, and `commit`
            exchanges them one by one.
        verify: whether each `stage` hashes what the version does not change, and makes anew what was changed without a
            trace. By default it does for a dict, and not for a directory, which must be read for that.
        threads: by default all usable cores.
        storage_options: of URLs: docs/remote.md.

    Attributes:
        version: the number of the version that the target holds; None if it holds none, or before the first look.
        state: "empty", "at" a version, or "staged" another one.

    Raises:
        TypeError: `target` is neither of the two.
        UnsupportedTensorError: with `in_place`, an array takes no content where it lies: it is read-only, say, or
            shares a part of its memory with another one; or some arrays are on a device and some are not.
        ValueError: the directory is a URL, `copies` is given with `in_place` or a dict, or `framework` with a
            directory or is none.
        ImportError: torch is missing, with framework "pt".
        BlockingIOError: another follower works in the directory.
        FileExistsError: the directory is a file, or has another file under the name of one that serves.
    """

    __reduce_ex__ = not_copied("its place in a store", "make another one, with a target of its own")

    def __repr__(self) -> str:
        return in_a_line(
            self,
            self._store.place,
            self._target.title,
            "no version" if self.version is None else f"version {self.version}",
            None if self._staged is None else f"version {self._staged.version} staged",
        )

    def __init__(
        self,
        store: str | os.PathLike[str],
        target: MutableMapping[str, Any] | str | os.PathLike[str],
        *,
        framework: Literal["np", "pt"] | None = None,
        in_place: bool = False,
        copies: bool = False,
        verify: bool | None = None,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = Store(locate(store, storage_options))
        self._staged: Staged | None = None
        self._reached: int | None = None  # the number that was held last, also once the target is another's
        self._told: tuple[int, str] | None = None  # the older version that was warned of
        self._hashes_first = bool(verify) and not isinstance(target, MutableMapping)  # arrays look themselves
        if copies and (in_place or isinstance(target, MutableMapping)):
            raise ValueError("expected copies with a directory that is not written into in place; leave it out")
        if framework is not None:
            _check_framework(framework, target)
        self._target: Target
        if isinstance(target, MutableMapping):
            self._target = _target_of(target, num_threads(threads), framework, in_place, verify is not False)
            return
        if not is_path(target):
            advice = "; give its state_dict(), with in_place=True" if hasattr(target, "state_dict") else ""
            raise TypeError(f"expected a dict of arrays or a directory as target, got {type(target).__name__}{advice}")
        root = locate(target, storage_options)
        if not isinstance(root, Path):
            raise ValueError(f"expected a local directory, got {root}")
        if in_place:
            self._target = InPlaceTarget(root, num_threads(threads), self._store.has_state)
        else:
            self._target = DirectoryTarget(root, num_threads(threads), self._store.has_state, copies=copies)

    @property
    def version(self) -> int | None:
        return self._target.number

    @property
    def state(self) -> str:
        if self._staged is not None:
            return "staged"
        return "empty" if self.version is None else "at"

    def stage(
        self, version: int | None = None, timeout: float | None = 0, *, progress: Progress | None = None
    ) -> Staged | None:
        """Fetch a version and make its tensors, beside those that serve.

        Args:
            version: its number, which may be an older one; by default the newest one, if that is newer.
            timeout: how many seconds to wait for something new: 0 does not wait, None waits for ever.
            progress: called from this thread with the bytes of tensors that are made and to be made, and the name of
                the tensor at work.

        Returns:
            What `commit` will put in place. None if nothing newer came in time, or if `version` is held: then nothing
            is staged any more. If the newest version of the store is older than the one that is held, a RuntimeWarning
            says so.

        Raises:
            FormatError: a version is damaged; the target is what it was, as after every error.
            FileNotFoundError: a part of a version, or one that it is relative to, is missing.
            FileExistsError: the directory holds a checkpoint that the store does not have.
            ValueError: `version` is no number of a version.
            ValueError, UnsupportedTensorError: with `in_place`, the arrays do not fit the version.
            OSError: reading or writing fails.
        """
        if version is not None and not is_number(version):
            raise ValueError(f"expected a whole number from 0 to {MAX_NUMBER} as version, got {version!r:.60}")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            position = self._target.position()
            goal = self._goal(version, position)
            if goal is not None:
                return self._stage(goal, version, progress)
            if version is not None and version == position.number:
                self._staged = None  # the version that is held is wanted, and not the one that was staged
            wait = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - time.monotonic())
            if wait <= 0:
                return None
            time.sleep(wait)

    def commit(self) -> None:
        """Put the staged version in place; without one do nothing.

        Raises:
            OSError: the directory was written to meanwhile. Nothing was changed: stage again.
            BaseMismatchError: an array was removed meanwhile, and nothing was changed. Or in place, an array or
                a file was written to. Stage again, which begins with an anchor. After any error in place the version is
                None, and `stage` makes what the target lacks.
            ValueError, UnsupportedTensorError: in place, another array is in the dict that does not fit; nothing was
                changed.
        """
        if self._staged is not None:
            self._staged = None
            self._target.commit()

    def changes(self) -> Changes:
        """What `commit` will change, for an engine that puts it into weights of its own: whole tensors, or patches.

        Raises:
            ValueError: nothing is staged.
            TypeError: the target is a directory, or tensors on a device.
        """
        if not isinstance(self._target, ArraysTarget):
            raise TypeError(
                "expected a follower of a dict, got one of a directory, whose files an engine loads anew, or of "
                "tensors on a device, which commit() changes"
            )
        staged = self._staged
        if staged is None:
            raise ValueError("expected a staged version, got none; call stage() first, and changes() if it gives one")
        return Changes._of(*staged, self._target, lambda: self._staged is staged)

    def _goal(self, version: int | None, position: Position) -> Version | None:
        """The version that is to be held, None if it is held or there is none."""
        if position.number is not None:
            self._reached = position.number
        if version is not None:
            found = self._store.read(version)
        else:
            # The listing of a store may be late: what is held is no older than what it shows.
            found = self._store.newest(*([] if self._reached is None else [self._reached]))
            if found is not None and self._reached is not None and found.number < self._reached:
                self._warn_of_older(found, self._reached)
                return None
        return None if found is None or found.id == position.id else found

    def _warn_of_older(self, found: Version, held: int) -> None:
        if self._told != found.id:
            text = (
                f"the store was put back or begun anew: its newest version is {found.number:06d}, and {held:06d} is "
                f"held; stage(version={found.number}) takes it, and so does a follower of an empty target"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        self._told = found.id

    def _stage(self, goal: Version, version: int | None, progress: Progress | None) -> Staged:
        staged = self._target.staged
        if self._staged is not None and staged is not None and staged.id == goal.id:
            return self._staged
        self._staged = None
        if self._hashes_first:
            self._target.forget()
        with suppress(BaseMismatchError):
            self._staged = self._until_whole(goal, version, progress)
            return self._staged
        self._target.forget()  # the target was written to
        self._staged = self._until_whole(goal, version, progress)
        return self._staged

    def _until_whole(self, goal: Version, version: int | None, progress: Progress | None) -> Staged:
        """Stage a version; a newer one if the publisher removes it meanwhile, since it keeps the newest alone."""
        try:
            return self._try(goal, progress)
        except FileNotFoundError:
            newer = self._goal(version, self._target.position())
            if newer is None or newer.number <= goal.number:
                raise
        return self._until_whole(newer, version, progress)

    def _try(self, goal: Version, progress: Progress | None) -> Staged:
        tensors = self._target.position().tensors
        links = self._store.links(goal, state_of(tensors))
        wanted = result(tensors, links)
        plan = steps(tensors, links, wanted)
        with Frames(self._store, plan, tensors, goal.small, progress) as frames:
            self._target.stage(Position(goal.number, goal.writer, wanted), plan, frames)
        return Staged(goal.number, tuple(name for name, chain in plan.items() if chain))


def _target_of(
    arrays: MutableMapping[str, Any], threads: int, framework: Literal["np", "pt"] | None, in_place: bool, verify: bool
) -> Target:
    """What keeps arrays up to date where they lie."""
    memories = {memory_of(array) for array in arrays.values()}
    if memories <= {None}:
        return ArraysTarget(arrays, threads, framework=framework, in_place=in_place, verify=verify)
    if len(memories) > 1:
        raise UnsupportedTensorError(
            "expected arrays that lie in one kind of memory, got some on a device and some that are not",
            advice="move all of them to the device, or all to the CPU",
        )
    if not in_place:
        raise ValueError("expected in_place=True for arrays on a device, which are changed where they lie")
    (memory,) = memories
    assert memory is not None
    return memory.target(arrays, threads, verify=verify)


def _check_framework(framework: str, target: object) -> None:
    if framework not in ("np", "pt"):
        raise ValueError(f'expected "np" or "pt" as framework, got {framework!r:.60}')
    if not isinstance(target, MutableMapping):
        raise ValueError("expected framework with a dict alone, got a directory, whose files are of none; leave it out")
    if framework == "pt":
        import torch  # noqa: F401 - not only once a version is there
