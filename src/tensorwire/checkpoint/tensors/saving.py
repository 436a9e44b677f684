"""Tensors by name to one file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..._ground.destination import Destination
from ...codec import content_hash
from ...files.given_arrays import given_arrays
from ...files.names import METADATA_PREFIX, kept_metadata, shown
from ...files.reader import BASE_HASH_KEY
from ...files.writer import Coding, CompressedWriter, check_names, match_bases, write_with_bases
from ...storage.local import OutputFile
from ...storage.locations import locate, on_this_machine
from ...storage.spool import SpoolFile
from ...storage.staging import Staging
from ...storage.upload import check_bucket, put_file
from ..bases import check_apart, check_keeps_arrays, enter

if TYPE_CHECKING:
    import os
    from typing import Any

    from ...codec import Profile
    from ...files.base import BaseTensor
    from ...files.given_arrays import Arrays, Item
    from ...files.writer import Written
    from ...storage.readable import Writable
    from ..bases import PathOrArrays


def save_file(
    tensors: Mapping[str, Any] | Iterable[Item],
    path: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    base: PathOrArrays | None = None,
    metadata: Mapping[str, str] | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Write named tensors, compressed, to a safetensors file.

    As with safetensors' own function, a file that stands there is replaced without a question; here once the new one is
    whole, which gets the permissions of the old one. Only a regular file is replaced: never a directory, a link, a
    device or a pipe.

    Another thread may write to the tensors meanwhile. The file then holds a mix of old and new values (docs/api.md).

    Args:
        tensors: NumPy arrays or torch tensors by name. Or, for each tensor, name, dtype (as safetensors writes it),
            shape, and a callable that gives the array: then one array is alive at a time. A callable is called again
            where the content is needed again: if the tensor stays plain, if its base is looked for by content, or if a
            base has changed. It gives the same content each time.
        base: what the file is to be relative to, as for `compress_checkpoint`, or arrays by name; never the file
            itself. In a list of several, arrays may stand in last place. A tensor whose base is written to meanwhile
            is stored without it, and a RuntimeWarning says so.
        metadata: text for the header, as in safetensors.

    Returns:
        By name how many bytes of data each tensor takes in the file, without its part of the header.

    Raises:
        UnsupportedTensorError: a tensor, or an array of `base`, cannot be read or stored (device, layout, dtype).
        TypeError: `tensors` is neither of the two, or `base` is none.
        ValueError: names collide or are not allowed, metadata is not text, or the header would exceed 100 MB; a
            callable gives another dtype or shape; `base` is a chain that is not whole, or `path` is a file of it, or
            holds content of the arrays that the new file would be relative to.
        BaseMismatchError: `base` is relative to another one that is not the one behind it.
        FileExistsError: something stands at `path` that is not a regular file.
        BlockingIOError: another process is writing the same `path`.
        BufferError: the memory of a tensor was freed, moved or cut meanwhile.
        OSError: writing fails; the old file is unchanged.
    """
    written = write_file(
        tensors, path, profile=profile, base=base, metadata=metadata, threads=threads, storage_options=storage_options
    )
    return dict(written.sizes)


def write_file(
    tensors: Mapping[str, Any] | Iterable[Item],
    path: str | os.PathLike[str],
    *,
    profile: Profile,
    base: PathOrArrays | None,
    threads: int | None,
    storage_options: Mapping[str, Any] | None,
    metadata: Mapping[str, str] | None = None,
) -> Written:
    """`save_file`, and all that is known of the file."""
    texts = _checked(metadata)
    arrays = given_arrays(tensors)
    check_names(arrays.entries)

    def hash_of(index: int) -> str:
        return content_hash(arrays.view(index).data, threads=threads)

    target = locate(path, storage_options)
    with ExitStack() as stack:
        if isinstance(target, Path):
            location = target
        else:
            check_bucket(target)
            location = Path(stack.enter_context(TemporaryDirectory(prefix="tensorwire-"))) / target.name
        opened = enter(stack, base, storage_options, profile=profile, takes_arrays=True)
        if opened is not None:
            check_apart(target, opened)
        coding = Coding(profile, threads, opened)
        chosen = match_bases(coding, arrays.entries, location.name, hash_of)
        others = [] if opened is None else on_this_machine(opened.paths())
        destination = Destination(location, force=True, source_files=others)
        work = stack.enter_context(Staging(destination, {"action": "save"}))
        file = stack.enter_context(OutputFile(work.result, work.access_of_existing()))

        def write(bases: Mapping[int, BaseTensor]) -> Written:
            if opened is not None and bases:
                texts[BASE_HASH_KEY] = opened.tensors_hash(threads)
            return _write(file, arrays, texts, coding, bases)

        written = write_with_bases(chosen, arrays.entries, write)
        if opened is not None and written.relative:
            used = (base for index, base in chosen.items() if arrays.entries[index].name in written.relative)
            check_keeps_arrays(target, opened, used, threads)
        arrays.check()
        file.sync()
        work.commit(None)
        if not isinstance(target, Path):
            put_file(location, target)
    if written.notice is not None:
        warnings.warn(f"{target}: {written.notice}", RuntimeWarning, stacklevel=3)
    return written


def save_bytes(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """What `save_file` writes with profile "fast". It passes through a temporary file. Errors are those of
    `save_file`."""
    texts = _checked(metadata)
    arrays = given_arrays(tensors)
    check_names(arrays.entries)
    with closing(SpoolFile()) as file:
        written = _write(file, arrays, texts, Coding("fast", None), {})
        arrays.check()
        return file.read(0, written.nbytes)


def _write(
    file: Writable,
    arrays: Arrays,
    metadata: Mapping[str, str],
    coding: Coding,
    bases: Mapping[int, BaseTensor],
) -> Written:
    """Write all arrays to a compressed file."""

    def put(writer: CompressedWriter, index: int) -> None:
        for start, data in arrays.windows(index):
            writer.put(index, start, data)

    with CompressedWriter(file, arrays.entries, metadata, coding, bases) as writer:
        for index in range(len(arrays.entries)):
            put(writer, index)  # which leaves no name behind for the array
        return writer.finish(arrays.read)


def _checked(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """What is stored of given metadata.

    Raises:
        ValueError: it is not text, or has a key that is ours.
    """
    texts = None if metadata is None else dict(metadata)
    for key, text in (texts or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise ValueError(f"expected metadata of str to str, got {type(key).__name__} to {type(text).__name__}")
        if key.startswith(METADATA_PREFIX):
            raise ValueError(
                f"metadata keys that begin with {METADATA_PREFIX!r} are kept for tensorwire, got {shown(key)}"
            )
    return kept_metadata(texts)
