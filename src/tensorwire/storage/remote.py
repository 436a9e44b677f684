"""Objects and folders of other stores, by URL: all that fsspec reaches.

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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from .._ground.packages import how_to_install
from ..errors import TruncatedDataError
from . import http_objects, s3_objects
from .secret_text import Secrets, shown
from .store_errors import clear_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::[A-Za-z][A-Za-z0-9+.\-]*)*://")

_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
"""How a key begins that is a whole URL, as in fsspec's HTTP and its caches for that."""

_BUCKETS = {"s3", "gs", "abfs"}
MAX_ENTRIES, _MAX_DEPTH = 100_000, 100
"""A folder may have so many objects and folders, and on HTTP servers so many in each other."""

# By what stores tell one content of an object from another, the best first.
_MARKS = (
    "ETag", "etag", "md5Hash", "generation", "xet_hash", "blob_id", "sha", "checksum", "Content-MD5", "Digest",
    "LastModified", "last_modified", "Last-Modified", "mtime", "modificationTime", "modify", "created",
)  # fmt: skip

_TIMES = ("LastModified", "last_modified", "mtime", "created")

_NO_SECRETS = Secrets("")
_PAGE = {"type": "directory", "size": 0}
"""What is known of a folder of an HTTP server: that it has a page."""

_turns: WeakKeyDictionary[Any, Lock] = WeakKeyDictionary()
"""By store that is not asynchronous, a lock for the thread that asks it."""


def is_url(path: object) -> bool:
    """Whether a path is an fsspec URL: ``scheme://...``, or chained as in ``simplecache::s3://...``."""
    return isinstance(path, str) and _URL.match(path) is not None


