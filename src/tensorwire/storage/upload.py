"""A result on its way to a store: made on this machine, then put there object by object, the one that counts last.

A store can neither rename nor replace a folder in one step. So readers go by the last object: the manifest, or an
index. What has been put stands in the journal of the staging directory, and the next run goes on behind it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._ground.filesystem import mark_of, remove_empty
from .._ground.new_file import NewFile
from ..errors import TruncatedDataError
from .background import begin
from .local import sync_directory
from .pool import as_ended
from .progress import Meter
from .secret_text import CREDENTIAL

if TYPE_CHECKING:
    from .locations import Location
    from .progress import Progress
    from .remote import RemotePath
    from .staging import Staging

UPLOAD_NAME = ".tensorwire-upload"
"""The object that stands in a folder as long as an upload into it has not ended."""

SMALL_NBYTES, AT_ONCE = 8 << 20, 8
"""Objects up to that size go out so many at a time: a store may hold each of them in memory. Larger ones go alone."""

_MAX_MARK_NBYTES = 256 << 20
"""A larger object of that name is none of ours."""

_BEGUN = "://"  # no path of a result
_POLL_SECONDS = 0.2
_THREAD = "tensorwire-upload"


class Upload:
    """Where a result is to stand in a store.

    Attributes:
        target: the object or folder.
        place: the path at which the result is made on this machine.
    """

    def __init__(
        self,
        target: RemotePath,
        *,
        force: bool,
        owned: Callable[[Location], Collection[str]],
        is_directory: bool = False,
        last: Sequence[Callable[[str], bool]] = (),
        gone_first: Callable[[str], bool] = lambda path: False,
    ) -> None:
        """
        Args:
            force, is_directory: as for `Destination`.
            owned: says what gives way to the result, as `Destination` asks for it.
            last: which paths are put behind all others, in this order. Readers go by the very last one.
            gone_first: what old readers go by, which is removed before the first object is put.

        Raises:
            OSError: there is no room of our own in the directory for temporary files.
        """
        self.target = target
        self.place = _workspace(target) / (target.name or "result")
        self._force, self._owned = force, owned
        self._is_directory, self._last, self._gone_first = is_directory, last, gone_first
        self._old: set[str] = set()
        self._may_have: set[str] = set()
        self._is_replacing = False
        self._is_claimed = False

    def check(self, work: Staging) -> None:
        """Look at what stands there before the work. A run of ours that was interrupted has put what it had begun.

        Raises:
            FileExistsError: something stands there that must stay; the message says why and what to do.
            FileNotFoundError: there is no such bucket.
        """
        if _begun(work):
            return
        if not self.target.exists():
            check_bucket(self.target)
            return
        if self.target.is_dir() != self._is_directory:
            kinds = ("a folder", "an object") if self.target.is_dir() else ("an object", "a folder")
            raise self._refusal(f"is {kinds[0]}, and the result is {kinds[1]}")
        if self._is_directory:
            self._old = {place.path_in(self.target) for place in self.target.files()}
            if not self._old:
                return
        owned = {UPLOAD_NAME, *self._marked()["paths"]} if UPLOAD_NAME in self._old else set()
        if not owned or self._is_whole(self._old):
            owned |= {*self._owned(self.target)}
            self._is_replacing = True
        if self._is_directory and (others := sorted(self._old - set(owned))):
            raise self._refusal(f"holds an object that the result does not replace: {others[0]!r}")
        if not self._force:
            if UPLOAD_NAME in self._old:
                raise self._refusal("holds an upload that has not ended; pass force=True to take its place")
            raise self._refusal("already exists; pass force=True to replace it")

    def claim(self, work: Staging, paths: Collection[str]) -> None:
        """A new folder is marked before the work, so that a store which takes nothing says so by then. A folder that
        is to be replaced is marked behind the work: it can be read until then."""
        self._may_have = set(paths)
        if not self._is_directory or _begun(work) or self._old:
            return
        self._begin(work)
        self._is_claimed = True
        self._mark(work, paths, {})

    def give_up(self, work: Staging) -> None:
        if self._is_claimed:
            with suppress(OSError):
                self._withdraw(work)

    def _begin(self, work: Staging) -> None:
        old = sorted(self._old - {UPLOAD_NAME})
        work.record(_BEGUN, {"old": old, "fresh": not self._old, "token": secrets.token_hex(8)})

    def _withdraw(self, work: Staging) -> None:
        """Nothing has been put but the mark, if that."""
        token = work.finished[_BEGUN]["token"]
        work.record(_BEGUN, {})
        del work.finished[_BEGUN]
        if self._marked()["token"] == token:
            remove_if_there(self.target / UPLOAD_NAME)

    def put(self, work: Staging, paths: Collection[str], progress: Progress | None) -> None:
        """Put the result there, and drop it here. Until all of it stands in a folder, an object there says so.

        Raises:
            OSError: the store refuses, or has other bytes than were sent.
            FileExistsError: another process has begun an upload to there, or put an object there meanwhile; or what
                stands there must stay.
        """
        self._is_claimed = False
        is_folder = self._is_directory
        paths = [path for path in paths if not path.endswith("/")] if is_folder else [""]  # it knows no empty folders
        groups = in_batches(paths, self._last)
        meter = Meter(progress, sum((work.result / path).stat().st_size for path in paths))
        there: dict[str, list[int]] = {}
        if not _begun(work):
            if self._is_replacing:
                self._owned(self.target.again())  # which knows more, now that the result is whole
            self._begin(work)
        else:
            there = self._listed() if is_folder else {}
            if self._is_whole(there) if is_folder else self.target.again().exists():
                self._owned(self.target.again())  # another upload may have put it since this one was interrupted
        begun = work.finished[_BEGUN]
        if is_folder:
            self._mark(work, paths, there)
            gone = [path for path in begun["old"] if path in self._may_have and self._gone_first(path)]
            self._remove(path for path in gone if _name(path) not in work.finished)
        for group in groups[:-1]:
            self._put_batch(work, group, there, meter)
        [last] = groups[-1]
        if is_folder and not self._has_only_ours(work, set(paths) - {last}, self._listed()):
            raise self._refusal("holds what another upload has put there meanwhile")
        if not self._stands(work, last, there, meter):
            self._put_one(work, last, meter, exclusive=begun["fresh"] and not self._force)
        if is_folder:
            self._check_place(work)
            self._remove(set(begun["old"]) - set(paths))
            remove_if_there(self.target / UPLOAD_NAME)
        work.drop()

    def _is_whole(self, paths: Iterable[str]) -> bool:
        """Whether a folder has what is put last and removed first, so that readers take it for whole."""
        return bool(self._last) and any(map(self._last[-1], paths))

    def _listed(self) -> dict[str, list[int]]:
        """What stands in the folder, by path."""
        return {place.path_in(self.target): place.stat().identity for place in self.target.again().files()}

    def _check_place(self, work: Staging) -> None:
        """Raise FileExistsError if another upload has taken the folder. Only the token is read of the mark."""
        ours = json.dumps({"token": work.finished[_BEGUN]["token"]}).removesuffix("}").encode()
        found = b""
        with suppress(FileNotFoundError, TruncatedDataError):
            [found] = (self.target / UPLOAD_NAME).again().fetch([(0, len(ours))])
        if found != ours:
            raise self._refusal("is the place of another upload, which has begun meanwhile")

    def _put_batch(self, work: Staging, paths: Sequence[str], there: Mapping[str, list[int]], meter: Meter) -> None:
        """Small objects go out several at a time, so that many of them do not wait one for the other."""
        missing = [path for path in paths if not self._stands(work, path, there, meter)]
        small = {path for path in missing if (work.result / path).stat().st_size <= SMALL_NBYTES}
        left = iter([path for path in missing if path in small])
        while at_once := list(islice(left, _most_at_once(self.target))):
            self._check_place(work)
            calls = {path: partial(_send, work.result / path, self.target / path) for path in at_once}
            for path, identity in as_ended(calls, len(calls), _THREAD):
                self._note(work, path, identity)
                meter.begin(path, (work.result / path).stat().st_size)
                meter.end()
        for path in missing:
            if path not in small:
                self._put_one(work, path, meter, exclusive=False)

    def _put_one(self, work: Staging, path: str, meter: Meter, *, exclusive: bool) -> None:
        """After an error it may stand there, since that may come when the bytes have gone."""
        local, place, name = work.result / path, self.target / path if path else self.target, _name(path)
        meter.begin(path or self.target.name, local.stat().st_size)
        if self._is_directory:
            self._check_place(work)
        exclusive = exclusive and not work.finished.get(name, {}).get("sent")
        if exclusive:
            work.record(name, {"sent": True})
        try:
            identity = _put(local, place, meter, exclusive=exclusive)
        except FileExistsError:
            work.record(name, {})
            raise self._refusal("holds what another upload has put there meanwhile") from None
        self._note(work, path, identity)
        meter.end()

    def _note(self, work: Staging, path: str, identity: list[int]) -> None:
        work.record(_name(path), {"local": _told_by(work.result / path), "identity": identity, "sent": True})

    def _stands(self, work: Staging, path: str, there: Mapping[str, list[int]], meter: Meter) -> bool:
        """Whether an earlier run has put it, and it is there."""
        local, noted = work.result / path, work.finished.get(_name(path), {})
        if "identity" not in noted or noted["local"] != _told_by(local):
            return False
        if not self._is_there(path, noted["identity"], there):
            return False
        meter.begin(path or self.target.name, local.stat().st_size)
        meter.end()
        return True

    def _has_only_ours(self, work: Staging, paths: Iterable[str], there: Mapping[str, list[int]]) -> bool:
        """Whether at these paths nothing stands but what has been noted."""
        noted = {path: work.finished.get(_name(path), {}).get("identity") for path in paths}
        unlisted = {path: identity for path, identity in noted.items() if there.get(path) != identity}
        calls = {path: partial(self._is_there, path, identity, {}) for path, identity in unlisted.items()}
        return all(is_there for _, is_there in as_ended(calls, _most_at_once(self.target), _THREAD))

    def _is_there(self, path: str, identity: list[int] | None, there: Mapping[str, list[int]]) -> bool:
        """A listing may lag, or say less than the store says of the object alone."""
        if there.get(path) == identity:
            return True
        place = (self.target / path if path else self.target).again()
        return (place.stat().identity if place.exists() else None) == identity

    def _remove(self, paths: Iterable[str]) -> None:
        calls = {path: partial(remove_if_there, self.target / path) for path in sorted(paths)}
        for _ in as_ended(calls, _most_at_once(self.target), _THREAD):
            pass

    def _mark(self, work: Staging, paths: Collection[str], there: Mapping[str, list[int]]) -> None:
        """Say that an upload has begun, unless it is said already.

        Args:
            there: what is there if this upload was begun before, by path.
        """
        begun, found = work.finished[_BEGUN], self._marked()
        if found["token"] == begun["token"]:
            return
        if not self._force:
            if found["token"]:
                raise self._refusal("is the place of another upload, which has not ended")
            if not self._has_only_ours(work, {*there, *paths}, there):
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
        place = (self.target / UPLOAD_NAME).again()
        if not place.exists():
            return {"token": "", "paths": []}
        nbytes = place.stat().st_size
        with suppress(KeyError, RecursionError, TypeError, ValueError):
            if nbytes <= _MAX_MARK_NBYTES:
                found = json.loads(place.fetch([(0, nbytes)])[0])
                return {"token": str(found["token"]), "paths": [str(path) for path in found["paths"]]}
        return {"token": "?", "paths": []}

    def close(self) -> None:
        """Leave no empty directory behind."""
        if remove_empty(self.place.parent):  # else an interrupted run goes on there
            remove_empty(self.place.parent.parent)

    def _refusal(self, text: str) -> FileExistsError:
        joint = ", or" if "pass force" in text else ";"
        return FileExistsError(errno.EEXIST, f"{text}{joint} name another destination", str(self.target))


def _name(path: str) -> str:
    """What an object is called in the journal."""
    return f"{_BEGUN}/{path}"


def _told_by(local: Path) -> str | None:
    """What tells a file of a result from another one. A run that goes on makes small ones anew, with the same bytes."""
    if local.stat().st_size > SMALL_NBYTES:
        return mark_of(local)
    return hashlib.sha256(local.read_bytes()).hexdigest()


def _begun(work: Staging) -> bool:
    return "token" in work.finished.get(_BEGUN, {})


def check_bucket(target: RemotePath) -> None:
    """Raise what stands against an object or a new folder before the work for it: no such bucket, or no name in it."""
    bucket = target.bucket
    if bucket is None:
        return
    with suppress(PermissionError):  # to look at a bucket is a right of its own
        if not bucket.exists():
            raise FileNotFoundError(errno.ENOENT, "no such bucket; make it first, or name another one", str(bucket))
    if bucket == target:
        raise IsADirectoryError(errno.EISDIR, "is a bucket; name an object in it", str(bucket))


def put_file(local: Path, target: RemotePath) -> None:
    """Put a file there, in the place of the object that has the name."""
    _put(local, target, None, exclusive=False)


def put_bytes(data: bytes, target: Location, *, exclusive: bool = False) -> None:
    """Put a small file there whole, in the place of what has the name: a regular file, or an object.

    With `exclusive` nothing is replaced: FileExistsError says that something has the name. A store without such a
    condition is asked a moment before.
    """
    if not isinstance(target, Path):
        _put_by(partial(target.store.pipe_file, target.key, data), target, exclusive=exclusive)
        return
    NewFile(target, force=not exclusive, example=target.name).write(data)
    sync_directory(target.parent)


def remove_if_there(place: Location) -> None:
    """Remove a file or an object; one that is gone already is no error."""
    with suppress(FileNotFoundError):
        if isinstance(place, Path):
            place.unlink()
            return
        with place.clear_errors():
            place.store.rm_file(place.key)


def _put(local: Path, target: RemotePath, meter: Meter | None, *, exclusive: bool) -> list[int]:
    """Put an object, and tell of it from the caller's thread. An interrupt ends the wait. Returns its identity."""
    from fsspec.callbacks import Callback

    callback, told = Callback(), 0
    sending = begin(partial(_send, local, target, callback=callback, exclusive=exclusive), _THREAD)
    while not wait([sending], _POLL_SECONDS).done:
        if meter is not None:
            meter.advance(callback.value - told)
        told = callback.value
    return sending.result()


