"""Which tensors of two checkpoints differ, and by how much."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ...codec import dtype_bits, new_buffer
from ..directory.manifest import read_manifest
from ..directory.paths import MANIFEST_NAME, is_history, is_index, is_safetensors, scan
from ..directory.shards import safetensors_files
from ..directory.sources import absolute
from ..file.reader import StoredFile
from ..file.transfer import copy_file
from ..progress import Meter
from ..results import DiffReport, TensorDiff
from ..storage.files import InputFile
from ..storage.pipeline import WINDOW_NBYTES
from .bases import open_base
from .delta_stats import DeltaCounter

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ..file.base import Base
    from ..file.reader import StoredTensor
    from ..progress import Progress
    from .delta_stats import Read


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    stats: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> DiffReport:
    """Compare the tensors of two files or directories, each plain or compressed, by bits.

    How tensors are spread over files does not matter, unless a directory has several tensors of one name, as
    directories of diffusers have: then the tensors of files with the same relative path are compared.

    Args:
        base: the checkpoint that `a` or `b` is relative to, or both are.
        stats: say too what a delta from `a` to `b` would take: see `DeltaStats`. It encodes `b` relative to `a`.
        progress: called from this thread with the bytes of the tensors of `a` done and to be done, and the name of the
            tensor at work: see `Progress`.

    Raises:
        BaseMismatchError: `a` or `b` is relative, and `base` is missing or not the right one.
        FormatError: the data is damaged.
        OSError: `a` or `b` cannot be read.
        ValueError: `a` or `b` is a directory without a .safetensors file.
    """
    started = time.monotonic()
    root_a, root_b = absolute(a), absolute(b)
    with ExitStack() as stack:
        opened = None if base is None else stack.enter_context(closing(open_base(base)))
        places_a, places_b = _open(root_a, stack, opened), _open(root_b, stack, opened)
        by_file = any(len({place.tensor.name for place in places}) < len(places) for places in (places_a, places_b))
        tensors_a, tensors_b = _by_key(places_a, by_file), _by_key(places_b, by_file)
        keys = sorted(tensors_a.keys() | tensors_b.keys())
        meter = Meter(progress, sum(place.nbytes for place in places_a))
        differing = []
        counter = DeltaCounter(threads) if stats else None
        for key in keys:
            place_a, place_b = tensors_a.get(key), tensors_b.get(key)
            meter.begin(key[1], place_a.nbytes if place_a is not None else 0)
            found = _compare(key[1], place_a, place_b, threads, meter)
            if counter is not None and place_b is not None:
                counter.add(place_b.dtype, place_b.shape, place_b.nbytes, *_readers(place_a, place_b, threads))
            meter.end()
            if found is not None:
                differing.append(found)
    both_directories = root_a.is_dir() and root_b.is_dir()
    return DiffReport(
        a=str(a),
        b=str(b),
        num_equal=len(keys) - len(differing),
        num_different_elements=sum(tensor.num_different for tensor in differing if tensor.status == "changed"),
        tensors=tuple(differing),
        files=_differing_files(root_a, root_b) if both_directories else (),
        seconds=time.monotonic() - started,
        by_file=by_file,
        stats=None if counter is None else counter.stats(),
    )


class _Place(NamedTuple):
    """Where a tensor is, and what it is. `file` is a relative path."""

    file: str
    stored: StoredFile
    tensor: StoredTensor
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def _open(root: Path, stack: ExitStack, base: Base | None) -> list[_Place]:
    places = []
    for file, location in safetensors_files(root).items():
        stored = stack.enter_context(StoredFile(location))
        stored.use_base(base, file)
        for name, tensor in stored.tensors.items():
            places.append(_Place(file, stored, tensor, *stored.layout(name)))
            stored.forget(tensor)
    return places


def _by_key(places: list[_Place], by_file: bool) -> dict[tuple[str, str], _Place]:
    """Tensors by file, "" unless `by_file`, and name: what they have in common with those that they are compared to."""
    return {(place.file if by_file else "", place.tensor.name): place for place in places}


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
            file_a=a and a.file,
            file_b=b and b.file,
        )
    num_different, first = _count_different(a, b, threads, meter)
    if not num_different:
        return None
    numel = prod(a.shape)
    return TensorDiff(name, "changed", numel, num_different, a.dtype, a.shape, b.dtype, b.shape, first, a.file, b.file)


def _readers(a: _Place | None, b: _Place, threads: int | None) -> tuple[Read, Read | None]:
    """What reads the tensor of `b`, and the one that a delta would have as its base.

    Raises:
        BaseMismatchError: that of `b` is a relative frame, and has no base of its size, which bounds what it claims.
    """
    if b.stored.is_relative(b.tensor):
        b.stored.base_of(b.tensor, threads=threads, verify=False)

    def read(place: _Place, start: int, out: memoryview) -> None:
        place.stored.read(place.tensor, start, out, threads=threads)

    fits = a is not None and (a.dtype, a.nbytes) == (b.dtype, b.nbytes)
    return partial(read, b), partial(read, a) if a is not None and fits else None


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
