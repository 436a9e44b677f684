"""A store that misbehaves as told: a fake, since no server here can be asked to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

_UNCOUNTED = ("ls", "pipe_file")
"""Methods that `asked` does not list: what reads a checkpoint does not call them."""


class FaultyStore(MemoryFileSystem):
    """Objects in memory. Every method of `faults` is asked before the store's own, with it and its arguments."""

    protocol = "faulty"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the parent: of the class
    pseudo_dirs = [""]  # noqa: RUF012
    faults: dict[str, Callable[..., Any]] = {}  # noqa: RUF012
    asked: list[tuple[str, Any]] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("faulty://", "memory://", 1))
        return stripped

    def _do(self, name: str, own: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if name not in _UNCOUNTED:
            self.asked.append((name, arguments))
        fault = self.faults.get(name)
        return own(*arguments, **options) if fault is None else fault(own, *arguments, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        self._do("invalidate_cache", super().invalidate_cache, path)

    def info(self, path: str, **options: Any) -> Any:
        return self._do("info", super().info, path, **options)

    def find(
        self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        return self._do("find", super().find, path, maxdepth, withdirs, detail, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        return self._do("cat_file", super().cat_file, path, start, end, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        return self._do("put_file", super().put_file, lpath, rpath, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self._do("ls", super().ls, path, detail, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        return self._do("pipe_file", super().pipe_file, path, value, mode, **options)


class CountedStore(AbstractFileSystem):
    """Objects by key, each found at once however many there are; several callers may ask at a time.

    `asked` gets the method and the key of each request. `faults` are called with the key, before the method.
    """

    protocol = "counted"
    async_impl = True
    root_marker = "/"
    objects: dict[str, bytes] = {}  # noqa: RUF012
    asked: list[tuple[str, str]] = []  # noqa: RUF012
    faults: dict[str, Callable[[str], None]] = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("counted://").strip("/")

    def _facts(self, key: str) -> dict[str, Any]:
        digest = hashlib.sha256(self.objects[key]).hexdigest()
        return {"name": key, "size": len(self.objects[key]), "type": "file", "ETag": digest}

    def info(self, path: str, **options: Any) -> Any:
        self.asked.append(("info", path))
        if path in self.objects:
            return self._facts(path)
        if not path.rpartition("/")[2].startswith(".") and any(key.startswith(f"{path}/") for key in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        self.asked.append(("find", path))
        return {key: self._facts(key) for key in sorted(self.objects) if key.startswith(f"{path}/")}

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        self.asked.append(("cat_file", path))
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **options: Any) -> None:
        self.asked.append(("put_file", rpath))
        if "put_file" in self.faults:
            self.faults["put_file"](rpath)
        if mode == "create" and rpath in self.objects:
            raise FileExistsError(rpath)
        self.objects[rpath] = Path(lpath).read_bytes()

    def rm_file(self, path: str) -> None:
        self.asked.append(("rm_file", path))
        del self.objects[path]


class FileStore(MemoryFileSystem):
    """Objects in memory that are read through files of fsspec, as in stores which are not asynchronous.

    `fetched` gets each range that such a file asks the store for.
    """

    protocol = "files"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    fetched: list[tuple[int, int]] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("files://", "memory://", 1))
        return stripped

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        return super(MemoryFileSystem, self).cat_file(path, start, end, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _File(self, path, mode, **options) if mode == "rb" else super()._open(path, mode, **options)


class _File(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fs.fetched.append((start, end))
        content: bytes = self.fs.store[self.path].getvalue()
        return content[start:end]


fsspec.register_implementation("files", FileStore, clobber=True)
fsspec.register_implementation("counted", CountedStore, clobber=True)
fsspec.register_implementation("faulty", FaultyStore, clobber=True)


@contextmanager
def faulty_store(**faults: Callable[..., Any]) -> Iterator[FaultyStore]:
    """Empty at first; the methods named misbehave."""
    FaultyStore.store.clear()
    FaultyStore.pseudo_dirs[:] = [""]
    FaultyStore.asked.clear()
    FaultyStore.faults.clear()
    FaultyStore.faults.update(faults)
    try:
        yield FaultyStore()
    finally:
        FaultyStore.store.clear()
        FaultyStore.faults.clear()


@contextmanager
def counted_store() -> Iterator[CountedStore]:
    """Empty at first."""
    CountedStore.objects.clear()
    CountedStore.asked.clear()
    try:
        yield CountedStore()
    finally:
        CountedStore.objects.clear()
        CountedStore.faults.clear()
