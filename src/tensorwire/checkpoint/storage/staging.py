"""Where a checkpoint is made: ``<dst>.partial``, which one process at a time works in.

It holds ``lock``, ``journal.jsonl`` and ``result``, a file or a directory. The first line of the journal says what is
being made, each further line that one file of the result is whole and on the disk. When all are, `result` takes the
place of `dst` in one step, and the rest is removed. A run that is interrupted leaves `dst` as it was; the next one that
makes the same goes on with the files that the journal lists.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import OutputFile, sync_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_LOCK, _JOURNAL, _RESULT, _OLD = "lock", "journal.jsonl", "result", "old"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Workplace:
    """Use it in a ``with`` statement; without `commit` nothing happens to `dst`.

    Attributes:
        result: path of the file or directory in the making.
        finished: what earlier runs have recorded, by path.
    """

    def __init__(self, dst: Path, purpose: dict[str, Any], *, force: bool) -> None:
        """`purpose` is what the result depends on; a journal with another purpose is of no use.

        Raises:
            FileExistsError: `dst` exists and `force` is False, or the partial path is something else.
            BlockingIOError: another process works on the same `dst`.
        """
        self._dst = dst
        self._force = force
        self._purpose = purpose
        self._partial = dst.with_name(dst.name + ".partial")
        self.result = self._partial / _RESULT
        self.finished: dict[str, dict[str, Any]] = {}
        self._refuse_existing()

    def __enter__(self) -> Workplace:
        self._lock = self._acquire()
        try:
            self._recover()
            self._open_journal()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _refuse_existing(self) -> None:
        if not self._force and os.path.lexists(self._dst):
            raise FileExistsError(errno.EEXIST, "it exists; force replaces it", str(self._dst))

    def _acquire(self) -> int:
        path = self._partial / _LOCK
        while True:
            self._make_partial()
            try:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # its owner has just removed the directory
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The lock counts only if the file is still the one that others will find.
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return lock
            except FileNotFoundError:
                pass
            except BlockingIOError:
                os.close(lock)
                raise BlockingIOError(
                    errno.EWOULDBLOCK, "another process is making it; wait for it to end", str(self._dst)
                ) from None
            os.close(lock)

    def _make_partial(self) -> None:
        try:
            self._partial.mkdir()
        except FileExistsError:
            with suppress(FileNotFoundError):
                names = [entry.name for entry in self._partial.iterdir()] if self._partial.is_dir() else ["."]
                if _LOCK in names or not names:
                    return
                raise FileExistsError(
                    errno.EEXIST, "it is in the way and was not made by tensorwire; remove it", str(self._partial)
                ) from None

    def _recover(self) -> None:
        """Finish or undo what `_replace` could not do in one step."""
        old = self._partial / _OLD
        if os.path.lexists(old):
            if os.path.lexists(self._dst):
                _remove(old)
            else:
                old.rename(self._dst)
        self._refuse_existing()  # it may have appeared while we waited for nothing but the lock

    def _open_journal(self) -> None:
        path = self._partial / _JOURNAL
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        records: list[dict[str, Any]] = []
        with suppress(ValueError):  # what a crash has cut off counts for nothing
            records.extend(json.loads(line) for line in lines[:-1])
        if records and records[0] == self._purpose:
            self.finished = {record["path"]: record for record in records[1:]}
        else:
            _remove(self.result)
            records = [self._purpose]
        self._journal = OutputFile(path)
        self._append(records)

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(record) + "\n" for record in records)
        self._journal.write(self._journal.nbytes, text.encode())
        self._journal.sync()

    def record(self, path: str, facts: dict[str, Any]) -> None:
        """Note that a file of the result is whole; it must be synced."""
        self._append([{**facts, "path": path}])
        self.finished[path] = facts

    def commit(self, paths: Collection[str] | None) -> None:
        """Put the result in the place of `dst`: a directory of these files, or with None a single file."""
        if paths is not None:
            self._sync_directories(set(paths))
        self._refuse_existing()
        # From here on `result` may be the old checkpoint, which no journal must vouch for.
        _remove(self._partial / _JOURNAL)
        sync_directory(self._partial)
        _replace(self.result, self._dst, self._partial / _OLD)
        sync_directory(self._dst.parent)
        self.finished.clear()

    def _sync_directories(self, paths: set[str]) -> None:
        """Sync the directories of the result, and drop what an earlier run has left and nobody wants now."""
        for directory, _, names in os.walk(self.result, topdown=False):
            for name in names:
                location = Path(directory, name)
                if location.relative_to(self.result).as_posix() not in paths:
                    location.unlink()
            if not any(Path(directory).iterdir()) and Path(directory) != self.result:
                Path(directory).rmdir()
            else:
                sync_directory(Path(directory))

    def __exit__(self, *error: object) -> None:
        self._journal.close()
        try:
            if not self.finished:  # nothing that a later run could use
                for name in (_RESULT, _OLD, _JOURNAL, _LOCK):
                    _remove(self._partial / name)
                self._partial.rmdir()
        finally:
            os.close(self._lock)


def _replace(new: Path, dst: Path, old: Path) -> None:
    """Rename `new` to `dst`. What was there before is gone afterwards, and not a moment before."""
    if not os.path.lexists(dst) or not (dst.is_dir() or new.is_dir()):
        new.replace(dst)
    elif _exchange(new, dst):
        _remove(new)
    else:
        dst.rename(old)
        new.rename(dst)
        _remove(old)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step; False where the platform cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(b))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
