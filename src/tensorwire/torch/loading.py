"""The loader of tensors that stay compressed: ``load_file(..., compressed=True)`` and `open_file` use it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._ground.allocation import new_buffer
from .._ground.copies import not_copied
from ..codec import as_array, torch_name
from ..files.load_ahead import LoadAhead
from ..files.loader import load_contents
from ..storage.ahead import Ahead, aligned
from ..storage.direct import DirectFile
from ..storage.pages import PagesAhead
from .frames.blocks import FileBlocks, Reads
from .frames.open_frame import Origin, attach, opened
from .modules import DTYPES, MIN_NUMEL
from .tensors.compressed_tensor import CompressedTensor

if TYPE_CHECKING:
    from ..files.loader import Verify
    from ..files.reader import StoredFile, StoredTensor
    from ..storage.locations import Location

_MIN_FILE_FRAME_NBYTES = 1 << 20
"""Smaller frames are always kept in memory: to read them takes as long as to read this."""


class CompressedLoader:
    """Loads the compressed tensors of one checkpoint. Thread-safe once `plan` has returned.

    Args:
        device: where they go, None for the CPU.
        resident_nbytes: how many bytes of frames are kept in memory, None for all. The others stay in their files.

    Raises:
        ValueError: `resident_nbytes` is negative, or given for a device.
    """

    __reduce_ex__ = not_copied("open files and threads", "make one for each time that files are opened")

    def __init__(self, device: Any, resident_nbytes: int | None) -> None:
        if resident_nbytes is not None and resident_nbytes < 0:
            raise ValueError(f"expected resident_nbytes from 0 on, got {resident_nbytes}")
        if resident_nbytes is not None and device is not None:
            raise ValueError(f"expected resident_nbytes for the CPU alone, got it for {device}")
        self._device = device
        self._resident_nbytes = resident_nbytes
        self._in_file: set[tuple[Location, str]] = set()
        self._reads: Ahead[FileBlocks] | None = None
        self._pages = PagesAhead()
        self._files: dict[Location, DirectFile] = {}

    def plan(self, files: Sequence[StoredFile]) -> None:
        """Choose the frames that stay in their files: evenly from among all, so that one is read while others are used
        that are in memory.
        """
        if self._resident_nbytes is None:
            return
        if far := [file.path for file in files if not isinstance(file.path, Path)]:
            raise ValueError(f"resident_nbytes leaves frames in files of this machine, and {far[0]} is none: copy it")
        frames = [
            (file.path, tensor.name, tensor.entry.nbytes)
            for file in files
            for tensor in file.tensors.values()
            if tensor.compressed and tensor.entry.nbytes >= _MIN_FILE_FRAME_NBYTES
        ]
        total = sum(nbytes for _, _, nbytes in frames)
        seen = kept = largest = 0
        for path, name, nbytes in frames:
            seen += nbytes
            if (kept + nbytes) * total <= self._resident_nbytes * seen:
                kept += nbytes
            else:
                self._in_file.add((path, name))
                largest = max(largest, nbytes)
        if self._in_file:
            room = 2 * aligned(largest + aligned(1))
            self._reads = Ahead(Reads(), room)
            paths = {path for path, _ in self._in_file}
            self._files = {file.path: DirectFile(file.local) for file in files if file.path in paths}

    def load(
        self, stored: StoredFile, tensors: Sequence[StoredTensor], threads: int, verify: Verify
    ) -> dict[str, CompressedTensor]:
        """The tensors that stay compressed, by name: floats that are stored compressed and not small.

        Relative ones are decoded with their base, checked unless `verify` is False, and compressed anew.

        Raises:
            FormatError: the data is damaged.
            OSError: reading fails, or the file cannot be mapped.
        """
        chosen = [tensor for tensor in tensors if stays_compressed(stored, tensor, MIN_NUMEL)]
        loaded: dict[str, CompressedTensor] = {}
        plain = []
        for tensor in chosen:
            if stored.is_relative(tensor):
                anew = _compressed_anew(stored, tensor, threads, verify is not False)
                if anew is not None:
                    loaded[tensor.name] = anew
            elif (stored.path, tensor.name) in self._in_file:
                loaded[tensor.name] = self._left_in_file(stored, tensor, verify)
            elif isinstance(stored.path, Path):
                plain.append(tensor)
            else:
                loaded[tensor.name] = _in_memory(stored, tensor, verify)
        for tensor, data in zip(plain, _frames(stored, plain, threads, verify), strict=True):
            loaded[tensor.name] = mapped(stored, tensor, data, verify is True)
        self._pages.add(stored.place_in_map(tensor) for tensor in plain)
        if self._device is not None:
            loaded = {name: tensor.to(self._device) for name, tensor in loaded.items()}
        return loaded

    def _left_in_file(self, stored: StoredFile, tensor: StoredTensor, verify: Verify) -> CompressedTensor:
        assert self._reads is not None
        file = self._files[stored.path]
        start = stored.header.data_start + tensor.entry.start
        frame = torch.frombuffer(file.file.map, dtype=torch.uint8, offset=start, count=tensor.entry.nbytes)
        origin = Origin(str(stored.path), tensor.name, verify is not False)
        info = stored.frame(tensor).info
        blocks = FileBlocks(file, start + info.header_nbytes, info.data_nbytes, self._reads)
        attach(frame, origin, file.file, blocks)
        if verify == "load":
            opened(frame).check()
        return CompressedTensor(frame)


def mapped(stored: StoredFile, tensor: StoredTensor, frame: memoryview, verify: bool) -> CompressedTensor:
    """A tensor over its frame in a memory map of the file. With `verify` its blocks are yet to be checked."""
    origin = Origin(str(stored.path), tensor.name, verify)
    return CompressedTensor(attach(torch.frombuffer(frame, dtype=torch.uint8), origin, stored.local.duplicate()))


def _in_memory(stored: StoredFile, tensor: StoredTensor, verify: Verify) -> CompressedTensor:
    """A tensor over its frame, which is read into memory."""
    frame = new_buffer(tensor.entry.nbytes)
    stored.file.read_into(stored.header.data_start + tensor.entry.start, frame)
    if verify == "load":
        stored.check_mapped(tensor, frame, 0, stored.frame(tensor).info.num_blocks)
    origin = Origin(str(stored.path), tensor.name, verify is True)
    return CompressedTensor(attach(torch.frombuffer(frame, dtype=torch.uint8), origin))


def stays_compressed(stored: StoredFile, tensor: StoredTensor, min_numel: int) -> bool:
    """Whether torch has tensors of this kind compressed, and this one is not small."""
    if not tensor.compressed:
        return False
    info = stored.frame(tensor).info
    name = torch_name(info.dtype)
    return name is not None and getattr(torch, name, None) in DTYPES and math.prod(info.shape) >= min_numel


def _frames(stored: StoredFile, tensors: Sequence[StoredTensor], threads: int, verify: Verify) -> Iterator[memoryview]:
    """The frames as they are: memory maps of the file. With "load" all blocks are checked, and so read."""
    if verify != "load" or not tensors:
        yield from map(stored.mapped_frame, tensors)
        return
    ahead = LoadAhead([(stored, tensor) for tensor in tensors], lambda stored, tensor: True, threads)
    for tensor in tensors:
        yield ahead.take(stored, tensor).data


def _compressed_anew(stored: StoredFile, tensor: StoredTensor, threads: int, verify: bool) -> CompressedTensor | None:
    """None if that would not make it smaller."""
    info = stored.frame(tensor).info
    stored.check_label(tensor)
    (data,) = load_contents(stored, [tensor], [info.uncompressed_nbytes], threads, verify)
    compressed = CompressedTensor.from_dense(as_array(data, info.dtype, info.shape, "pt"), info.profile)
    return compressed if compressed.frame.numel() < info.uncompressed_nbytes else None
