"""A directory of plain safetensors files that follows a publisher: each version is a folder, and links lead to it.

The files of the directory are links to ``.tensorwire-sync/current/NAME``, and ``current`` is a link to the folder of a
version (`kept.py`). So a commit is one rename, and all files change at once. A file that does not change is a hard link
to the one of the version before. What stands in the directory besides links of ours stays.

A checkpoint that stood there before is taken if the store has a version of its tensors: its files become a folder like
those of versions, and links take their places one by one, with the same content on both sides of each exchange.

With `copies` plain files stand in the directory in place of links: second names of those in the folder, which take
their places one by one behind that rename.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ...storage.local import InputFile
from ..versions import INDEX_NAME, Position
from .beside import check_small, write_small
from .kept import CURRENT, Followed, OpenDirectory, end, marks_of, serving
from .making import Writer, changes, holds, index_of, new_layout
from .shown import check_free, hide, show

if TYPE_CHECKING:
    from ..._ground.folder import Folder
    from ..frames import Frames
    from .kept import Serving
    from .making import Plan
    from .note import Marks


class _StagedFolder(NamedTuple):
    """A version that waits for its commit: its folder, the marks of its files, and the folder that serves meanwhile."""

    position: Position
    name: str
    marks: Marks
    before: str | None


class DirectoryTarget(Followed):
    """The files of a directory. The lock is held inside each call, and no longer."""

    def __init__(self, root: Path, threads: int, is_published: Callable[[str], bool], *, copies: bool) -> None:
        """Have plain files stand in the directory with `copies`, else links. All else is that of `Followed`."""
        self._copies = copies
        self._staged: _StagedFolder | None = None
        super().__init__(root, threads, is_published)

    @property
    def staged(self) -> Position | None:
        return None if self._staged is None else self._staged.position

    @contextmanager
    def _entered(self, *, make: bool = False) -> Iterator[OpenDirectory | None]:
        """What a killed process has left to do is done first."""
        with super()._entered(make=make) as place:
            current = None if place is None else place.current()
            if place is not None and current is not None:
                with serving(place) as found:
                    names = found.names
                if not self._copies and place.own.target_of(CURRENT) is None:
                    place.point(current)  # a follower without links was here
                show(place, current, names, copies=self._copies)
                hide(place, names)
            yield place

    def stage(self, goal: Position, plan: Plan, frames: Frames) -> None:
        """Make the folder of a version, and wait until it is on the disk.

        Raises:
            BaseMismatchError: what serves is not what `plan` begins with.
            FileExistsError: a checkpoint stands there that the store does not have, or a name is taken.
        """
        self._staged = None
        self._check_published()
        with self._entered(make=True) as place:
            assert place is not None
            place.clean()
            if not self._copies and not place.has_links():
                text = "the file system has no links: follow with copies=True (--copy)"
                raise OSError(errno.EOPNOTSUPP, text, str(self._root))
            check_small(place, frames)
            if place.current() is None:
                self._adopt(place)
            with serving(place) as found:
                name = f"v{goal.number:06d}-{secrets.token_hex(8)}"
                with place.making(name) as folder:
                    names = self._make(place, found, folder, goal, plan, frames)
                    self._staged = _StagedFolder(goal, name, end(folder, names, goal), found.name)

    def _make(
        self, place: OpenDirectory, found: Serving, folder: Folder, goal: Position, plan: Plan, frames: Frames
    ) -> list[str]:
        """Make the files of a version, and give their names."""
        with found.opened() as current:
            marks = found.marks()
            self._check_begins(found, goal, plan)
            headers = {file: stored.header for file, stored in current.items()}
            is_new = not holds(headers, goal.tensors)
            layout = new_layout(goal.tensors) if is_new else headers
            indexes = found.indexes if not is_new else [INDEX_NAME] if len(layout) > 1 else []
            check_free(place, [*layout, *indexes])
            changed = [file for file in layout if is_new or changes(layout[file], plan)]
            writer = Writer(current, goal.tensors, plan, frames.fetch, self._threads)
            for file, header in layout.items():
                if file in changed or not found.folder.share(file, folder, file):
                    writer.write(folder, file, header)
            for index in indexes:
                folder.write(index, index_of(layout) if is_new else _content(found.folder, index))
            small = write_small(found, folder, frames)
            if found.marks() != marks:
                text = "a file of it was written to while a version was staged; stage again"
                raise OSError(errno.EBUSY, text, str(self._root))
        return [*layout, *indexes, *small]

    def _adopt(self, place: OpenDirectory) -> None:
        """Have a checkpoint that stands in the directory itself serve as a version does, with the same content."""
        with serving(place) as found, found.opened() as current:
            if not current:
                return
            position, names = self._position_of(found), [*current, *found.indexes]
            writer = Writer(current, position.tensors, dict.fromkeys(position.tensors, ()), _no_frame, self._threads)
            name = f"seed-{secrets.token_hex(8)}"
            with place.making(name) as folder:
                for each in names:
                    if found.folder.share(each, folder, each):
                        continue
                    if each in current:
                        writer.write(folder, each, current[each].header)
                    else:
                        folder.write(each, _content(found.folder, each))
                    status = found.folder.status(each, follow=True)
                    if status is not None:
                        folder.set_time(each, status)
                end(folder, names, position)
        place.point(name)
        show(place, name, names, copies=self._copies)

    def commit(self) -> None:
        """Have the staged version serve: nothing is decoded.

        Raises:
            OSError: the directory was written to since; nothing was changed. Or the disk fails.
        """
        staged, self._staged = self._staged, None
        assert staged is not None
        with self._entered() as place:
            if place is None:
                raise OSError(errno.EBUSY, "is gone; stage again", str(self._root))
            if staged.name not in place.versions() or place.current() != staged.before:
                text = "another follower has worked here since; stage again"
                raise OSError(errno.EBUSY, text, str(self._root))
            names = list(staged.marks)
            with place.own.enter(staged.name) as folder:
                if marks_of(folder, names) != staged.marks:
                    text = "was written to since it was staged; stage again"
                    raise OSError(errno.EBUSY, text, str(folder.path))
            check_free(place, names)
            if not self._copies:  # before: a link that leads nowhere yet is in no reader's way
                show(place, staged.name, names, copies=False)
            place.point(staged.name)
            self.number, self._distrusts, self._hashed = staged.position.number, False, None
            if self._copies:
                show(place, staged.name, names, copies=True)
            hide(place, names)


def _content(folder: Folder, name: str) -> bytes:
    with InputFile(folder.path / name, folder.open(name, os.O_RDONLY, follow=True)) as file:
        return file.read(0, file.nbytes)


def _no_frame(*arguments: object) -> NoReturn:
    raise AssertionError("what is copied needs no frame")
