"""Where a checkpoint is made: ``<dst>.partial``, which one process at a time works in.

It holds ``lock``, ``journal.jsonl`` and ``result``, a file or a directory, which may be made in a staging directory of
its own beside it. The first line of the journal says what is
being made, each further line that one file of the result is whole and on the disk. When all are, `result` takes the
place of `dst` in one step, and the rest is removed. A run that is interrupted leaves `dst` as it was; the next one that
makes the same goes on with the files that the journal lists.

A part is one file of the result that is made on its own, in a staging directory with another name: so many processes
make parts at once. They stay there until a run that makes the whole result adopts them.

Before `result` takes the place of something, the journal is replaced by one line that says what is replaced by what.
So the next run knows which is which wherever this one is killed, and removes nothing else.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from .._ground.copies import not_copied
from .._ground.destination import Existing
from .._ground.filesystem import close, lock_now, lstat, mark_of, naming, remove_empty, rename_new, unlock, walk
from .access import access_of, give_access
from .local import OutputFile, sync_directory

if TYPE_CHECKING:
    from .._ground.destination import Destination
    from .access import Access

_SUFFIX = ".partial"
_LOCK, _JOURNAL, _NEXT, _RESULT, _OLD = "lock", "journal.jsonl", "journal.next", "result", "old"
_MAKING = f"{_RESULT}{_SUFFIX}"
_NAMES = {_LOCK, _JOURNAL, _NEXT, _RESULT, _MAKING, _OLD}
_OF_PARENT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}
"""Errors of making a directory that lie with the one it is to stand in."""
_LOCK_TEXT = b"tensorwire works here; see docs/checkpoints.md\n"


class Staging:
    """Use it in a ``with`` statement; without `commit` nothing happens to the destination.

    Attributes:
        result: path of the file or directory in the making.
        finished: what earlier runs have recorded, by path.
        existing: what stands at the destination and is to be replaced; None if nothing does.
        notices: what the user has to know of what stood at the destination.
    """

    __reduce_ex__ = not_copied("the lock of its directory", "make the result in one place")

    def __init__(self, destination: Destination, purpose: dict[str, Any], place: Path | None = None) -> None:
        """`place`: of the staging directory, in the directory of the destination; by default ``<dst>.partial``.

        `purpose` is what the result depends on; a journal with another purpose is of no use, and is removed. But one
        with `repeat` in its purpose holds the only record of files that have given way to finished ones: it stays, and
        `repeat` says how to go on.

        Raises:
            FileExistsError: something at the destination must stay, or the partial path is something else. On entering
                also: it holds the only record of something.
            BlockingIOError: another process works on the same destination.
        """
        destination.check()
        self._destination = destination
        self._dst = destination.path
        self._purpose = purpose
        self._partial = place or partial_path(self._dst)
        destination.check_no_source_in(self._partial)
        self._replacing: dict[str, Any] | None = None
        self.result = self._partial / _RESULT
        self.finished: dict[str, dict[str, Any]] = {}
        self.existing: Existing | None = None
        self.notices: list[str] = []

    def __enter__(self) -> Staging:
        self._lock = self._acquire()
        try:
            records = self._recover()
            self.existing = self._destination.check()  # no other process of ours changes it from here on
            self._open_journal(records)
        except BaseException:
            if not (self._partial / _JOURNAL).exists():  # nothing that a later run could use
                self._leave()
            unlock(self._lock)
            raise
        return self

    def access_of_existing(self) -> Access | None:
        """What the file allows that is to be replaced; None if there is none."""
        return None if self.existing is None else access_of(self._dst)

    def _acquire(self) -> int:
        """Make or join the partial directory, and lock it."""
        while True:
            try:
                self._partial.mkdir(0o700)
            except FileExistsError:
                self._check_owner()
            except OSError as error:
                place = self._dst.parent if error.errno in _OF_PARENT else self._partial
                raise type(error)(error.errno, error.strerror, str(place)) from error
            try:
                lock = self._join()
            except FileNotFoundError:  # another process that worked here is done
                continue
            if lock is not None:
                return lock

    def _check_owner(self) -> None:
        """Raise FileExistsError for what is no directory of ours. One that is gone by now raises nothing."""
        status = lstat(self._partial)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            raise self._foreign()
        if status.st_uid != os.geteuid() and status.st_uid != self._owner_of_new():
            # What its journal says would be done with our rights.
            text = "is in the way, and belongs to another user; move it if no process works in it"
            raise FileExistsError(errno.EEXIST, text, str(self._partial))

    def _join(self) -> int | None:
        """Lock the partial directory that is there. None if another process has locked and removed it meanwhile."""
        lock = self._open_lock()
        try:
            lock_now(lock, self._dst, "another process is making it; wait for it to end")
            # The lock counts only if the file is still the one that others will find.
            if not os.path.samestat(os.fstat(lock), (self._partial / _LOCK).lstat()):
                close(lock)
                return None
            text = os.pread(lock, len(_LOCK_TEXT) + 1, 0)
            if not text and _names(self._partial) == {_LOCK}:
                self._sign(lock)
            elif text != _LOCK_TEXT or not _is_all_ours(self._partial):
                raise self._foreign()
        except BaseException:
            close(lock)
            raise
        return lock

    def _open_lock(self) -> int:
        """The lock, which is made in a directory that is empty: a new one, or one whose maker was killed at once."""
        path = self._partial / _LOCK
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        names = _names(self._partial)
        if names:
            if _LOCK not in names or not stat.S_ISREG(path.lstat().st_mode):
                raise self._foreign()
            return os.open(path, flags)
        try:
            return os.open(path, flags | os.O_CREAT, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            with suppress(OSError):
                self._partial.rmdir()
            raise type(error)(error.errno, error.strerror, str(self._partial)) from error

    def _sign(self, lock: int) -> None:
        """Say in a new lock whose it is."""
        try:
            with naming(self._partial):
                os.write(lock, _LOCK_TEXT)
        except BaseException:
            _remove(self._partial / _LOCK)
            self._partial.rmdir()
            raise

    def _owner_of_new(self) -> int:
        """The owner of what we make here: some file systems give all they hold to one user."""
        with TemporaryFile(dir=self._dst.parent) as file:
            return os.fstat(file.fileno()).st_uid

    def _foreign(self) -> FileExistsError:
        text = "is in the way, and tensorwire did not make all of it; move it"
        return FileExistsError(errno.EEXIST, text, str(self._partial))

    def _recover(self) -> list[dict[str, Any]]:
        """The journal's records. Finishes or undoes a replacement that was interrupted."""
        path = self._partial / _JOURNAL
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        records: list[dict[str, Any]] = []
        with suppress(ValueError, RecursionError):  # what a crash has cut off counts for nothing
            records.extend(json.loads(line) for line in lines[:-1])
        if len(records) < len(lines) - 1 and b'"repeat"' in lines[0]:  # a crash leaves no whole line that is none
            text = f"holds the only record of what restores replaced files, and {_JOURNAL} in it is damaged; keep it"
            raise FileExistsError(errno.EEXIST, text, str(self._partial))
        if not all(isinstance(record, dict) for record in records):
            raise self._foreign()
        if not all(isinstance(record.get("path"), str) for record in records[1:]):
            raise self._foreign()
        if records and "replacing" in records[0]:
            self._replacing = records[0]["replacing"]
            try:
                old = Existing(**self._replacing["old"])
                outside = any(part in ("", ".", "..") for path in old.inside or () for part in path.split("/"))
            except (KeyError, TypeError, AttributeError):
                outside = True
            if outside:  # what it lists would be removed
                raise self._foreign()
            self._settle()
            return []
        return records

    def _settle(self) -> None:
        """Leave nothing here of a replacement: what is in our way is ours, or was replaced, or is kept."""
        assert self._replacing is not None
        new, old = self._replacing["new"], Existing(**self._replacing["old"])
        for place in (self.result, self._partial / _OLD):
            found, present = mark_of(place), mark_of(self._dst)
            kept = None
            if found == new:
                _remove(place)  # it has not come to it
            elif found == old.mark and present is None:
                rename_new(place, self._dst)
            elif found == old.mark and present == new:
                kept = self._destination.discard(place, old)
            elif found is not None:
                kept = self._destination.keep(place)
            self._note_kept(kept)
        self._replacing = None
        self.finished.clear()

    def _note_kept(self, kept: Path | None) -> None:
        if kept is not None:
            self.notices.append(f"kept beside {self._dst.name}: {kept}, where files came in while it was replaced")

    def _open_journal(self, records: list[dict[str, Any]]) -> None:
        if len(records) > 1 and records[0] == self._purpose:
            self.finished = {record["path"]: record for record in records[1:]}
            _open_up(self.result)
        else:
            if len(records) > 1 and "repeat" in records[0]:
                text = f"holds what restores files that were replaced; {_printable(records[0]['repeat'])}"
                raise FileExistsError(errno.EEXIST, text, str(self._partial))
            _remove(self.result)
            records = [self._purpose]
        self._journal = OutputFile(self._partial / _NEXT)
        self._append(records)
        (self._partial / _NEXT).replace(self._partial / _JOURNAL)  # what it tells is there at every moment

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(record) + "\n" for record in records)
        self._journal.write(self._journal.nbytes, text.encode())
        self._journal.sync()

    def record(self, path: str, facts: dict[str, Any]) -> None:
        """Note that a file of the result is whole; it must be synced."""
        self._append([{**facts, "path": path}])
        self.finished[path] = facts

    def hand_over(self, path: str, destination: Destination, existing: Existing | None) -> None:
        """Let one file of the result take its place before the others are made. It must be synced, and recorded if it
        is not the last one: the journal is on the disk before, and what stood there, which is `existing`, is gone."""
        sync_directory(self._partial)
        sync_directory(self._partial.parent)
        self._note_kept(destination.replace(self.result / path, existing, self._partial / _OLD))
        sync_directory(destination.path.parent)

    def adopt(self, paths: Iterable[str]) -> None:
        """Take over the parts of these paths that are finished. A part of another purpose is of no use, and is removed.

        Raises:
            BlockingIOError: another process makes one of them.
        """
        self.result.mkdir(0o700, exist_ok=True)
        for path in paths:
            part = part_of(self._destination, path)
            if not os.path.lexists(partial_path(part.path)):  # nor where such a name would be too long
                continue
            with Staging(part, self._purpose) as theirs:
                if path in theirs.finished and (theirs.result / path).is_file():
                    place = self.result / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    (theirs.result / path).replace(place)
                    self.record(path, theirs.finished[path])
                theirs.drop()

    def commit(self, paths: Collection[str] | None, like: Path | None = None) -> None:
        """Put the result in the place of `dst`: a directory of these files, or with None a single file.

        Args:
            paths: relative; one with a slash at the end is an empty directory, which is made.
            like: a directory that gives the directories of the result their permissions.

        Raises:
            FileExistsError: something came to `dst` meanwhile; it stays, and the result waits for the next run.
        """
        if paths is not None:
            self._finish_directories(set(paths), like)
        existing = self._destination.confirm(self.existing)
        if existing is not None:
            self._replacing = {"new": mark_of(self.result), "old": existing._asdict()}
            self._journal.truncate(0)
            self._append([{"replacing": self._replacing}])
        sync_directory(self._partial)
        kept = self._destination.replace(self.result, existing, self._partial / _OLD)
        self.finished.clear()
        self._note_kept(kept)
        if like is not None:
            give_access(self._dst, access_of(like))
        sync_directory(self._dst.parent)

    def _finish_directories(self, paths: set[str], like: Path | None) -> None:
        """Drop what an earlier run has left and this one does not want, make empty directories, sync all."""
        for directory, _, names in os.walk(self.result, topdown=False):
            place = Path(directory)
            for name in names:
                if (place / name).relative_to(self.result).as_posix() not in paths:
                    (place / name).unlink()
            if place != self.result and not any(place.iterdir()):
                place.rmdir()
        for path in paths:
            if path.endswith("/"):
                (self.result / path).mkdir(parents=True, exist_ok=True)
        for directory, _, _ in os.walk(self.result, topdown=False):
            place = Path(directory)
            sync_directory(place)
            if like is not None:
                source = like / place.relative_to(self.result)
                access = access_of(source if source.is_dir() else like)
                if place == self.result:  # which is to be renamed
                    access = access._replace(mode=access.mode | 0o700)
                give_access(place, access)

    def drop(self) -> None:
        """The result is needed no longer: it is whole elsewhere."""
        self.finished.clear()

    def __exit__(self, *error: object) -> None:
        self._journal.close()
        try:
            if self._replacing is not None:
                self._settle()
            self._leave()
        finally:
            unlock(self._lock)

    def _leave(self) -> None:
        """Remove the partial directory unless it holds what a later run can use."""
        if self.finished:
            return
        try:
            self._clear()
        except OSError:  # once more: a single error is no reason to leave anything
            self._clear()

    def _clear(self) -> None:
        # What is large first, and the lock last: the next run finds the rest should this one be killed.
        for name in (_RESULT, _MAKING, _OLD, _NEXT, _JOURNAL, _LOCK):
            _remove(self._partial / name)
        remove_empty(self._partial)  # what another process has put in stays