def _send(local: Path, target: RemotePath, *, exclusive: bool = False, **options: Any) -> list[int]:
    _put_by(partial(target.store.put_file, str(local), target.key, **options), target, exclusive=exclusive)
    expected, found = local.stat().st_size, target.again().stat()
    if found.st_size != expected:
        text = f"expected an object of {expected} bytes after writing it, got {found.st_size}"
        raise OSError(errno.EIO, text, str(target))
    return found.identity


def _put_by(call: Callable[..., object], target: RemotePath, *, exclusive: bool) -> None:
    """Put an object by a call of its store; with `exclusive` on the condition that nothing has the name."""
    if exclusive and target.again().exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    with target.clear_errors():
        if exclusive:
            try:
                call(mode="create")
                return
            except (NotImplementedError, TypeError) as error:  # a store that knows no such condition
                if isinstance(error, TypeError) and "mode" not in str(error):
                    raise
        call()


def _most_at_once(target: RemotePath) -> int:
    return AT_ONCE if target.store.async_impl else 1


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
            name: _without_credentials(value) for name, value in options.items() if not CREDENTIAL.search(str(name))
        }
    return [_without_credentials(each) for each in options] if isinstance(options, (list, tuple)) else options


def in_batches(paths: Collection[str], last: Sequence[Callable[[str], Any]]) -> list[list[str]]:
    """Paths in batches, one after the other: those that no function of `last` is true of, then those that the first one
    is true of, and so on. The last batch has one path."""

    def place(path: str) -> int:
        return max((number for number, is_one in enumerate(last, 1) if is_one(path)), default=0)

    ordered = sorted(paths, key=lambda path: (place(path), path))
    batches = [list(batch) for _, batch in groupby(ordered[:-1], place)]
    return [*batches, ordered[-1:]]
