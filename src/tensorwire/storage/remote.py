"""Objects and folders of other stores, by URL: whatever fsspec reaches.

Files of fsspec have a cache that fetches many times what is used, so nothing is read through one: every read is a range
that the caller named. Several go out at a time where the store is asynchronous. The other stores are asked one thing
after the other: fsspec does not promise that threads may share them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from ..errors import TruncatedDataError
from .store_errors import HTTP_QUERY, clear_errors, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::[A-Za-z][A-Za-z0-9+.\-]*)*://")

_BUCKETS = {"s3", "gs", "abfs"}
_WHOLE, _GONE = 200, (404, 410)
"""What HTTP says of a request."""

# By what stores tell one content of an object from another, the best first.
_MARKS = (
    "ETag", "etag", "md5Hash", "generation", "xet_hash", "blob_id", "sha", "checksum", "Content-MD5", "Digest",
    "LastModified", "last_modified", "Last-Modified", "mtime", "modificationTime", "modify", "created",
)  # fmt: skip

_turns: WeakKeyDictionary[Any, Lock] = WeakKeyDictionary()
"""By store that is not asynchronous, a lock for whoever asks it."""


def is_url(path: object) -> bool:
    """Whether a path is an fsspec URL: ``scheme://...``, or chained as in ``simplecache::s3://...``."""
    return isinstance(path, str) and _URL.match(path) is not None


class RemotePath:
    """An object or a folder of a store, with as much of a Path as readers ask for. Thread-safe.

    What the store says of it is asked once, so that an operation sees one state: make a new one for a new look. Text of
    it never has what may be secret: user, password and query.
    """

    def __init__(self, store: Any, key: str, facts: Mapping[str, Any] | None = None) -> None:
        """`store`: a file system of fsspec, by which `key` names it; `facts`: what a listing said of it."""
        self.store, self.key = store, key.rstrip("/") or key
        self._reason: BaseException | None = None
        if facts is not None:
            self.__dict__["facts"] = facts  # which spares asking

    @classmethod
    def of(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> RemotePath:
        """
        Raises:
            ImportError: fsspec, or the package of this kind of store, is missing.
            ValueError: there is no such kind of store, or it has no such options.
        """
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ImportError(
                f"{shown(url)} needs fsspec, which is not installed: pip install 'tensorwire[remote]'"
            ) from error
        with clear_errors(shown(url)):
            # A listing that is kept may be older than the objects; some stores keep it whatever they are told.
            store, key = url_to_fs(url, use_listings_cache=False, **(storage_options or {}))
            store.invalidate_cache(key)
        path = cls(store, key)
        if (path.bucket is not None and not path.bucket.key) or (path._is_http and not urlsplit(url).netloc):
            raise ValueError(f"{shown(url)}: expected a URL with a bucket or host, as in 's3://bucket/folder/name'")
        return path

    def __str__(self) -> str:
        return shown(self.store.unstrip_protocol(self.key))

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and (self.store, self.key) == (other.store, other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: RemotePath) -> bool:
        return self.key < other.key

    @property
    def _path(self) -> PurePosixPath:
        return PurePosixPath(shown(self.key))

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def stem(self) -> str:
        return self._path.stem

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def parent(self) -> RemotePath:
        key = HTTP_QUERY.sub(r"\1", self.key)  # which may hold a slash
        return RemotePath(self.store, self.store._parent(key))

    @property
    def parents(self) -> Sequence[RemotePath]:
        """As many as the key has."""
        found = [self.parent]
        for _ in range(self.key.count("/")):
            found.append(found[-1].parent)
        return found

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.store, f"{self.key.rstrip('/')}/{name}")

    def joinpath(self, *names: str) -> RemotePath:
        return self / "/".join(names)

    def path_in(self, folder: RemotePath) -> str:
        """The path of what lies in a folder, as it is: `a//b` is another object than `a/b`.

        Raises:
            ValueError: it lies elsewhere.
        """
        own, above = (shown(place.key) if place.key.startswith("http") else place.key for place in (self, folder))
        beginning = f"{above.rstrip('/')}/"
        if not own.startswith(beginning):
            raise ValueError(f"expected a place in {folder}, got {self}")
        return own[len(beginning) :]

    @property
    def bucket(self) -> RemotePath | None:
        """What it lies in, in stores of buckets: they make none with an object. Stores of other kinds make folders."""
        return None if _BUCKETS.isdisjoint(self._protocols) else RemotePath(self.store, self.key.partition("/")[0])

    @property
    def _is_http(self) -> bool:
        return "http" in self._protocols

    @property
    def _protocols(self) -> Sequence[str]:
        found: str | Sequence[str] = self.store.protocol
        return (found,) if isinstance(found, str) else found

    @cached_property
    def facts(self) -> Mapping[str, Any] | None:
        """What the store says of it; None if there is nothing."""
        with self._asking():
            return self._info()

    def look(self) -> Mapping[str, Any] | None:
        """The same, asked anew."""
        with self._asking():
            self.store.invalidate_cache(self.key)
            return self._info()

    def _info(self) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self.store.info(self.key)
        except FileNotFoundError as error:
            self._reason = error.__cause__ if self._is_http else None
            return None
        return found

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with clear_errors(str(self)), nullcontext() if self.store.async_impl else _turns.setdefault(self.store, Lock()):
            yield

    def exists(self) -> bool:
        return self.facts is not None

    def is_dir(self) -> bool:
        return self.facts is not None and self.facts["type"] == "directory"

    def is_file(self) -> bool:
        return self.facts is not None and self.facts["type"] != "directory"

    def is_fifo(self) -> bool:
        return False

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> Status:
        """
        Raises:
            FileNotFoundError: there is nothing.
            PermissionError, OSError: the server does not answer, or refuses: fsspec says of both that there is nothing.
        """
        facts, reason = self.facts, self._reason
        if facts is None and reason is not None and getattr(reason, "status", None) not in _GONE:
            with clear_errors(str(self)):
                raise reason
        return Status.of(self, facts)

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in a folder, as the store lists it."""
        with self._asking():
            entries = self.store.ls(self.key, detail=True)
        for entry in entries:
            if entry["name"].rstrip("/") != self.key:  # the object of this name that makes a folder of it
                yield RemotePath(self.store, entry["name"], entry)

    def files(self) -> Iterator[RemotePath]:
        """All objects in a folder, at any depth."""
        with self._asking():
            found = self.store.find(self.key, detail=True)
        for key, facts in found.items():
            if not key.endswith("/"):
                yield RemotePath(self.store, key, facts)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        with self._asking():
            found = self.store.glob(f"{self.key}/{pattern}")
        for key in found:
            yield RemotePath(self.store, key)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of ranges [start, stop), each in a request of its own; at once where the store can.

        Raises:
            TruncatedDataError: the store gave less or more than was asked for.
        """
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        with self._asking():
            options = {"raise_for_status": _expect_part} if self._is_http else {}
            found = _cat_ranges(self.store, [self.key] * len(ranges), starts, stops, options)
        for (start, stop), data in zip(ranges, found, strict=True):
            if len(data) != stop - start:
                raise TruncatedDataError(
                    f"expected {stop - start} bytes from {start} on, got {len(data)} from the store",
                    file=self,
                    byte=start + min(len(data), stop - start),
                )
        return found