def _printable(text: object) -> str:
    """A text of a journal, which may come from anywhere, in a line."""
    return "".join(char if char.isprintable() else "?" for char in f"{text!s:.500}")


def part_of(destination: Destination, path: str) -> Destination:
    """Where a part is made: beside the whole result, under a name that any path gives. Files of the source are not
    looked for in it, since with many parts of many files that takes minutes."""
    name = f"{destination.path.name}.part-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    return replace(destination, path=destination.path.with_name(name), source_files=())


def partial_path(path: Path) -> Path:
    """The staging directory of a destination."""
    return path.with_name(path.name + _SUFFIX)


def is_staging(path: Path) -> bool:
    """Whether a directory is one in which a run works, or has left what it made: by its name and all that it holds."""
    if not path.name.endswith(_SUFFIX) or path.is_symlink() or not _is_all_ours(path):
        return False
    names = _names(path)
    if _LOCK not in names:
        return not names
    with naming(path):
        text = (path / _LOCK).read_bytes()
    return text == _LOCK_TEXT or (not text and names == {_LOCK})


def has_finished(path: Path) -> bool:
    """Whether a path is a staging directory whose journal tells of a finished file."""
    try:
        return is_staging(path) and (path / _JOURNAL).read_bytes().count(b"\n") > 1
    except FileNotFoundError:
        return False


