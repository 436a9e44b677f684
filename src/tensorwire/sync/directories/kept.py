"""What a follower of a directory keeps in ``.tensorwire-sync``, and what serves in the directory.

    lock                    held inside each call
    v000017-RANDOM          a version, made whole and never written again: its files, and version.json, the note
    current                 a link to the one that serves; where there are no links, a file with its name
    in_place.json           the note of files that stand in the directory itself, and are written into

What is done here goes below the descriptors of the directory and of this folder, by names of one form, and follows no
link. So what a folder from elsewhere holds may be hashed in vain, but leads to no other place.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..._ground.filesystem import close, lock_now, lstat, mark, remove_empty, unlock
from ..._ground.folder import Folder
from ...checkpoint.directory.config_and_index import index_in, weight_map
from ...checkpoint.directory.paths import SYNC_DIRECTORY, is_index, is_safetensors
from ...checkpoint.directory.shards import WHOLE_NAME
from ...errors import BaseMismatchError, ErrorContext, FormatError
from ...files.json_object import load
from ...files.reader import StoredFile
from ...storage.local import InputFile
from ..small_files import is_small
from ..versions import INDEX_NAME, Position, Tensor, state_of
from .note import Note, read_note

if TYPE_CHECKING:
    from .making import Checkpoint, Plan
    from .note import Marks

CURRENT, NOTE_NAME, IN_PLACE_NAME = "current", "version.json", "in_place.json"
LINK_PREFIX = f"{SYNC_DIRECTORY}/{CURRENT}/"
"""Where the links lead that stand in the directory; a name follows."""

_LOCK = "lock"
_VERSION = re.compile(r"(?:v[0-9]{6,18}|seed)-[0-9a-f]{16}")
_TEMPORARY = re.compile(r"new-[0-9a-f]{16}")
_NO_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_UNREADABLE = {errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO}
"""Errors of a name that has no regular file."""


class OpenDirectory:
    """A directory that is open, and its folder of ours, locked; None if there is none."""

    def __init__(self, root: Folder, own: Folder | None) -> None:
        self.root, self._own = root, own

    @property
    def own(self) -> Folder:
        if self._own is None:
            text = "the folder of its follower is gone; stage again"
            raise OSError(errno.EBUSY, text, str(self.root.path / SYNC_DIRECTORY))
        return self._own

    def current(self) -> str | None:
        """The folder of the version that serves."""
        if self._own is None:
            return None
        name = self._own.target_of(CURRENT) or _text(self._own, CURRENT)
        return name if _VERSION.fullmatch(name) and self._is_folder(name) else None

    def _is_folder(self, name: str) -> bool:
        status = self.own.status(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def versions(self) -> list[str]:
        """All folders of versions."""
        names = [] if self._own is None else [name for name in self._own.names() if _VERSION.fullmatch(name)]
        return [name for name in names if self._is_folder(name)]

    def has(self, name: str) -> bool:
        """Whether some version has the file that stands under a name in the directory: see `has_in`."""
        return any(self.has_in(version, name) for version in self.versions())

    def has_in(self, version: str, name: str) -> bool:
        """Whether what a name in the directory leads to is a second name of the file of a version; or was copied from
        it or to it, which keeps the time."""
        with self.own.enter(version) as folder:
            ours, found = folder.status(name), _status_behind(self.root, name)
        if ours is None or found is None or not stat.S_ISREG(ours.st_mode) or not stat.S_ISREG(found.st_mode):
            return False
        same = (ours.st_size, ours.st_mtime_ns) == (found.st_size, found.st_mtime_ns)
        return same or os.path.samestat(ours, found)

    def point(self, name: str) -> None:
        """Have a version serve: one rename."""
        new = temporary()
        if self.has_links():
            self.own.make_link(new, name)
        else:
            self.own.write(new, name.encode())
        self.own.move(new, self.own, CURRENT)

    def has_links(self) -> bool:
        """Whether the file system has symbolic links."""
        new = temporary()
        try:
            self.own.make_link(new, new)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        self.own.remove(new)
        return True

    def clean(self) -> None:
        """Remove the versions that do not serve, and what killed processes have left. What cannot be removed is in no
        version's way: a warning tells of it."""
        self.own.sync()  # the last commit first: after a power cut nothing may serve that is gone
        current = self.current()
        stale = CURRENT if current is None else IN_PLACE_NAME  # a copy that followed links has a folder `current`
        for name in self.own.names():
            if name == stale or (name != current and (_VERSION.fullmatch(name) or _TEMPORARY.fullmatch(name))):
                gone = temporary()
                try:
                    self.own.move(name, self.own, gone)  # all at once, so that no reader lists a part of its files
                    self.own.remove_folder(gone)
                except OSError as error:
                    warnings.warn(f"an old version cannot be removed: {error}", RuntimeWarning, stacklevel=4)

    @contextmanager
    def making(self, name: str) -> Iterator[Folder]:
        """A new folder, on the disk in the end; after an error nothing of it stays, since the disk may be full."""
        try:
            with self.own.enter(name, make=True) as folder:
                yield folder
                folder.sync()
            self.own.sync()
        except BaseException:
            self.own.remove_folder(name)
            raise

    def note_in_place(self) -> Note | None:
        return None if self._own is None else read_note(self._own, IN_PLACE_NAME)

    def noted(self, note: Note | None) -> list[str]:
        """The files of the directory that a note in place speaks of, and links to such: perhaps written to since, or
        copied, which keeps the time. Another file that has the name by now is not ours."""
        return [] if note is None else [name for name, made in note.marks.items() if _is_of(self.root, name, made)]

    def write_note_in_place(self, note: Note) -> None:
        new = temporary()
        self.own.write(new, note.dump())
        self.own.move(new, self.own, IN_PLACE_NAME)
        self.own.sync()