async def _expect_part(response: Any) -> None:
    """Called by aiohttp before it reads a body. fsspec would read all of one, however long, before anybody can refuse
    it."""
    first, _, last = response.request_info.headers.get("Range", "").removeprefix("bytes=").partition("-")
    if not last:
        return
    expected, length = int(last) + 1 - int(first), response.content_length
    if response.status == _WHOLE and length != expected and (length is not None or first != "0"):
        response.close()
        size = "all of it" if length is None else f"{length} bytes"
        text = f"expected {expected} bytes from {first} on, got {size} from the server, which knows no ranges"
        raise OSError(errno.ENOTSUP, f"{text}: download it first")
    response.content = _AtMost(response.content, expected + 1)


class _AtMost:
    """The body of an answer, up to a number of bytes."""

    def __init__(self, content: Any, nbytes: int) -> None:
        self._content, self._left = content, nbytes

    async def read(self) -> bytes:
        parts = []
        while self._left and (part := await self._content.read(self._left)):
            parts.append(part)
            self._left -= len(part)
        return b"".join(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


def _cat_ranges(
    store: Any, keys: list[str], starts: list[int], stops: list[int], options: Mapping[str, Any]
) -> list[bytes]:
    found: list[bytes]
    if not store.async_impl:
        try:  # else each range is read through a file with the cache
            found = store.cat_ranges(keys, starts, stops, on_error="raise", cache_type="none")
            return found
        except TypeError as error:
            if "'cache_type'" not in str(error):  # files that know no such option have no such cache
                raise
    found = store.cat_ranges(keys, starts, stops, on_error="raise", **options)
    return found


class Status(NamedTuple):
    """The state of an object.

    Attributes:
        st_size: in bytes.
        identity: differs once other bytes are there. The size comes first.
    """

    st_size: int
    identity: list[int]

    @classmethod
    def of(cls, path: RemotePath, facts: Mapping[str, Any] | None) -> Status:
        if facts is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if facts["type"] == "directory":
            return cls(0, [0])
        if facts["size"] is None:
            raise OSError(errno.ENOTSUP, "the server does not tell the size of this: download it first", str(path))
        name = next((name for name in _MARKS if facts.get(name)), "size")
        found = facts[name]
        mark = f"{name} {found.timestamp() if hasattr(found, 'timestamp') else found}"
        return cls(facts["size"], [facts["size"], int.from_bytes(hashlib.sha256(mark.encode()).digest()[:7], "big")])
