"""A directory of plain safetensors files that follows a publisher, and is written into: the disk holds no second copy.

What changes waits in memory, compressed, and a commit writes it into the files that stand. Before its first byte the
note no longer says what they hold, so after a crash they are hashed. A file with a second name (a hard link) is
refused, since that name's content would change too. Files with other tensors than before, and those that take the
place of links, are made as a version in a folder, which a commit has serve, and then takes over: as it does with the
version of a follower of another form.
"""

from __future__ import annotations

import errno
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..versions import INDEX_NAME, Position
from .beside import check_small, has_content, write_over, write_small
from .kept import CURRENT, Followed, OpenDirectory, end, known, marks_of, serving, temporary
from .making import Writer, changes, holds, index_of, new_layout
from .note import Note
from .shown import check_free, hide, show

if TYPE_CHECKING:
    from ..frames import Fetched, Frames
    from .kept import Serving
    from .making import Plan
    from .note import Marks


class _Waiting(NamedTuple):
    """A version that is to be written into the files that stand.

    Attributes:
        position, plan: as in `InPlaceTarget.stage`.
        fetched: what `plan` needs, by tensor and version.
        changed: files of which a tensor changes.
        small: the content of the small files that change.
        names: of all small files.
        marks: of all files.
    """

    position: Position
    plan: Plan
    fetched: Mapping[tuple[str, int], Fetched]
    changed: Sequence[str]
    small: Mapping[str, bytes]
    names: Sequence[str]
    marks: Marks


class _New(NamedTuple):
    """A version with other files, which lie in a folder of ours.

    Attributes:
        position: as in `InPlaceTarget.stage`.
        name: of the folder.
        new: marks of its files.
        marks: of the files that stand.
    """

    position: Position
    name: str
    new: Marks
    marks: Marks