def _text(folder: Folder, name: str) -> str:
    """A short text in a file; "" without one."""
    try:
        descriptor = folder.open(name, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.pread(descriptor, 100, 0).decode(errors="replace")
    except OSError:  # a directory
        return ""
    finally:
        close(descriptor)


def temporary() -> str:
    """A name of something that has another one soon."""
    return f"new-{secrets.token_hex(8)}"


@contextmanager
def entered(root: Path, *, make: bool) -> Iterator[OpenDirectory | None]:
    """A directory, locked if it has a folder of ours or with `make` gets one; None if it is not there. After an error
    nothing stays that was made for nothing.

    Raises:
        BlockingIOError: another follower works in it.
        FileExistsError: what has the name of our folder is none.
    """
    with ExitStack() as stack:
        is_there = root.exists()
        if not make and not is_there:
            yield None
            return
        root.mkdir(parents=True, exist_ok=True)
        folder = stack.enter_context(Folder(root))
        is_ours = folder.status(SYNC_DIRECTORY) is not None
        if not make and not is_ours:
            yield OpenDirectory(folder, None)
            return
        own = stack.enter_context(folder.enter(SYNC_DIRECTORY, make=make))
        lock = own.open(_LOCK, os.O_RDWR | os.O_CREAT)
        stack.callback(unlock, lock)
        lock_now(lock, root, "another follower works in this directory; end one of the two")
        try:
            yield OpenDirectory(folder, own)
        except BaseException:
            if not is_ours and own.names() == [_LOCK]:
                folder.remove_folder(SYNC_DIRECTORY)
                if not is_there:
                    remove_empty(root)
            raise


@dataclass(frozen=True)
class Serving:
    """The files that serve.

    Attributes:
        name: of their folder; None if they stand in the directory itself.
        folder: where they are.
        files, indexes, small: their names.
        note: what was written down of them.
        is_ours: whether a follower has made them, or a version of the store was found in them before.
    """

    name: str | None
    folder: Folder
    files: Sequence[str]
    indexes: Sequence[str]
    note: Note | None
    is_ours: bool
    small: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return [*self.files, *self.indexes, *self.small]

    def marks(self) -> dict[str, str | None]:
        return marks_of(self.folder, self.names, follow=self.name is None)

    @contextmanager
    def opened(self) -> Iterator[Checkpoint]:
        """The files. One of ours that cannot be read is left out: its tensors are made anew.

        Raises:
            FileExistsError: one that is not ours is compressed, or not there.
            FormatError: one that is not ours is damaged.
        """
        with ExitStack() as stack:
            found: dict[str, StoredFile] = {}
            for name in self.files:
                path = self.folder.path / name
                try:
                    number = self.folder.open(name, os.O_RDONLY, follow=self.name is None)
                    stored = stack.enter_context(StoredFile(InputFile(path, number)))
                except (FormatError, OSError) as error:
                    if self.is_ours and (isinstance(error, FormatError) or error.errno in _UNREADABLE):
                        continue
                    if isinstance(error, FileNotFoundError):
                        text = "is named by an index, and is not there; remove the index, or name another directory"
                        raise FileExistsError(errno.EEXIST, text, str(path)) from None
                    raise
                if stored.compressed:
                    text = "is compressed; a follower needs plain files, so name another directory"
                    raise FileExistsError(errno.EEXIST, text, str(path))
                found[name] = stored
            yield found


def end(folder: Folder, names: Sequence[str], position: Position) -> Marks:
    """Write the note of a folder whose files are whole, and give their marks."""
    marks = marks_of(folder, names)
    folder.write(NOTE_NAME, Note(position, marks).dump())
    return marks


@contextmanager
def serving(place: OpenDirectory) -> Iterator[Serving]:
    """What serves in a directory: a version of ours, files that are written into, or what stood there before."""
    name, note = place.current(), place.note_in_place()
    noted = place.noted(note)
    if name is not None:
        with place.own.enter(name) as folder:
            names = [each for each in folder.names() if each != NOTE_NAME and _has_file(folder, each)]
            yield _of(name, folder, names, read_note(folder, NOTE_NAME))
    elif noted:
        yield _of(None, place.root, noted, note)
    else:
        files, indexes = _seed(place.root)
        yield Serving(None, place.root, files, indexes, None, is_ours=all(place.has(name) for name in files))


def _of(name: str | None, folder: Folder, names: Sequence[str], note: Note | None) -> Serving:
    files, indexes = list(filter(is_safetensors, names)), list(filter(is_index, names))
    return Serving(name, folder, files, indexes, note, is_ours=True, small=list(filter(is_small, names)))


def _has_file(folder: Folder, name: str) -> bool:
    status = folder.status(name)
    return status is not None and stat.S_ISREG(status.st_mode)


def _is_of(root: Folder, name: str, made: str | None) -> bool:
    """Whether a name, which may be any text, is that of a file with the inode, or else the time and size, of a mark."""
    status = None if "/" in name else _status_behind(root, name)
    if made is None or status is None or not stat.S_ISREG(status.st_mode):
        return False
    ours, found = made.partition(" "), mark(status).partition(" ")
    return ours[0] == found[0] or ours[2] == found[2]


def _status_behind(folder: Folder, name: str) -> os.stat_result | None:
    """What stands under a name, links followed; None if they lead nowhere, or no file can have the name."""
    with suppress(OSError, ValueError):
        return folder.status(name, follow=True)
    return None


def _seed(root: Folder) -> tuple[list[str], list[str]]:
    """The files of a checkpoint that stood there before, and its index. Others may stand beside it: an adapter, or
    the files of another index. Links of ours that lead nowhere are none."""
    names = [name for name in root.names() if not (root.target_of(name) or "").startswith(LINK_PREFIX)]
    if WHOLE_NAME in names:
        return [WHOLE_NAME], []  # as Transformers does, whatever an index says
    indexes = [name for name in names if is_index(name)]
    if INDEX_NAME in indexes:
        indexes = [INDEX_NAME]
    if len(indexes) > 1:
        text = f"has several indexes: {', '.join(indexes)}; leave one, or name another directory"
        raise FileExistsError(errno.EEXIST, text, str(root.path))
    if not indexes:
        return [name for name in names if is_safetensors(name) and not name.startswith("adapter")], []
    place = root.path / indexes[0]
    with ErrorContext(file=place), InputFile(place, root.open(indexes[0], os.O_RDONLY, follow=True)) as file:
        files = sorted(set(weight_map(load(index_in(file))).values()))
    if any("/" in name for name in files):
        text = "names files in folders; move them up beside it, or name another directory"
        raise FileExistsError(errno.EEXIST, text, str(place))
    return files, indexes


def marks_of(folder: Folder, names: Sequence[str], *, follow: bool = False) -> dict[str, str | None]:
    """By file the mark of what stands there, or behind a link that is to be followed: see `filesystem.mark_of`."""
    found = {name: folder.status(name, follow=follow) for name in names}
    return {name: None if status is None else mark(status) for name, status in found.items()}


class Followed:
    """A directory that follows a publisher: what holds for all forms of it.

    Attributes:
        number: of the version that serves; None if it is none, or before the first look.
    """

    def __init__(self, root: Path, threads: int, is_published: Callable[[str], bool]) -> None:
        """
        Args:
            is_published: whether the store has a version of this state.

        Raises:
            FileExistsError: it is a file or a link that leads nowhere, or a name that a version needs is taken.
            BlockingIOError: another follower works in it.
        """
        if lstat(root) is not None and not root.is_dir():
            raise FileExistsError(errno.EEXIST, "is no directory; name another one", str(root))
        self._root, self._threads, self._is_published = root, threads, is_published
        self.number: int | None = None
        self._distrusts = False
        self._hashed: tuple[Marks, Position] | None = None
        with self._entered() as place:
            if place is not None:
                with serving(place) as found:
                    noted = known(found, found.marks())
                    self.number = None if noted is None else noted.number

    @property
    def title(self) -> str:
        return str(self._root)

    def position(self) -> Position:
        """What serves. Files that were written to since the commit are hashed."""
        with self._entered() as place:
            if place is None:
                return _NOTHING
            with serving(place) as found:
                return self._position_of(found)

    def forget(self) -> None:
        """What serves is not what was written down: hash it."""
        self._distrusts, self._hashed = True, None

    @contextmanager
    def _entered(self, *, make: bool = False) -> Iterator[OpenDirectory | None]:
        with entered(self._root, make=make) as place:
            yield place

    def _position_of(self, found: Serving) -> Position:
        marks = found.marks()
        noted = known(found, marks)
        if noted is None or self._distrusts:
            if self._hashed is None or self._hashed[0] != marks:
                with found.opened() as files:
                    self._hashed = marks, _hashed(files, self._threads)
            if noted is None or noted.tensors != self._hashed[1].tensors:
                noted = self._hashed[1]
        self.number = noted.number
        return noted

    def _check_begins(self, found: Serving, goal: Position, plan: Plan) -> None:
        """Raise BaseMismatchError if what serves is not what a plan begins with."""
        held = self._position_of(found).tensors
        if any(not links and held.get(name) != goal.tensors[name] for name, links in plan.items()):
            raise BaseMismatchError("the directory was written to meanwhile", file=self._root)

    def _check_published(self) -> None:
        """Raise FileExistsError for a checkpoint that no follower has made, before anything is made or changed."""
        with self._entered() as place:
            if place is None:
                return
            with serving(place) as found:
                if not found.is_ours and not self._is_published(state_of(self._position_of(found).tensors)):
                    text = "holds a checkpoint that the store does not have; name another directory, or empty this one"
                    raise FileExistsError(errno.EEXIST, text, str(self._root))


_NOTHING = Position(None, "", {})


def known(found: Serving, marks: Marks) -> Position | None:
    """What the note says, if the files are those that it speaks of."""
    return None if found.note is None or found.note.marks != marks else found.note.position


def _hashed(files: Checkpoint, threads: int) -> Position:
    tensors: dict[str, Tensor] = {}
    for stored in files.values():
        for tensor in stored.tensors.values():
            found = stored.hash_content(tensor, threads)
            tensors[tensor.name] = Tensor(*stored.layout(tensor.name)[:2], found)
    return Position(None, "", tensors)
