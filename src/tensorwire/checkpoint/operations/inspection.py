"""What is in a checkpoint, tensor by tensor, and how far it is from the bound."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from math import log2, prod
from typing import TYPE_CHECKING

from ...codec import exponent_histogram, float_fields, new_buffer
from ...errors import ErrorContext
from ..directory.paths import MANIFEST_NAME, is_safetensors, scan
from ..directory.sources import absolute, compressed_directory
from ..file.reader import StoredFile
from ..progress import Meter
from ..results import InspectReport, TensorInfo
from ..storage.pipeline import WINDOW_NBYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from ...codec import BlockInfo, FrameReader
    from ..file.reader import StoredTensor
    from ..progress import Progress


def inspect(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] = (),
    threads: int | None = None,
    progress: Progress | None = None,
) -> InspectReport:
    """Describe every tensor of a file or directory, plain or compressed: see `TensorInfo`. Reads their data once.

    Args:
        names: patterns as the shell has them; only tensors whose name matches one of them are described. None: all.
        progress: called from this thread with the bytes of the files done and to be done, and the relative path of the
            file at work: see `Progress`.

    Raises:
        FormatError: the data is damaged.
        OSError: `path` cannot be read.
        ValueError: `path` is a directory without a .safetensors file, or no name matches.
    """
    root = absolute(path)
    files = safetensors_files(root)
    meter = Meter(progress, sum(location.stat().st_size for location in files.values()))
    tensors: list[TensorInfo] = []
    metadata: dict[str, str] = {}
    compressed, restorable, file_nbytes = False, True, 0
    for name, location in files.items():
        meter.begin(name, location.stat().st_size)
        with StoredFile(location) as stored, ErrorContext(file=location):
            compressed = compressed or stored.compressed
            restorable = restorable and stored.record() is not None
            metadata = {**stored.metadata, **metadata}
            file_nbytes += stored.file.nbytes
            for tensor in stored.tensors.values():
                if names and not any(fnmatchcase(tensor.name, pattern) for pattern in names):
                    continue
                with ErrorContext(tensor=tensor.name):
                    tensors.append(_describe(stored, tensor, name, threads))
                meter.advance(tensor.entry.nbytes)
            meter.end()
    if names and not tensors:
        raise ValueError(f"{root} has no tensor whose name matches {' or '.join(map(repr, names))}")
    if root.is_dir() and (root / MANIFEST_NAME).exists():
        compressed_directory(root)
        restorable = True
    return InspectReport(
        path=str(path),
        kind="compressed" if compressed else "plain",
        files=tuple(files),
        tensors=tuple(tensors),
        metadata=metadata,
        file_nbytes=file_nbytes,
        restorable=restorable,
    )


def safetensors_files(root: Path) -> dict[str, Path]:
    """The safetensors files of a directory by relative path, or the one file that `root` is.

    Raises:
        ValueError: there is none.
    """
    if not root.is_dir():
        return {root.name: root}
    files = {file.path: file.location for file in scan(root).files if is_safetensors(file.path)}
    if not files:
        raise ValueError(f"{root} holds no .safetensors file")
    return files


def _describe(stored: StoredFile, tensor: StoredTensor, file: str, threads: int | None) -> TensorInfo:
    dtype, shape, nbytes = stored.layout(tensor.name)
    numel = prod(shape)
    counts = _count_exponents(stored, tensor, dtype, nbytes, threads) if float_fields(dtype) and numel else None
    info = TensorInfo(
        name=tensor.name,
        file=file,
        dtype=dtype,
        shape=shape,
        numel=numel,
        nbytes=nbytes,
        stored_nbytes=tensor.entry.nbytes,
        exponent_entropy=_entropy(counts) if counts else None,
        exponent_counts=tuple(counts) if counts else None,
    )
    if not tensor.compressed:
        return info
    frame = stored.frame(tensor)
    num_blocks: dict[str, int] = {}
    sign_mantissa_nbytes = 0
    for block in _blocks(stored, tensor, frame):
        num_blocks[block.kind] = num_blocks.get(block.kind, 0) + 1
        sign_mantissa_nbytes += block.rest_nbytes
    return replace(
        info,
        profile=frame.info.profile,
        num_blocks=num_blocks,
        sign_mantissa_bits=sign_mantissa_nbytes * 8 / numel if counts else None,
        exponent_bits=(tensor.entry.nbytes - sign_mantissa_nbytes) * 8 / numel if counts else None,
    )


def _count_exponents(
    stored: StoredFile, tensor: StoredTensor, dtype: str, nbytes: int, threads: int | None
) -> list[int]:
    counts = [0] * 256
    buffer = new_buffer(min(WINDOW_NBYTES, nbytes))
    for start in range(0, nbytes, WINDOW_NBYTES):
        chunk = buffer[: min(WINDOW_NBYTES, nbytes - start)]
        stored.read(tensor, start, chunk, threads=threads)
        counts = exponent_histogram(dtype, chunk, counts)
    return counts


def _blocks(stored: StoredFile, tensor: StoredTensor, frame: FrameReader) -> list[BlockInfo]:
    infos: list[BlockInfo] = []
    base = stored.header.data_start + tensor.entry.start + frame.info.header_nbytes
    step = max(1, WINDOW_NBYTES // frame.block_nbytes)
    for first in range(0, frame.info.num_blocks, step):
        count = min(step, frame.info.num_blocks - first)
        stop = min((first + count) * frame.block_nbytes, frame.info.uncompressed_nbytes)
        lo, hi = frame.data_range(first * frame.block_nbytes, stop)
        infos += frame.block_infos(stored.file.read(base + lo, hi - lo), data_offset=lo, first=first, count=count)
    return infos


def _entropy(counts: list[int]) -> float:
    total = sum(counts)
    return sum(count / total * log2(total / count) for count in counts if count)
