"""Tensors by name to one file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from ..._ground.destination import Destination
from ..._ground.filesystem import absolute
from ...codec import content_hash, tensor_view
from ...errors import ErrorContext
from ...files.header import METADATA_KEY, TensorEntry, check_name
from ...files.names import METADATA_PREFIX, shown
from ...files.reader import BASE_HASH_KEY
from ...files.writer import Coding, CompressedWriter, check_names, match_bases, write_with_bases
from ...storage.local import OutputFile
from ...storage.pipeline import WINDOW_NBYTES
from ...storage.staging import Staging
from .bases import check_apart, open_base

if TYPE_CHECKING:
    import os

    from ...codec import Profile
    from ...files.base import BaseTensor
    from ...files.writer import Written


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    base: str | os.PathLike[str] | None = None,
    metadata: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """Write named tensors, compressed, to a safetensors file.

    As with safetensors' own function, a file that stands there is replaced without a question; here once the new one is
    whole, which gets the permissions of the old one. Only a regular file is replaced: never a directory, a link, a
    device or a pipe.

    Somebody may write to the tensors meanwhile. The file then holds words of different moments (docs/api.md).

    Args:
        tensors: NumPy arrays or torch tensors.
        base: a file or directory, plain or compressed, that the file is to be relative to, as for
            `compress_checkpoint`; never the file itself. A tensor whose base is written to meanwhile is stored without
            it, and a RuntimeWarning says so.
        metadata: text for the header, as in safetensors.

    Raises:
        UnsupportedTensorError: a tensor cannot be stored (device, layout, dtype).
        TypeError: `tensors` is no mapping of str to tensors.
        ValueError: names collide or are not allowed, metadata is not text, or the header would exceed 100 MB; `base`
            is relative to another one, or `path` is a file of it.
        FileExistsError: something stands at `path` that is not a regular file.
        BlockingIOError: another process is writing the same `path`.
        BufferError: somebody has freed, moved or cut the memory of a tensor meanwhile.
        OSError: writing fails; the old file is unchanged.
    """
    if not hasattr(tensors, "items"):
        raise TypeError(
            f"expected a mapping of names to tensors, got {type(tensors).__name__}; of a module give its state_dict()"
        )
    metadata = dict(metadata or {})
    _check_metadata(metadata)
    views = []
    entries = []
    for name, tensor in tensors.items():
        _check_tensor_name(name)
        with ErrorContext(tensor=name):
            view = tensor_view(tensor)
            views.append(view)
            entries.append(TensorEntry(name, view.dtype, view.shape, 0, len(view.data)))
    check_names(entries)

    def check_memory(index: int) -> None:
        try:
            views[index].check_memory()
        except BufferError as error:
            raise BufferError(f"tensor {shown(entries[index].name)}: {error}") from None

    def window(index: int, start: int, nbytes: int) -> memoryview:
        check_memory(index)
        return views[index].data[start : start + nbytes]

    def read(index: int, start: int, out: memoryview) -> None:
        out[:] = window(index, start, len(out))

    location = absolute(path)
    with ExitStack() as stack:
        opened = None if base is None else stack.enter_context(closing(open_base(base, profile)))
        if opened is not None:
            check_apart(location, opened)
        coding = Coding(profile, threads, opened)
        chosen = match_bases(
            coding, entries, location.name, lambda index: content_hash(views[index].data, threads=threads)
        )
        destination = Destination(location, force=True, source_files=[] if opened is None else opened.paths())
        work = stack.enter_context(Staging(destination, {"action": "save"}))
        file = stack.enter_context(OutputFile(work.result, work.access_of_existing()))

        def write(bases: Mapping[int, BaseTensor]) -> Written:
            if opened is not None and bases:
                metadata[BASE_HASH_KEY] = opened.tensors_hash(threads)
            with CompressedWriter(file, entries, metadata, coding, bases) as writer:
                for index, view in enumerate(views):
                    for start in range(0, len(view.data) or 1, WINDOW_NBYTES):
                        writer.put(index, start, window(index, start, WINDOW_NBYTES))
                return writer.finish(read)

        notice = write_with_bases(chosen, entries, write).notice
        for index in range(len(views)):  # what was read last may have been freed by then
            check_memory(index)
        file.sync()
        work.commit(None)
    if notice is not None:
        warnings.warn(f"{location}: {notice}", RuntimeWarning, stacklevel=2)


def _check_tensor_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"expected names that are str, got {type(name).__name__}")
    if name == METADATA_KEY:
        raise ValueError(f"no tensor can be called {METADATA_KEY}: in a safetensors file that is the metadata")
    check_name(name)


def _check_metadata(metadata: dict[str, str]) -> None:
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise ValueError(f"expected metadata of str to str, got {type(key).__name__} to {type(text).__name__}")
        if key.startswith(METADATA_PREFIX):
            raise ValueError(
                f"metadata keys that begin with {METADATA_PREFIX!r} are kept for tensorwire, got {shown(key)}"
            )
