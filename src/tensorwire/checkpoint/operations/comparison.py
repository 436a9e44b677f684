"""Which tensors of two checkpoints differ, and by how much."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ..._ground.allocation import new_buffer
from ...codec import dtype_bits
from ...files.base import Base
from ...files.torch_file import open_stored
from ...files.transfer import file_sha256
from ...storage.locations import locate, said
from ...storage.pipeline import WINDOW_NBYTES
from ...storage.progress import Meter
from ..bases import enter
from ..differences import DiffReport, TensorDiff
from ..directory.manifest import manifest_of
from ..directory.paths import MANIFEST_NAME, is_history, is_index, is_safetensors, scan
from ..directory.shards import tensor_files
from .delta_stats import DeltaCounter

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ...files.base import BaseTensor
    from ...storage.locations import Location
    from ...storage.progress import Progress
    from ..bases import BasePath


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    base: BasePath | None = None,
    stats: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DiffReport:
    """Compare the tensors of two files or directories, each plain or compressed, by bits: a trusting reader of both
    (docs/format.md).

    How tensors are spread over files does not matter, unless a directory has several tensors of one name, as
    directories of diffusers have: then the tensors of files with the same relative path are compared.

    Args:
        base: the checkpoint that `a` or `b` is relative to, or both are, as for `verify`.
        stats: say too what a delta from `a` to `b` would take: see `DeltaStats`. It encodes `b` relative to `a`, each
            tensor relative to the one that `compress_checkpoint` would choose.
        progress: called from this thread with the bytes of the tensors of `a` done and to be done, and the name of the
            tensor at work: see `Progress`.

    Raises:
        BaseMismatchError: `a` or `b` is relative, and `base` is missing or not the right one.
        FormatError: the data is damaged.
        OSError: `a` or `b` cannot be read.
        ValueError: `a` or `b` is a directory without a .safetensors file.
    """
    started = time.monotonic()
    root_a, root_b = locate(a, storage_options), locate(b, storage_options)
    with ExitStack() as stack:
        opened = enter(stack, base, storage_options)
        all_a, all_b = _open(root_a, stack, opened), _open(root_b, stack, opened)
        by_file = any(len(both.names()) < len(both.tensors()) for both in (all_a, all_b))
        tensors_a, tensors_b = _by_key(all_a, by_file), _by_key(all_b, by_file)
        keys = sorted(tensors_a.keys() | tensors_b.keys())
        meter = Meter(progress, sum(tensor.nbytes for tensor in tensors_a.values()))
        differing = []
        counter = DeltaCounter(threads) if stats else None
        for key in keys:
            tensor_a, tensor_b = tensors_a.get(key), tensors_b.get(key)
            meter.begin(key[1], tensor_a.nbytes if tensor_a is not None else 0)
            found = _compare(key[1], tensor_a, tensor_b, threads, meter)
            if counter is not None and tensor_b is not None:
                _count(counter, all_a, tensor_b, threads)
            meter.end()
            if found is not None:
                differing.append(found)
    both_directories = root_a.is_dir() and root_b.is_dir()
    return DiffReport(
        a=said(a),
        b=said(b),
        num_equal=len(keys) - len(differing),
        num_different_elements=sum(tensor.num_different for tensor in differing if tensor.status == "changed"),
        tensors=tuple(differing),
        files=_differing_files(root_a, root_b) if both_directories else (),
        seconds=time.monotonic() - started,
        by_file=by_file,
        stats=None if counter is None else counter.stats(),
    )


def _open(root: Location, stack: ExitStack, base: Base | None) -> Base:
    """All tensors of one side, as a base of the other could be; they are read with `base` where they are relative."""
    files = {file: stack.enter_context(open_stored(place)) for file, place in tensor_files(root).items()}
    for stored in files.values():
        stored.expect(stored.tensors.values())
    return Base(root, root.name, files, base)


def _by_key(side: Base, by_file: bool) -> dict[tuple[str, str], BaseTensor]:
    """Tensors by file, "" unless `by_file`, and name: what they have in common with those that they are compared to."""
    return {(tensor.file if by_file else "", tensor.name): tensor for tensor in side.tensors()}


def _compare(
    name: str, a: BaseTensor | None, b: BaseTensor | None, threads: int | None, meter: Meter
) -> TensorDiff | None:
    """How a tensor differs; None if it does not."""
    sides: dict[str, Any] = {
        f"{what}_{side}": getattr(tensor, what)
        for side, tensor in (("a", a), ("b", b))
        for what in ("dtype", "shape", "file")
        if tensor is not None
    }
    if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        numel = prod(sides["shape_b" if a is None else "shape_a"])
        return TensorDiff(name, "added" if a is None else "removed" if b is None else "retyped", numel, numel, **sides)
    num_different, first = _count_different(a, b, threads, meter)
    if not num_different:
        return None
    return TensorDiff(name, "changed", prod(a.shape), num_different, first_different=first, **sides)


def _count(counter: DeltaCounter, a: Base, b: BaseTensor, threads: int | None) -> None:
    """Count a tensor with what a delta would have as its base.

    Raises:
        BaseMismatchError: it is a relative frame, and has no base of its size, which bounds what it claims.
    """
    b.find_own_base(threads=threads, verify=False)
    old = a.match(b.file, b.name, b.dtype, b.nbytes, partial(b.hash, threads), threads)
    read_old = None if old is None else partial(old.read, threads=threads)
    counter.add(b.dtype, b.shape, b.nbytes, partial(b.read, threads=threads), read_old)


def _count_different(a: BaseTensor, b: BaseTensor, threads: int | None, meter: Meter) -> tuple[int, int | None]:
    """How many elements differ, and the index of the first."""
    size = min(WINDOW_NBYTES, a.nbytes)
    buffers = new_buffer(size), new_buffer(size)
    bits = dtype_bits(a.dtype)
    total, first = 0, None
    for start in range(0, a.nbytes, WINDOW_NBYTES):
        count = min(WINDOW_NBYTES, a.nbytes - start)
        left, right = buffers[0][:count], buffers[1][:count]
        a.read(start, left, threads=threads)
        b.read(start, right, threads=threads)
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


def _differing_files(a: Location, b: Location) -> tuple[str, ...]:
    hashes_a, hashes_b = _file_hashes(a), _file_hashes(b)
    names = hashes_a.keys() | hashes_b.keys()
    return tuple(sorted(name for name in names if hashes_a.get(name) != hashes_b.get(name)))


def _file_hashes(root: Location) -> dict[str, str]:
    """SHA-256 of the originals of a directory's files that are neither safetensors nor index, nor history; of a
    directory in which no file stands, whose path ends with a slash, an empty text."""
    manifest = manifest_of(root)
    if manifest is not None:
        hashes = dict.fromkeys(manifest.directories, "")
        return hashes | {file.path: file.sha256 for file in manifest.files if _counts(file.path)}
    found = scan(root)
    hashes = dict.fromkeys(found.directories, "")
    for file in found.files:
        if _counts(file.path):
            hashes[file.path] = file_sha256(file.location)
    return hashes


def _counts(path: str) -> bool:
    return not (is_safetensors(path) or is_index(path) or path == MANIFEST_NAME or is_history(path))