def left_over(root: Path) -> set[str]:
    """What runs that were killed have left in a directory: relative paths, those of directories with a slash at the
    end."""
    found = set()
    for path, status in walk(root):
        if path.endswith(_SUFFIX) and stat.S_ISDIR(status.st_mode) and _is_abandoned(root / path):
            found.add(f"{path}/")
            for inner, entry in walk(root / path):
                found.add(f"{path}/{inner}" + "/" * stat.S_ISDIR(entry.st_mode))
    return found


def _is_abandoned(path: Path) -> bool:
    """Whether a directory is a staging directory in which no process works."""
    if not is_staging(path):
        return False
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        lock_now(lock, path, "")
    except OSError:
        return False
    finally:
        close(lock)
    return True


def _names(directory: Path) -> set[str]:
    """What a directory holds; FileNotFoundError if there is none."""
    return {entry.name for entry in directory.iterdir()}


def _is_all_ours(partial: Path) -> bool:
    """Names and kinds alone; a link in the result would lead us out of it."""
    for path, status in walk(partial):
        directory = stat.S_ISDIR(status.st_mode)
        first, _, inside = path.partition("/")
        if first == _OLD and inside:  # what came into what stood at the destination
            continue
        if first not in _NAMES or not (directory or stat.S_ISREG(status.st_mode)):
            return False
        if directory and first in (_LOCK, _JOURNAL, _NEXT):
            return False
    return True


def _remove(path: Path) -> None:
    """Remove what this module has made."""
    if path.is_dir() and not path.is_symlink():
        _open_up(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _open_up(path: Path) -> None:
    """Let us write to directories that an earlier run has given the permissions of read-only ones."""
    for directory, _, _ in os.walk(path):
        Path(directory).chmod(0o700)
