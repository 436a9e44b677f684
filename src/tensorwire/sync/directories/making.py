"""Files of a version: which tensors they hold, and how they are written of the ones that serve and what changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ..._ground.allocation import new_buffer
from ..._ground.filesystem import naming, reserve
from ...codec import ContentHasher
from ...errors import BaseMismatchError
from ...files.header import Header, build_header, packed
from ...files.json_object import dump
from ...storage.local import InputFile, write_at
from ..frames import piece_nbytes
from ..versions import nbytes_of

if TYPE_CHECKING:
    from ..._ground.folder import Folder
    from ...files.header import TensorEntry
    from ...files.reader import StoredFile
    from ..frames import Fetched
    from ..versions import Tensors, Version

    Checkpoint = Mapping[str, StoredFile]
    Plan = Mapping[str, Sequence[Version]]
    Fetch = Callable[[str, Version], Fetched]

_FILE_NBYTES = 4 << 30
"""About how large a file becomes where no files stood before."""


class Writer:
    """Writes files of a version. A piece of a tensor stays in the cache from reading its base to writing it."""

    def __init__(self, current: Checkpoint, goal: Tensors, plan: Plan, fetch: Fetch, threads: int) -> None:
        """
        Args:
            current: the files that serve.
            goal: the tensors of the version.
            plan: by tensor the versions whose frames make it of the one that serves; none for one that stays.
            fetch: gives these frames.
        """
        self._places = {
            name: (stored, tensor) for stored in current.values() for name, tensor in stored.tensors.items()
        }
        self._goal, self._plan, self._fetch, self._threads = goal, plan, fetch, threads
        self._buffer = new_buffer(0)

    def write(self, folder: Folder, name: str, header: Header) -> None:
        """Make a file, and wait until it is on the disk.

        Raises:
            BaseMismatchError: a tensor that serves is not what it should be.
        """
        with _open(folder, name, os.O_CREAT | os.O_EXCL) as file:
            write_at(file.descriptor.number, 0, memoryview(header.prefix), file.path)
            for entry in header.entries:
                self._write_tensor(file, header.data_start + entry.start, entry, is_new=True)
            os.fsync(file.descriptor.number)

    def write_into(self, folder: Folder, name: str, header: Header) -> None:
        """Write what changes into the file that serves, and wait until it is on the disk."""
        with _open(folder, name, 0) as file:
            for entry in header.entries:
                if self._plan[entry.name]:
                    self._write_tensor(file, header.data_start + entry.start, entry, is_new=False)
            os.fsync(file.descriptor.number)

    def _write_tensor(self, file: InputFile, position: int, entry: TensorEntry, *, is_new: bool) -> None:
        """The hash of the result is checked, and so is that of a tensor that is copied as it is: a disk may have
        changed it without a trace, and the version that is made would hand that on."""
        for number, group in enumerate(self._groups(entry)):
            read = self._base_of(entry) if number == 0 else partial(_read_at, file, position)
            if read is None and (not group or group[0].is_relative):
                raise BaseMismatchError("the tensor that serves is gone", file=file.path, tensor=entry.name)
            if is_new and number == 0:  # not before: the frame or the base has shown that the index does not lie
                with naming(file.path):
                    reserve(file.descriptor.number, position, entry.nbytes)
            hasher = ContentHasher(threads=self._threads)
            for start, out in self._pieces(entry.nbytes, group):
                if read is not None:
                    read(start, out)
                for each in group:
                    each.make_piece(entry.name, start, out, self._threads)
                hasher.update(out)
                write_at(file.descriptor.number, position + start, out, file.path)
            found = hasher.hexdigest()
            if group:
                group[-1].check(entry.name, found, had_base=group[0].is_relative)
            elif found != self._goal[entry.name].hash:
                raise BaseMismatchError(
                    f"expected content with hash {self._goal[entry.name].hash}, got {found}",
                    file=file.path,
                    tensor=entry.name,
                )

    def _base_of(self, entry: TensorEntry) -> Callable[[int, memoryview], None] | None:
        """Reads what the tensor is now, if it has the same layout then."""
        stored, tensor = self._places.get(entry.name, (None, None))
        if stored is None or tensor is None or stored.layout(entry.name)[:2] != self._goal[entry.name].layout:
            return None
        return partial(stored.read, tensor, threads=self._threads)

    def _groups(self, entry: TensorEntry) -> Iterator[list[Fetched]]:
        """What makes the tensor, one after the other. What is applied in one go takes about as much memory as it."""
        group: list[Fetched] = []
        nbytes = 0
        for link in self._plan[entry.name]:
            if group and nbytes >= entry.nbytes:
                yield group
                group, nbytes = [], 0
            group.append(self._fetch(entry.name, link))
            nbytes += len(group[-1].data)
        yield group

    def _pieces(self, nbytes: int, group: Sequence[Fetched]) -> Iterator[tuple[int, memoryview]]:
        """Where each piece of a tensor begins, and memory for it. They are whole blocks of all frames."""
        piece = piece_nbytes(group, self._threads)
        if len(self._buffer) < min(piece, nbytes):
            self._buffer = new_buffer(min(piece, nbytes))
        for start in range(0, nbytes, piece):
            yield start, self._buffer[: min(piece, nbytes - start)]


def _open(folder: Folder, name: str, flags: int) -> InputFile:
    """A file to write and to read again."""
    return InputFile(folder.path / name, folder.open(name, os.O_RDWR | flags))


def _read_at(file: InputFile, position: int, start: int, out: memoryview) -> None:
    file.read_into(position + start, out)


def holds(headers: Mapping[str, Header], tensors: Tensors) -> bool:
    """Whether files have room for these tensors and no others, each once."""
    entries = list(chain.from_iterable(header.entries for header in headers.values()))
    found = {entry.name: (entry.dtype, entry.shape) for entry in entries}
    return len(entries) == len(tensors) and found == {name: tensor.layout for name, tensor in tensors.items()}


def changes(header: Header, plan: Plan) -> bool:
    """Whether a tensor of a file changes."""
    return any(plan[entry.name] for entry in header.entries)


def new_layout(tensors: Tensors) -> dict[str, Header]:
    """Files for tensors, in their order; inside a file the widest dtypes come first, so that all are aligned."""
    files: list[list[str]] = [[]]
    nbytes = 0
    for name, tensor in tensors.items():
        if files[-1] and nbytes + nbytes_of(tensor) > _FILE_NBYTES:
            files.append([])
            nbytes = 0
        files[-1].append(name)
        nbytes += nbytes_of(tensor)
    layout = {}
    for number, names in enumerate(files, 1):
        file = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        layout[file] = build_header(
            {"format": "pt"}, packed((name, *tensors[name].layout, nbytes_of(tensors[name])) for name in names)
        )
    return layout


def index_of(layout: Mapping[str, Header]) -> bytes:
    """The index of several files."""
    total = sum(header.data_nbytes for header in layout.values())
    homes = {entry.name: file for file, header in layout.items() for entry in header.entries}
    return dump({"metadata": {"total_size": total}, "weight_map": homes})
