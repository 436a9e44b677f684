"""A result on its way to a store: made on this machine, then put there object by object, the one that counts last.

A store can neither rename nor replace a folder in one step. So readers go by the last object: the manifest, or an
index. What has been put stands in the journal of the staging directory, and the next run goes on behind it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._ground.destination import Destination
from .._ground.filesystem import mark_of, remove_empty
from .local import OutputFile
from .remote import Status, begin, clear_errors
from .staging import Staging

if TYPE_CHECKING:
    from .locations import Location
    from .progress import Meter
    from .remote import RemotePath

_BEGUN = "://"  # no path of a result
_POLL_SECONDS = 0.2


class Upload:
    """Where a result is to stand in a store.

    Attributes:
        target: the object or folder.
        place: the path at which the result is made on this machine.
    """

    def __init__(self, target: RemotePath, *, force: bool, owned: Callable[[Location], Collection[str]]) -> None:
        """`owned` says what gives way to the result, as `Destination` asks for it.

        Raises:
            OSError: there is no room of our own in the directory for temporary files.
        """
        self.target = target
        self.place = _workspace(target) / (target.name or "result")
        self._force, self._owned = force, owned
        self._old: set[str] = set()

    def check(self, work: Staging, *, is_directory: bool) -> None:
        """Look at what stands there before the work. A run of ours that was interrupted has put what it had begun.

        Raises:
            FileExistsError: something stands there that must stay; the message says why and what to do.
        """
        if not self.target.exists() or _BEGUN in work.finished:
            return
        if self.target.is_dir() != is_directory:
            kinds = ("a folder", "an object") if self.target.is_dir() else ("an object", "a folder")
            raise self._refusal(f"is {kinds[0]}, and the result is {kinds[1]}")
        owned = self._owned(self.target)
        if is_directory:
            self._old = {place.relative_to(self.target).as_posix() for place in self.target.files()}
            if others := sorted(self._old - set(owned)):
                raise self._refusal(f"holds an object that the result does not replace: {others[0]!r}")
        if not self._force:
            raise self._refusal("already exists; pass force=True to replace it")

    def put(self, work: Staging, paths: Sequence[str], first_gone: Collection[str], meter: Meter) -> None:
        """Put the result there, and drop it here.

        Args:
            paths: of its files, the one by which readers go last; of a single file the empty path.
            first_gone: what old readers go by, which is removed before the first object is put.

        Raises:
            OSError: the store refuses, or has other bytes than were sent.
            FileExistsError: another process has put the last object meanwhile.
        """
        if _BEGUN not in work.finished:
            for path in sorted(self._old & set(first_gone)):
                remove(self.target / path)
            work.record(_BEGUN, {"old": sorted(self._old), "fresh": not self._old})
        begun = work.finished[_BEGUN]
        for number, path in enumerate(paths):
            local = work.result / path if path else work.result
            name = f"{_BEGUN}{path}"
            meter.begin(path or self.target.name, local.stat().st_size)
            place = self.target / path if path else self.target
            facts = {"local": mark_of(local), "identity": _identity(place)}
            if {"path": name} | facts != {"path": name} | work.finished.get(name, {}):
                is_last = number == len(paths) - 1
                exclusive = is_last and begun["fresh"] and not self._force and f"{name}?" not in work.finished
                if is_last:
                    work.record(f"{name}?", {})  # an error may come after the bytes have gone
                _put(local, place, meter, exclusive=exclusive)
                work.record(name, {**facts, "identity": _identity(place)})
            meter.end()
        for path in sorted(set(begun["old"]) - set(paths)):
            remove(self.target / path)
        work.drop()

    def close(self) -> None:
        """Leave no empty directory behind."""
        if remove_empty(self.place.parent):  # else an interrupted run goes on there
            remove_empty(self.place.parent.parent)

    def _refusal(self, text: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, f"{text}; name another destination", str(self.target))


def put_file(local: Path, target: RemotePath) -> None:
    """Put a file there, in the place of the object that has the name."""
    _put(local, target, None, exclusive=False)


def put_bytes(data: bytes, target: Location) -> None:
    """Put a small file there whole, in the place of what has the name: a regular file, or an object."""
    if not isinstance(target, Path):
        with clear_errors(str(target)):
            target.store.pipe_file(target.key, data)
        return
    with Staging(Destination(target, force=True), {"action": "save"}) as work, OutputFile(work.result) as file:
        file.write(0, data)
        file.sync()
        work.commit(None)


def remove(place: Location) -> None:
    """Remove a file or an object."""
    if isinstance(place, Path):
        place.unlink()
        return
    with clear_errors(str(place)):
        place.store.rm_file(place.key)


def _put(local: Path, target: RemotePath, meter: Meter | None, *, exclusive: bool) -> None:
    from fsspec.callbacks import Callback

    callback, told = Callback(), 0

    def send() -> None:
        with clear_errors(str(target)):
            if not exclusive:
                target.store.put_file(str(local), target.key, callback=callback)
                return
            try:
                target.store.put_file(str(local), target.key, callback=callback, mode="create")
            except (NotImplementedError, TypeError):  # a store that knows no such condition
                target.store.put_file(str(local), target.key, callback=callback)

    # The caller's thread tells of progress, and an interrupt ends its wait.
    sending = begin(send, "tensorwire-upload")
    while not wait([sending], _POLL_SECONDS).done:
        if meter is not None:
            meter.advance(callback.value - told)
        told = callback.value
    sending.result()
    expected, found = local.stat().st_size, Status.of(target, target.look()).st_size
    if found != expected:
        raise OSError(errno.EIO, f"expected an object of {expected} bytes after writing it, got {found}", str(target))


def _identity(place: RemotePath) -> list[int] | None:
    facts = place.look()
    return None if facts is None else Status.of(place, facts).identity


def _workspace(target: RemotePath) -> Path:
    """A directory of ours among temporary files, the same one for each run with this target. By other options, such as
    another endpoint, a URL leads to another object."""
    root = Path(tempfile.gettempdir()) / f"tensorwire-uploads-{os.geteuid()}"
    root.mkdir(0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        text = "expected a directory that is yours alone; remove it, or set TMPDIR to another one"
        raise FileExistsError(errno.EEXIST, text, str(root))
    options = json.dumps([target.store.storage_args, target.store.storage_options], sort_keys=True, default=str)
    place = root / hashlib.sha256(f"{target} {options}".encode()).hexdigest()[:16]
    place.mkdir(0o700, exist_ok=True)
    return place


def in_order(paths: Collection[str], last: Sequence[Callable[[str], Any]]) -> list[str]:
    """Paths sorted, behind them those that the functions of `last` are true of, one function after the other."""

    def place(path: str) -> int:
        return max((number for number, is_one in enumerate(last, 1) if is_one(path)), default=0)

    return sorted(paths, key=lambda path: (place(path), path))
