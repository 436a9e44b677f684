"""A folder that becomes a version: its shards, and the index that comes last."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from .._ground.filesystem import remove_empty, rename_new
from .._ground.new_file import temporary_files, temporary_name
from ..checkpoint.directory.config_and_index import checked_index
from ..files.header import build_header, packed
from ..files.json_object import dump
from ..storage.local import OutputFile, sync_directory
from .versions import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ..codec import TensorView


class NewTensor(NamedTuple):
    """A tensor as a shard is to hold it. `view` is the tensor itself where `data` is its memory, else None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    checksum: str
    view: TensorView | None

    def check_memory(self) -> None:
        """Raise BufferError if the memory of `data` was freed, moved or cut."""
        if self.view is not None:
            self.view.check_memory()


class NewVersion:
    """A folder that becomes a version when it gets its index. Use it in a ``with`` statement.

    Shards are named after how many there are, so each has a name of our own until all are written.
    """

    def __init__(self, folder: Path, metadata: Mapping[str, str], max_shard_nbytes: int) -> None:
        """`metadata` is for the headers of shards."""
        self._folder = folder
        self._metadata = metadata
        self._max_shard_nbytes = max_shard_nbytes
        self._waiting: list[NewTensor] = []
        self._waiting_nbytes = 0
        self._shards: list[tuple[Path, list[str]]] = []
        self._paths: list[Path] = []
        folder.mkdir(exist_ok=True)
        for path in (*folder.glob("*.safetensors"), folder / INDEX_NAME):
            if path.exists():
                text = (
                    f"holds {path.name!r} already; if no process writes this version, remove it, or name another number"
                )
                raise FileExistsError(errno.EEXIST, text, str(folder))

    def add(self, tensor: NewTensor) -> None:
        """Take a tensor; what came before is written if there is no room for both in one shard."""
        if self._waiting and self._waiting_nbytes + len(tensor.data) > self._max_shard_nbytes:
            self._write_shard()
        self._waiting.append(tensor)
        self._waiting_nbytes += len(tensor.data)

    def publish(self, metadata: Mapping[str, str]) -> None:
        """Write the last shard, name all, and write the index with its `metadata`."""
        if self._waiting:
            self._write_shard()
        files: dict[str, str] = {}
        for number, (path, names) in enumerate(self._shards, 1):
            name = f"model-{number:05d}-of-{len(self._shards):05d}.safetensors"
            self._rename(path, name)
            files |= dict.fromkeys(names, name)
        sync_directory(self._folder)
        index = checked_index(dump({"metadata": dict(metadata), "weight_map": files}))
        self._rename(self._write([index]), INDEX_NAME)
        for name in temporary_files(self._folder):  # of writers that were killed; one that lives has lost the place
            (self._folder / name).unlink(missing_ok=True)
        sync_directory(self._folder)
        sync_directory(self._folder.parent)

    def _write_shard(self) -> None:
        tensors = {tensor.name: tensor for tensor in self._waiting}
        entries = packed((name, dtype, shape, len(data)) for name, dtype, shape, data, *_ in self._waiting)
        checksums = {entry.name: tensors[entry.name].checksum for entry in entries}
        prefix = build_header({**self._metadata, **checksums}, entries).prefix
        for tensor in self._waiting:
            tensor.check_memory()
        path = self._write([prefix, *(tensors[entry.name].data for entry in entries)])
        for tensor in self._waiting:
            tensor.check_memory()  # what was written last may have been read after that
        self._shards.append((path, list(checksums)))
        self._waiting, self._waiting_nbytes = [], 0

    def _write(self, parts: Iterable[bytes | memoryview]) -> Path:
        """A new file with these bytes, on the disk."""
        path = self._folder / temporary_name()
        self._paths.append(path)
        with OutputFile(path) as file:
            for part in parts:
                file.write(file.nbytes, part)
            file.sync()
        return path

    def _rename(self, path: Path, name: str) -> None:
        """Give a file its name; FileExistsError if another one has it."""
        rename_new(path, self._folder / name)
        self._paths.append(self._folder / name)

    def __enter__(self) -> NewVersion:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            for path in reversed(self._paths):
                path.unlink(missing_ok=True)
            remove_empty(self._folder)
