"""A result on its way to a store: made on this machine, then put there object by object, the one that counts last.

A store can neither rename nor replace a folder in one step. So readers go by the last object: the manifest, or an
index. What has been put stands in the journal of the staging directory, and the next run goes on behind it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
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

UPLOAD_NAME = ".tensorwire-upload"
"""The object that stands in a folder as long as an upload into it has not ended."""

_BEGUN = "://"  # no path of a result
_POLL_SECONDS = 0.2
_CREDENTIAL = re.compile(r"key|secret|token|passw|passphrase|credential|cookie|auth(?!ority)|sas\b", re.IGNORECASE)
"""Options that may change while they lead to the same object."""


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
        if is_directory:
            self._old = {place.relative_to(self.target).as_posix() for place in self.target.files()}
        if UPLOAD_NAME in self._old:
            owned: Collection[str] = {UPLOAD_NAME, *self._marked()["paths"]}
        else:
            owned = self._owned(self.target)
        if is_directory and (others := sorted(self._old - set(owned))):
            raise self._refusal(f"holds an object that the result does not replace: {others[0]!r}")
        if not self._force:
            if UPLOAD_NAME in self._old:
                raise self._refusal("holds an upload that has not ended; pass force=True to take its place")
            raise self._refusal("already exists; pass force=True to replace it")

    def put(self, work: Staging, paths: Sequence[str], first_gone: Collection[str], meter: Meter) -> None:
        """Put the result there, and drop it here. Until all of it stands in a folder, an object there says so.

        Args:
            paths: of its files, the one by which readers go last; of a single file the empty path.
            first_gone: what old readers go by, which is removed before the first object is put.

        Raises:
            OSError: the store refuses, or has other bytes than were sent.
            FileExistsError: another process has begun an upload to there, or put the last object meanwhile.
        """
        resumes = _BEGUN in work.finished
        if not resumes:
            old = sorted(self._old - {UPLOAD_NAME})
            work.record(_BEGUN, {"old": old, "fresh": not self._old, "token": secrets.token_hex(8)})
        begun = work.finished[_BEGUN]
        is_folder = list(paths) != [""]
        if is_folder:
            self._mark(work, paths, resumes=resumes)
            for path in sorted(set(begun["old"]) & set(first_gone)):
                if _name(path) not in work.finished:
                    remove_if_there(self.target / path)
        for number, path in enumerate(paths):
            is_last = number == len(paths) - 1
            if is_folder and is_last and self._marked()["token"] != begun["token"]:
                raise self._refusal("is the place of another upload, which has begun meanwhile")
            self._put_one(work, path, meter, exclusive=is_last and begun["fresh"] and not self._force)
        for path in sorted(set(begun["old"]) - set(paths)):
            remove_if_there(self.target / path)
        if is_folder:
            remove_if_there(self.target / UPLOAD_NAME)
        work.drop()

    def _put_one(self, work: Staging, path: str, meter: Meter, *, exclusive: bool) -> None:
        """Unless it stands there already. After an error it may, since that may come when the bytes have gone."""
        local, place = (work.result / path, self.target / path) if path else (work.result, self.target)
        name = _name(path)
        meter.begin(path or self.target.name, local.stat().st_size)
        facts = {"local": mark_of(local), "identity": _identity(place)}
        before = work.finished.get(name, {})
        if any(before.get(key) != value for key, value in facts.items()):
            work.record(name, {"sent": True})
            try:
                _put(local, place, meter, exclusive=exclusive and not before.get("sent"))
            except FileExistsError:
                work.record(name, {})  # it is another's
                raise
            work.record(name, {**facts, "sent": True, "identity": _identity(place)})
        meter.end()

    def _mark(self, work: Staging, paths: Sequence[str], *, resumes: bool) -> None:
        """Say that an upload has begun, unless it is said already."""
        begun, found = work.finished[_BEGUN], self._marked()
        if found["token"] == begun["token"]:
            return
        if not self._force:
            if found["token"]:
                raise self._refusal("is the place of another upload, which has not ended")
            if resumes and any(self._is_anothers(work, path) for path in paths):
                raise self._refusal("holds what another upload has put there since this one was interrupted")
        text = json.dumps({"token": begun["token"], "paths": sorted({*begun["old"], *paths})})
        local = self.place.parent / UPLOAD_NAME
        local.write_text(text)
        try:
            _put(local, self.target / UPLOAD_NAME, None, exclusive=not self._force)
        finally:
            local.unlink()

    def _marked(self) -> dict[str, Any]:
        """What the object says that stands there until an upload has ended; without one, nothing."""
        place = self.target / UPLOAD_NAME
        facts = place.look()
        if facts is None:
            return {"token": "", "paths": []}
        try:
            found = json.loads(place.fetch([(0, Status.of(place, facts).st_size)])[0])
            return {"token": str(found["token"]), "paths": [str(path) for path in found["paths"]]}
        except (KeyError, TypeError, ValueError):
            return {"token": "?", "paths": []}

    def _is_anothers(self, work: Staging, path: str) -> bool:
        facts = work.finished.get(_name(path), {})
        return "identity" in facts and facts["identity"] != _identity(self.target / path)

    def close(self) -> None:
        """Leave no empty directory behind."""
        if remove_empty(self.place.parent):  # else an interrupted run goes on there
            remove_empty(self.place.parent.parent)

    def _refusal(self, text: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, f"{text}; name another destination", str(self.target))


def _name(path: str) -> str:
    """What an object is called in the journal."""
    return f"{_BEGUN}/{path}"


def put_file(local: Path, target: RemotePath) -> None:
    """Put a file there, in the place of the object that has the name."""
    _put(local, target, None, exclusive=False)


def put_bytes(data: bytes, target: Location, *, exclusive: bool = False) -> None:
    """Put a small file there whole, in the place of what has the name: a regular file, or an object.

    With `exclusive` nothing is replaced: FileExistsError says that something has the name. A store without such a
    condition is asked a moment before.
    """
    if not isinstance(target, Path):
        with clear_errors(str(target)):
            if not exclusive:
                target.store.pipe_file(target.key, data)
                return
            if target.look() is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            try:
                target.store.pipe_file(target.key, data, mode="create")
            except (NotImplementedError, TypeError):
                target.store.pipe_file(target.key, data)
        return
    destination = Destination(target, force=not exclusive)
    with Staging(destination, {"action": "save"}) as work, OutputFile(work.result) as file:
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


def remove_if_there(place: Location) -> None:
    """The same; one that is gone already is no error."""
    with suppress(FileNotFoundError):
        remove(place)


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
            except (NotImplementedError, TypeError) as error:  # a store that knows no such condition
                if isinstance(error, TypeError) and "mode" not in str(error):
                    raise
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
    another endpoint, a URL leads to another object; by other credentials it leads to the same one."""
    root = Path(tempfile.gettempdir()) / f"tensorwire-uploads-{os.geteuid()}"
    root.mkdir(0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        text = "expected a directory that is yours alone; remove it, or set TMPDIR to another one"
        raise FileExistsError(errno.EEXIST, text, str(root))
    options = _without_credentials([target.store.storage_args, target.store.storage_options])
    place = (
        root / hashlib.sha256(f"{target} {json.dumps(options, sort_keys=True, default=str)}".encode()).hexdigest()[:16]
    )
    place.mkdir(0o700, exist_ok=True)
    return place


def _without_credentials(options: Any) -> Any:
    if isinstance(options, Mapping):
        return {
            name: _without_credentials(value) for name, value in options.items() if not _CREDENTIAL.search(str(name))
        }
    return [_without_credentials(each) for each in options] if isinstance(options, (list, tuple)) else options


def in_order(paths: Collection[str], last: Sequence[Callable[[str], Any]]) -> list[str]:
    """Paths sorted, behind them those that the functions of `last` are true of, one function after the other."""

    def place(path: str) -> int:
        return max((number for number, is_one in enumerate(last, 1) if is_one(path)), default=0)

    return sorted(paths, key=lambda path: (place(path), path))
