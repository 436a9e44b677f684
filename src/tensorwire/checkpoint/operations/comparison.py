"""Which tensors of two checkpoints differ, and by how much."""

from __future__ import annotations

import time
from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...codec import dtype_bits, new_buffer
from ...errors import CorruptDataError
from ..directory.manifest import read_manifest
from ..directory.paths import MANIFEST_NAME, is_history, is_index, is_safetensors, scan
from ..directory.sources import absolute
from ..file.names import shown
from ..file.reader import StoredFile
from ..file.transfer import copy_file
from ..progress import Meter
from ..results import DiffReport, TensorDiff
from ..storage.files import InputFile
from ..storage.pipeline import WINDOW_NBYTES
from .inspection import safetensors_files

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ..file.reader import StoredTensor
    from ..progress import Progress


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> DiffReport:
    """Compare the tensors of two files or directories, each plain or compressed, by bits.

    How tensors are spread over files does not matter.

    Raises:
        FormatError: the data is damaged, or two files of a directory hold tensors of the same name.
        OSError: `a` or `b` cannot be read.
        ValueError: `a` or `b` is a directory without a .safetensors file.
    """
    started = time.monotonic()
    root_a, root_b = absolute(a), absolute(b)
    with ExitStack() as stack:
        tensors_a, tensors_b = _open(root_a, stack), _open(root_b, stack)
        names = sorted(tensors_a.keys() | tensors_b.keys())
        meter = Meter(progress, sum(place.nbytes for place in tensors_a.values()))
        differing = []
        for name in names:
            place_a, place_b = tensors_a.get(name), tensors_b.get(name)
            meter.begin(name, place_a.nbytes if place_a is not None else 0)
            found = _compare(name, place_a, place_b, threads, meter)
            meter.end()
            if found is not None:
                differing.append(found)
    both_directories = root_a.is_dir() and root_b.is_dir()
    return DiffReport(
        a=str(a),
        b=str(b),
        num_equal=len(names) - len(differing),
        num_different_elements=sum(tensor.num_different for tensor in differing if tensor.status == "changed"),
        tensors=tuple(differing),
        files=_differing_files(root_a, root_b) if both_directories else (),
        seconds=time.monotonic() - started,
    )


class _Place(NamedTuple):
    """Where a tensor is, and what it is."""

    stored: StoredFile
    tensor: StoredTensor
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def _open(root: Path, stack: ExitStack) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for location in safetensors_files(root).values():
        stored = stack.enter_context(StoredFile(location))
        for name, tensor in stored.tensors.items():
            if name in places:
                raise CorruptDataError(
                    f"expected each tensor in one file, {shown(name)} is also in {places[name].stored.path}",
                    file=location,
                )
            places[name] = _Place(stored, tensor, *stored.layout(name))
            stored.forget(tensor)
    return places


def _compare(name: str, a: _Place | None, b: _Place | None, threads: int | None, meter: Meter) -> TensorDiff | None:
    """How a tensor differs; None if it does not."""
    if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        side = a or b
        assert side is not None
        status = "added" if a is None else "removed" if b is None else "retyped"
        return TensorDiff(
            name,
            status,
            prod(side.shape),
            prod(side.shape),
            dtype_a=a and a.dtype,
            shape_a=a and a.shape,
            dtype_b=b and b.dtype,
            shape_b=b and b.shape,
        )
    num_different, first = _count_different(a, b, threads, meter)
    if not num_different:
        return None
    numel = prod(a.shape)
    return TensorDiff(name, "changed", numel, num_different, a.dtype, a.shape, b.dtype, b.shape, first)


def _count_different(a: _Place, b: _Place, threads: int | None, meter: Meter) -> tuple[int, int | None]:
    """How many elements differ, and the index of the first."""
    size = min(WINDOW_NBYTES, a.nbytes)
    buffers = new_buffer(size), new_buffer(size)
    bits = dtype_bits(a.dtype)
    total, first = 0, None
    for start in range(0, a.nbytes, WINDOW_NBYTES):
        count = min(WINDOW_NBYTES, a.nbytes - start)
        left, right = buffers[0][:count], buffers[1][:count]
        a.stored.read(a.tensor, start, left, threads=threads)
        b.stored.read(b.tensor, start, right, threads=threads)
        indexes = _different_indexes(left, right, bits)
        if len(indexes):
            if first is None:
                first = start * 8 // (bits or 8) + int(indexes[0])
            total += len(indexes)
        meter.advance(count)
    a.stored.forget(a.tensor)
    b.stored.forget(b.tensor)
    return total, first


def _different_indexes(left: memoryview, right: memoryview, bits: int) -> Any:
    """Indexes of the elements of `bits` bits that differ; of bytes for a dtype that has no known width."""
    import numpy

    if bits % 8 == 0:
        dtype = numpy.dtype(f"u{max(bits // 8, 1)}")
        return numpy.flatnonzero(numpy.frombuffer(left, dtype) != numpy.frombuffer(right, dtype))
    changed = numpy.bitwise_xor(numpy.frombuffer(left, numpy.uint8), numpy.frombuffer(right, numpy.uint8))
    if not changed.any():
        return numpy.empty(0, numpy.int64)
    return numpy.unique(numpy.flatnonzero(numpy.unpackbits(changed, bitorder="little")) // bits)


def _differing_files(a: Path, b: Path) -> tuple[str, ...]:
    hashes_a, hashes_b = _file_hashes(a), _file_hashes(b)
    names = hashes_a.keys() | hashes_b.keys()
    return tuple(sorted(name for name in names if hashes_a.get(name) != hashes_b.get(name)))


def _file_hashes(root: Path) -> dict[str, str]:
    """SHA-256 of the originals of a directory's files that are neither safetensors nor index, nor history."""
    manifest = read_manifest(root)
    if manifest is not None:
        return {file.path: file.sha256 for file in manifest.files if _counts(file.path)}
    hashes = {}
    for file in scan(root).files:
        if _counts(file.path):
            with InputFile(file.location) as source:
                hashes[file.path] = copy_file(source, None, advance=lambda _: None)
    return hashes


def _counts(path: str) -> bool:
    return not (is_safetensors(path) or is_index(path) or path == MANIFEST_NAME or is_history(path))
