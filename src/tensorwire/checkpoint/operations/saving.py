"""Named tensors to one file, and back."""

from __future__ import annotations

import errno
import warnings
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ..._ground.destination import Destination
from ..._ground.filesystem import absolute
from ...codec import content_hash, num_threads, tensor_view
from ...errors import ErrorContext
from ...files.header import METADATA_KEY, TensorEntry, check_name
from ...files.names import METADATA_PREFIX, shown
from ...files.reader import BASE_HASH_KEY, StoredFile
from ...files.writer import CompressedWriter, check_names, match_bases, write_with_bases
from ...storage.local import OutputFile
from ...storage.pipeline import WINDOW_NBYTES
from ...storage.staging import Staging
from .bases import check_apart, open_base
from .tensor_reader import TensorReader
from .tensor_slice import Target

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy
    import torch

    from ...codec import Framework, Profile
    from ...files.base import BaseTensor
    from ...files.writer import Written

    Device: TypeAlias = str | int | torch.device


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
        bases: dict[int, BaseTensor] = {}
        if opened is not None:
            check_apart(location, opened)
            bases = match_bases(
                opened, entries, location.name, threads, lambda index: content_hash(views[index].data, threads=threads)
            )
        sources = [] if opened is None else opened.paths()
        destination = Destination(location, force=True, source_files=sources)
        work = stack.enter_context(Staging(destination, {"action": "save"}))
        file = stack.enter_context(OutputFile(work.result, work.access_of_existing()))

        def write(bases: Mapping[int, BaseTensor]) -> Written:
            if opened is not None and bases:
                metadata[BASE_HASH_KEY] = opened.tensors_hash(threads)
            with CompressedWriter(
                file, entries, metadata, profile=profile, threads=threads, base=opened, bases=bases
            ) as writer:
                for index, view in enumerate(views):
                    for start in range(0, len(view.data) or 1, WINDOW_NBYTES):
                        writer.put(index, start, window(index, start, WINDOW_NBYTES))
                return writer.finish(read)

        _, notice = write_with_bases(bases, entries, write)
        for index in range(len(views)):  # what was read last may have been freed by then
            check_memory(index)
        file.sync()
        work.commit(None)
    if notice is not None:
        warnings.warn(f"{location}: {notice}", RuntimeWarning, stacklevel=2)


@overload
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Literal["np"] = "np",
    device: Literal["cpu"] = "cpu",
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, numpy.ndarray[Any, Any]]: ...
@overload
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Literal["pt"],
    device: Device = "cpu",
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
    compressed: bool = False,
    resident_nbytes: int | None = None,
) -> dict[str, torch.Tensor]: ...
@overload
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Literal["bytes"],
    device: Literal["cpu"] = "cpu",
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, bytes]: ...
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Framework = "np",
    device: Device = "cpu",
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
    compressed: bool = False,
    resident_nbytes: int | None = None,
) -> dict[str, Any]:
    """Read all tensors of a safetensors file, plain or compressed.

    Args:
        framework: "np" for NumPy arrays (ml_dtypes for dtypes that NumPy lacks), "pt" for torch tensors, or "bytes",
            which every dtype has; `open_file` tells dtypes and shapes.
        device: of the torch tensors. They are decoded by the CPU and copied to it.
        base: the checkpoint that the file is relative to: a file or directory, plain or compressed. It is not looked at
            for tensors that are not relative.
        threads: by default all usable cores.
        verify: check the checksums of the data, and of relative tensors the content hashes of base and result. Those
            of the headers are always checked.
        compressed: with framework "pt", floats that are stored compressed come as `tensorwire.torch.CompressedTensor`
            (docs/inference.md) without being decoded, those of less than 65,536 elements excepted. Relative ones are
            decoded and compressed anew. Slices are dense.
        resident_nbytes: with `compressed`, how many bytes of them to keep in memory. The blocks of the others stay in
            the file, which must not be written to, and are read, ahead of their use, each time they are needed.

    Returns:
        The tensors by their original names, in the order of their data. Arrays are writable.

    Raises:
        BaseMismatchError: a tensor is relative, and there is no base, or one with another content.
        FormatError: the file is damaged.
        UnsupportedTensorError: the framework lacks a dtype.
        ValueError: there is no such framework or device; or compressed tensors of another framework are asked for.
        ImportError: compressed tensors are asked for, and PyTorch is missing or too old.
        OSError: reading fails; IsADirectoryError if `path` is a directory (see `load_checkpoint`).
    """
    with _open(path, Target.of(framework, device, compressed, resident_nbytes), base, threads, verify) as reader:
        return reader.get_tensors()


@overload
def open_file(
    path: str | os.PathLike[str],
    framework: Literal["np"] = "np",
    device: Literal["cpu"] = "cpu",
    *,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> TensorReader[numpy.ndarray[Any, Any]]: ...
@overload
def open_file(
    path: str | os.PathLike[str],
    framework: Literal["pt"],
    device: Device = "cpu",
    *,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
    compressed: bool = False,
    resident_nbytes: int | None = None,
) -> TensorReader[torch.Tensor]: ...
@overload
def open_file(
    path: str | os.PathLike[str],
    framework: Literal["bytes"],
    device: Literal["cpu"] = "cpu",
    *,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> TensorReader[bytes]: ...
def open_file(
    path: str | os.PathLike[str],
    framework: Framework = "np",
    device: Device = "cpu",
    *,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
    compressed: bool = False,
    resident_nbytes: int | None = None,
) -> TensorReader[Any]:
    """Open a safetensors file, plain or compressed, to read some of it. Use it in a ``with`` statement.

    It takes the place of ``safetensors.safe_open``. Arguments are those of `load_file`; `verify` holds for all that is
    read.

    Raises:
        FormatError: the header of the file, or of one of the base, is damaged.
        ValueError: there is no such framework or device; or the base is relative to another one.
        OSError: it cannot be read; IsADirectoryError if it is a directory (see `open_checkpoint`).
    """
    return _open(path, Target.of(framework, device, compressed, resident_nbytes), base, threads, verify)


def _open(
    path: str | os.PathLike[str],
    target: Target,
    base: str | os.PathLike[str] | None,
    threads: int | None,
    verify: bool,
) -> TensorReader[Any]:
    count = num_threads(threads)
    location = absolute(path)
    if location.is_dir():
        advice = "is a directory; load_checkpoint and open_checkpoint read one"
        raise IsADirectoryError(errno.EISDIR, advice, str(location))
    with ExitStack() as stack:
        stored = stack.enter_context(StoredFile(location))
        opened = None if base is None else stack.enter_context(closing(open_base(base)))
        stored.use_base(opened, location.name)
        stack.pop_all()
    places = {name: (stored, tensor) for name, tensor in stored.tensors.items()}
    return TensorReader([stored], places, target, count, base=opened, verify=verify)


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