class InPlaceTarget(Followed):
    """The files of a directory. The lock is held inside each call, and no longer."""

    def __init__(self, root: Path, threads: int, is_published: Callable[[str], bool]) -> None:
        self._staged: _Waiting | _New | None = None
        super().__init__(root, threads, is_published)

    @property
    def staged(self) -> Position | None:
        return None if self._staged is None else self._staged.position

    @contextmanager
    def _entered(self, *, make: bool = False) -> Iterator[OpenDirectory | None]:
        """A directory of another form is made one of this form first, and what a killed process has left is finished
        by that."""
        with super()._entered(make=make) as place:
            version = None if place is None else place.current()
            if place is not None and version is not None:
                _take_over(place, version)
            yield place

    def stage(self, goal: Position, plan: Plan, frames: Frames) -> None:
        """Keep the frames of what changes; make files of which the tensors are others.

        Raises:
            BaseMismatchError: what is there is not what `plan` begins with.
            FileExistsError: a checkpoint stands there that the store does not have, or a name is taken.
            OSError: a file that changes has a second name.
        """
        self._staged = None
        self._check_published()
        with self._entered(make=True) as place:
            assert place is not None
            place.clean()
            check_small(place, frames)
            with serving(place) as found, found.opened() as current:
                marks = found.marks()
                self._check_begins(found, goal, plan)
                headers = {file: stored.header for file, stored in current.items()}
                if holds(headers, goal.tensors) and not any(place.root.target_of(name) for name in found.names):
                    changed = [file for file, header in headers.items() if changes(header, plan)]
                    small = {
                        name: frames.fetch_small(name)
                        for name, each in frames.small.items()
                        if not has_content(place.root, name, each)
                    }
                    _check_one_name(found, [*changed, *small])
                    links = ((name, link) for name, links in plan.items() for link in links)
                    fetched = {(name, link.number): frames.fetch(name, link) for name, link in links}
                    self._staged = _Waiting(goal, plan, fetched, changed, small, list(frames.small), marks)
                    return
                layout = new_layout(goal.tensors)
                indexes = [INDEX_NAME] if len(layout) > 1 else []
                names = [*layout, *indexes]
                check_free(place, [each for each in names if each not in found.names])
                writer = Writer(current, goal.tensors, plan, frames.fetch, self._threads)
                name = f"v{goal.number:06d}-{secrets.token_hex(8)}"
                with place.making(name) as folder:
                    for file, header in layout.items():
                        writer.write(folder, file, header)
                    for index in indexes:
                        folder.write(index, index_of(layout))
                    names += write_small(found, folder, frames)
                    self._staged = _New(goal, name, end(folder, names, goal), marks)

    def commit(self) -> None:
        """Decode and write what changes, or move new files to their places.

        Raises:
            OSError: the directory was written to since; nothing was changed. Or the disk fails.
            BaseMismatchError: a file does not hold what it held.
        """
        staged, self._staged = self._staged, None
        assert staged is not None
        with self._entered() as place:
            if place is None:
                raise OSError(errno.EBUSY, "is gone; stage again", str(self._root))
            with serving(place) as found:
                if found.marks() != staged.marks:
                    text = "a file of it was written to since a version was staged; stage again"
                    raise OSError(errno.EBUSY, text, str(self._root))
                self.number, self._distrusts, self._hashed = None, False, None
                if isinstance(staged, _New):
                    self._move(place, staged)
                else:
                    self._write(place, found, staged)
        self.number = staged.position.number

    def _write(self, place: OpenDirectory, found: Serving, staged: _Waiting) -> None:
        _check_one_name(found, [*staged.changed, *staged.small])
        added = {name: temporary() for name in staged.small if name not in found.names}
        check_free(place, list(added))
        for name, new in added.items():
            place.own.write(new, staged.small[name])
        new_marks = zip(added, marks_of(place.own, list(added.values())).values(), strict=True)
        place.write_note_in_place(Note(None, {**staged.marks, **dict(new_marks)}))
        with found.opened() as current:
            fetched = staged.fetched
            writer = Writer(
                current,
                staged.position.tensors,
                staged.plan,
                lambda name, link: fetched[name, link.number],
                self._threads,
            )
            for file in staged.changed:
                writer.write_into(place.root, file, current[file].header)
        for name, content in staged.small.items():
            if name in added:
                place.own.move(added[name], place.root, name)
            else:
                write_over(place.root, name, content)
        for name in set(found.small).difference(staged.names):
            place.root.remove(name)
        names = [*found.files, *found.indexes, *staged.names]
        place.write_note_in_place(Note(staged.position, marks_of(place.root, names, follow=True)))

    def _move(self, place: OpenDirectory, staged: _New) -> None:
        names = list(staged.new)
        if staged.name not in place.versions():
            raise OSError(errno.EBUSY, "another follower has worked here since; stage again", str(self._root))
        with place.own.enter(staged.name) as folder:
            if marks_of(folder, names) != staged.new:
                raise OSError(errno.EBUSY, "was written to since it was staged; stage again", str(folder.path))
        place.write_note_in_place(Note(None, staged.marks))  # so what stands is ours, and may be replaced
        check_free(place, names)
        place.point(staged.name)
        _take_over(place, staged.name)


def _take_over(place: OpenDirectory, version: str) -> None:
    """Have the files of the version that serves stand in the directory itself. Until `current` is gone they are what
    a follower with copies has put there, so a process that is killed leaves a form that any follower knows."""
    with serving(place) as found:
        names, marks = found.names, found.marks()
        position = known(found, marks)
    show(place, version, names, copies=True)
    hide(place, names)
    place.root.sync()
    place.write_note_in_place(Note(position, marks))
    place.own.remove(CURRENT)
    place.clean()


def _check_one_name(found: Serving, names: Sequence[str]) -> None:
    for name in names:
        status = found.folder.status(name)
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            text = "has a second name (a hard link) whose content would change too; follow without in_place"
            raise OSError(errno.EMLINK, text, str(found.folder.path / name))