class RemotePath:
    """An object or a folder of a store, with as much of a Path as readers ask for. Thread-safe.

    What the store says of it is asked once, so that an operation sees one state: make a new one for a new look. Text of
    it never has what may be secret: user, password and query.
    """

    def __init__(
        self, store: Any, key: str, facts: Mapping[str, Any] | None = None, secrets: Secrets = _NO_SECRETS
    ) -> None:
        """
        Args:
            store: a file system of fsspec, by which `key` names it.
            facts: what a listing said of it.
            secrets: what errors of the store must not tell.
        """
        self.store, self.key = store, key.rstrip("/") or key
        self._secrets = secrets
        self._process = os.getpid()
        self._reason: OSError | None = None
        self._seen: dict[str, str] = {}
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
                f"{shown(url)} needs fsspec, which is not installed: {how_to_install('remote')}"
            ) from error
        with clear_errors(shown(url), Secrets(url, storage_options)):
            # A listing that is kept may be older than the objects; some stores keep it all the same.
            store, key = url_to_fs(url, use_listings_cache=False, **(storage_options or {}))
            store.invalidate_cache(key)
        path = cls(store, key, secrets=Secrets(url, store.storage_options))
        if (path.bucket is not None and not path.bucket.key) or (path._is_http and not urlsplit(url).netloc):
            raise ValueError(f"{shown(url)}: expected a URL with a bucket or host, as in 's3://bucket/folder/name'")
        if "memory" in path._protocols and "?" in key:
            raise ValueError(f"{shown(url)}: expected a URL without query, since no server stands behind it")
        return path

    def _at(self, key: str, facts: Mapping[str, Any] | None = None) -> RemotePath:
        """Another place in the store."""
        place = RemotePath(self.store, key, facts, self._secrets)
        place._process = self._process
        return place

    def __str__(self) -> str:
        return shown(self._secrets.cut(self.store.unstrip_protocol(self.key)))

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
        return PurePosixPath(shown(self._secrets.cut(self.key)))

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
        key = shown(self.key) if _ADDRESS.match(self.key) else self.key  # the query may hold a slash
        return self._at(self.store._parent(key))

    @property
    def parents(self) -> Sequence[RemotePath]:
        """As many as the key has."""
        found = [self.parent]
        for _ in range(self.key.count("/")):
            found.append(found[-1].parent)
        return found

    def __truediv__(self, name: str) -> RemotePath:
        return self._at(f"{self.key.rstrip('/')}/{name}" if self.key else name)

    def joinpath(self, *names: str) -> RemotePath:
        return self / "/".join(names)

    def path_in(self, folder: RemotePath) -> str:
        """The path of what lies in a folder, as it is: `a//b` is another object than `a/b`.

        Raises:
            ValueError: it lies elsewhere.
        """
        own, above = (shown(place.key) if _ADDRESS.match(place.key) else place.key for place in (self, folder))
        beginning = f"{above.rstrip('/')}/" if above else ""  # the root of an archive has no name
        if not own.startswith(beginning):
            raise ValueError(f"expected a place in {folder}, got {self}")
        return self._secrets.cut(own[len(beginning) :])

    @property
    def bucket(self) -> RemotePath | None:
        """What it lies in, in stores of buckets: they make none with an object. Stores of other kinds make folders."""
        return None if _BUCKETS.isdisjoint(self._protocols) else self._at(self.key.partition("/")[0])

    @property
    def _is_http(self) -> bool:
        return "http" in self._protocols and hasattr(self.store, "set_session")  # others than fsspec's have none

    @property
    def _protocols(self) -> Sequence[str]:
        found: str | Sequence[str] = self.store.protocol
        return (found,) if isinstance(found, str) else found

    @cached_property
    def facts(self) -> Mapping[str, Any] | None:
        """What the store says of it; None if there is nothing."""
        with self.asking():
            return self._info()

    def again(self) -> RemotePath:
        """The same place, to be asked for anew."""
        with self.asking():
            self.store.invalidate_cache(self.key)
        return self._at(self.key)

    def _info(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any]
        try:
            found = http_objects.facts_of(self.store, self.key) if self._is_http else self.store.info(self.key)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            if not self._is_http:
                raise
            self._reason = error  # for what is not there too, where the names are secret
            return None
        return found

    @contextmanager
    def asking(self) -> Iterator[None]:
        """The store is asked meanwhile: in turn, unless it is asynchronous. Its errors are clear ones."""
        is_shared = self.store.async_impl
        with self.clear_errors(), nullcontext() if is_shared else _turns.setdefault(self.store, Lock()):
            yield

    def clear_errors(self) -> AbstractContextManager[None]:
        """The store is called meanwhile: its errors become clear ones, of this place."""
        self.check_process()
        return clear_errors(str(self), self._secrets)

    def check_process(self) -> None:
        """Raise OSError in a forked process: connections and threads are those of the process before."""
        if self._process != os.getpid():
            text = "was opened in another process, whose connections a forked one cannot use; open it anew in this one"
            raise OSError(errno.EBADF, text, str(self))

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
            PermissionError, OSError: the server refuses, or does not answer.
        """
        facts = self.facts
        if facts is None and self._reason is not None:
            with self.clear_errors():
                raise self._reason
        return Status.of(self, facts)

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in a folder, as the store lists it.

        Raises:
            OSError: there is more than a folder may have.
        """
        found: list[tuple[str, Mapping[str, Any] | None]]
        with self.asking():
            if self._is_http:
                urls = http_objects.listing(self.store, self.key)
                found = [(url, _PAGE if url.endswith("/") else None) for url in urls]
            else:
                found = [(entry["name"], entry) for entry in self.store.ls(self.key, detail=True)]
        self._check_number(len(found))
        for key, facts in found:
            if key.rstrip("/") != self.key:  # the object of this name that makes a folder of it
                yield self._at(key, facts)

    def files(self) -> Iterator[RemotePath]:
        """All objects in a folder, at any depth.

        Raises:
            OSError: there is more than a folder may have.
        """
        if self._is_http:
            yield from self._walked()
            return
        with self.asking():
            found = self.store.find(self.key, detail=True)
        self._check_number(len(found))
        for key, facts in found.items():
            if not key.endswith("/"):
                yield self._at(key, facts)

    def _walked(self) -> Iterator[RemotePath]:
        """The same, page by page: what a page says is a folder has a page too."""
        number, folders = 0, [(self, 0)]
        while folders:
            folder, depth = folders.pop()
            for place in folder.iterdir():
                number += 1
                self._check_number(number)
                if not place._has_page:
                    yield place
                elif depth < _MAX_DEPTH:
                    folders.append((place, depth + 1))
                else:
                    raise OSError(errno.EFBIG, f"expected folders in at most {_MAX_DEPTH} others, got more", str(self))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """What has a path of this pattern, in the ways of a shell.

        Raises:
            OSError: there is more than a folder may have.
        """
        if self._is_http:
            first, _, rest = pattern.partition("/")
            for place in self.iterdir():
                if fnmatchcase(place.name, first):
                    yield from (place.glob(rest) if place._has_page else ()) if rest else (place,)
            return
        with self.asking():
            found = self.store.glob((self / pattern).key)
        self._check_number(len(found))
        for key in found:
            yield self._at(key)

    @property
    def _has_page(self) -> bool:
        """Whether a page of an HTTP server said that it is a folder."""
        return self.__dict__.get("facts") is _PAGE

    def _check_number(self, number: int) -> None:
        if number > MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"expected at most {MAX_ENTRIES:,} objects in a folder, got more", str(self))

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of ranges [start, stop), each in a request of its own; at once where the store can.

        Raises:
            TruncatedDataError: the store gave less or more than was asked for.
        """
        facts = self.__dict__.get("facts") or {}
        with self.asking():
            if self._is_http:
                found = http_objects.fetch(self.store, self.key, ranges, facts, self._seen)
            elif "s3" in self._protocols and hasattr(self.store, "_call_s3"):
                found = s3_objects.fetch(self.store, self.key, ranges, facts)
            else:
                found = _cat_ranges(self.store, self.key, ranges)
        for (start, stop), data in zip(ranges, found, strict=True):
            if len(data) != stop - start:
                raise TruncatedDataError(
                    f"expected {stop - start} bytes from {start} on, got {len(data)} from the store",
                    file=self,
                    byte=start + min(len(data), stop - start),
                )
        return found


def _cat_ranges(store: Any, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    keys, starts, stops = [key] * len(ranges), [start for start, _ in ranges], [stop for _, stop in ranges]
    found: list[bytes]
    if not store.async_impl:
        try:  # else each range is read through a file with the cache
            found = store.cat_ranges(keys, starts, stops, on_error="raise", cache_type="none")
            return found
        except TypeError as error:
            if "'cache_type'" not in str(error):  # files that know no such option have no such cache
                raise
    found = store.cat_ranges(keys, starts, stops, on_error="raise")
    return found


class Status(NamedTuple):
    """The state of an object.

    Attributes:
        st_size: in bytes.
        identity: differs once other bytes are there. The size comes first.
        st_mtime: when it was written, in seconds since 1970; None if the store does not tell.
    """

    st_size: int
    identity: list[int]
    st_mtime: float | None = None

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
        identity = [facts["size"], int.from_bytes(hashlib.sha256(mark.encode()).digest()[:7], "big")]
        times = (getattr(time, "timestamp", lambda time=time: time)() for time in map(facts.get, _TIMES))
        return cls(facts["size"], identity, next((time for time in times if isinstance(time, (int, float))), None))
