"""What is in a checkpoint, tensor by tensor, and how far it is from the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from math import log2, prod
from typing import TYPE_CHECKING, Any

from ..._ground.allocation import new_buffer
from ...codec import exponent_histogram, float_fields
from ...errors import BaseMismatchError, ErrorContext
from ...files.torch_file import open_stored
from ...storage.locations import locate, said
from ...storage.pipeline import WINDOW_NBYTES
from ...storage.progress import Meter
from ..bases import enter, name_of
from ..directory.manifest import manifest_of, record_of
from ..directory.shards import tensor_files
from ..results import InspectReport, RecordedBase, TensorInfo

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from ...codec import BlockInfo
    from ...files.base import Base
    from ...files.reader import StoredFile, StoredTensor
    from ...storage.locations import Location
    from ...storage.progress import Progress
    from ..bases import BasePath


def inspect(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] = (),
    base: BasePath | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> InspectReport:
    """Describe every tensor of a file or directory, plain or compressed: see `TensorInfo`. Reads their data once, as a
    trusting reader (docs/format.md).

    Args:
        names: patterns as the shell has them; only tensors whose name matches one of them are described. None: all.
        base: the checkpoint that this one is relative to, as for `verify`. The report says whether it is the right
            one, tensor by tensor. Without it the exponents of relative tensors are not known.
        progress: called from this thread with the bytes of the files done and to be done, and the relative path of the
            file at work: see `Progress`.

    Raises:
        FormatError: the data is damaged.
        OSError: `path` cannot be read.
        ValueError: `path` is a directory without a file of tensors, or no name matches; or `base` lacks what
            it is relative to.
    """
    with ExitStack() as stack:
        opened = enter(stack, base, storage_options)
        report = _inspect(locate(path, storage_options), names, threads, progress, opened)
    return replace(report, path=said(path), base=name_of(base))


def _inspect(
    root: Location, names: Sequence[str], threads: int | None, progress: Progress | None, base: Base | None
) -> InspectReport:
    files = tensor_files(root)
    meter = Meter(progress, sum(location.stat().st_size for location in files.values()))
    tensors: list[TensorInfo] = []
    metadata: dict[str, str] = {}
    compressed, restorable, file_nbytes = False, True, 0
    recorded: RecordedBase | None = None
    for name, location in files.items():
        meter.begin(name, location.stat().st_size)
        with open_stored(location) as stored, ErrorContext(file=location):
            stored.use_base(base, name)
            if recorded is None and stored.base_name is not None:
                recorded = RecordedBase(stored.base_name, stored.base_hash)
            compressed = compressed or stored.compressed
            restorable = restorable and (stored.record() if root.is_dir() else record_of(stored)) is not None
            metadata = {**(stored.metadata or {}), **metadata}
            file_nbytes += location.stat().st_size
            chosen = [tensor for tensor in stored.tensors.values() if _is_named(tensor.name, names)]
            stored.expect(chosen)
            for tensor in chosen:
                with ErrorContext(tensor=tensor.name):
                    tensors.append(_describe(stored, tensor, name, threads, base))
                meter.advance(tensor.entry.nbytes)
            meter.end()
    if names and not tensors:
        text = f"{root} has no tensor whose name matches {' or '.join(map(repr, names))}"
        plain = next((name for name in names if not set(name) & set("*?[")), None)
        raise ValueError(text if plain is None else f"{text}; patterns are those of a shell: try {f'*{plain}*'!r}")
    manifest = manifest_of(root) if root.is_dir() and compressed else None
    if manifest is not None:
        recorded = recorded if manifest.base is None else RecordedBase(*manifest.base)
        restorable = True
    if recorded is not None and recorded.hash is not None and base is not None:
        recorded = replace(recorded, found=base.tensors_hash(threads) == recorded.hash)
    return InspectReport(
        path=str(root),
        kind="compressed" if compressed else "plain",
        files=tuple(files),
        tensors=tuple(tensors),
        metadata=metadata,
        file_nbytes=file_nbytes,
        restorable=restorable,
        recorded_base=recorded,
    )


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _describe(
    stored: StoredFile, tensor: StoredTensor, file: str, threads: int | None, base: Base | None
) -> TensorInfo:
    dtype, shape, nbytes = stored.layout(tensor.name)
    numel = prod(shape)
    relative = stored.is_relative(tensor)
    is_beside = relative and not stored.needs_base(tensor)
    found = _has_base(stored, tensor, threads) if is_beside or (relative and base is not None) else None
    counts = None
    if float_fields(dtype) and numel and (not relative or found):
        counts = _count_exponents(stored, tensor, dtype, nbytes, threads)
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
    if frame.info.data_nbytes == 0 and frame.info.num_blocks:
        num_blocks["same"] = frame.info.num_blocks
    sign_mantissa_nbytes = 0
    for block in _blocks(stored, tensor):
        num_blocks[block.kind] = num_blocks.get(block.kind, 0) + 1
        sign_mantissa_nbytes += block.rest_nbytes
    info = replace(info, profile=frame.info.profile, num_blocks=num_blocks)
    if relative:  # its bits are not those of exponents, but of what has changed
        return replace(
            info,
            base_name=stored.name_in_base(tensor),
            base_file=stored.file_beside(tensor),
            base_hash=frame.info.base_hash,
            base_found=found,
        )
    return replace(
        info,
        sign_mantissa_bits=sign_mantissa_nbytes * 8 / numel if counts else None,
        exponent_bits=(tensor.entry.nbytes - sign_mantissa_nbytes) * 8 / numel if counts else None,
    )


def _has_base(stored: StoredFile, tensor: StoredTensor, threads: int | None) -> bool:
    try:
        stored.base_of(tensor, threads=threads)
    except BaseMismatchError:
        return False
    return True


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


def _blocks(stored: StoredFile, tensor: StoredTensor) -> Iterator[BlockInfo]:
    for first, count, offset, data in stored.block_ranges(tensor):
        yield from stored.frame(tensor).block_infos(data, data_offset=offset, first=first, count=count)


def _entropy(counts: list[int]) -> float:
    total = sum(counts)
    return sum(count / total * log2(total / count) for count in counts if count)
