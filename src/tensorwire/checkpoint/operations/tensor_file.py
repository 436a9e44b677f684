"""Named tensors to one file, and back."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ..._destination import Destination
from ...codec import num_threads, tensor_view
from ...errors import ErrorContext
from ..directory.sources import absolute
from ..file.header import METADATA_KEY, TensorEntry, check_name
from ..file.names import METADATA_PREFIX, shown
from ..file.reader import StoredFile
from ..file.writer import CompressedWriter, check_names
from ..storage.files import OutputFile
from ..storage.pipeline import WINDOW_NBYTES
from ..storage.staging import Staging
from .tensor_reader import TensorReader
from .tensor_slice import Target

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy
    import torch

    from ...codec import Framework, Profile

    Device: TypeAlias = str | int | torch.device


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    profile: Profile = "fast",
    metadata: Mapping[str, str] | None = None,
    threads: int | None = None,
) -> None:
    """Write named tensors, compressed, to a safetensors file.

    As with safetensors' own function, a file that stands there is replaced without a question; here once the new one is
    whole, which gets the permissions of the old one. Only a regular file is replaced: never a directory, a link, a
    device or a pipe.

    Args:
        tensors: NumPy arrays or torch tensors.
        metadata: text for the header, as in safetensors.

    Raises:
        UnsupportedTensorError: a tensor cannot be stored (device, layout, dtype).
        ValueError: names collide or are not allowed, metadata is not text, or the header would exceed 100 MB.
        FileExistsError: something stands at `path` that is not a regular file.
        BlockingIOError: another process is writing the same `path`.
        OSError: writing fails; the old file is unchanged.
    """
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

    def read(index: int, start: int, out: memoryview) -> None:
        out[:] = views[index].data[start : start + len(out)]

    with (
        Staging(Destination(absolute(path), force=True), {"action": "save"}) as work,
        OutputFile(work.result, work.access_of_existing()) as file,
        CompressedWriter(file, entries, metadata, profile=profile, threads=threads) as writer,
    ):
        for index, view in enumerate(views):
            for start in range(0, len(view.data) or 1, WINDOW_NBYTES):
                writer.put(index, start, view.data[start : start + WINDOW_NBYTES])
        writer.finish(read)
        file.sync()
        work.commit(None)


@overload
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Literal["np"] = "np",
    device: Literal["cpu"] = "cpu",
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, numpy.ndarray[Any, Any]]: ...
@overload
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Literal["pt"],
    device: Device = "cpu",
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, torch.Tensor]: ...
@overload
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Literal["bytes"],
    device: Literal["cpu"] = "cpu",
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, bytes]: ...
def load_file(
    path: str | os.PathLike[str],
    *,
    framework: Framework = "np",
    device: Device = "cpu",
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, Any]:
    """Read all tensors of a safetensors file, plain or compressed.

    Args:
        framework: "np" for NumPy arrays (ml_dtypes for dtypes that NumPy lacks), "pt" for torch tensors, or "bytes",
            which every dtype has; `open_file` tells dtypes and shapes.
        device: of the torch tensors. They are decoded by the CPU and copied to it.
        threads: by default all usable cores.
        verify: check the checksums of the data. Those of the headers are always checked.

    Returns:
        The tensors by their original names, in the order of their data. Arrays are writable.

    Raises:
        FormatError: the file is damaged.
        UnsupportedTensorError: the framework lacks a dtype.
        ValueError: there is no such framework or device.
        OSError: reading fails; IsADirectoryError if `path` is a directory (see `load_checkpoint`).
    """
    with _open(path, framework, device, threads) as reader:
        return reader.get_tensors(verify=verify)


@overload
def open_file(
    path: str | os.PathLike[str],
    framework: Literal["np"] = "np",
    device: Literal["cpu"] = "cpu",
    *,
    threads: int | None = None,
) -> TensorReader[numpy.ndarray[Any, Any]]: ...
@overload
def open_file(
    path: str | os.PathLike[str], framework: Literal["pt"], device: Device = "cpu", *, threads: int | None = None
) -> TensorReader[torch.Tensor]: ...
@overload
def open_file(
    path: str | os.PathLike[str],
    framework: Literal["bytes"],
    device: Literal["cpu"] = "cpu",
    *,
    threads: int | None = None,
) -> TensorReader[bytes]: ...
def open_file(
    path: str | os.PathLike[str],
    framework: Framework = "np",
    device: Device = "cpu",
    *,
    threads: int | None = None,
) -> TensorReader[Any]:
    """Open a safetensors file, plain or compressed, to read some of it. Use it in a ``with`` statement.

    It takes the place of ``safetensors.safe_open``. Arguments are those of `load_file`.

    Raises:
        FormatError: the header of the file is damaged.
        ValueError: there is no such framework or device.
        OSError: it cannot be read; IsADirectoryError if it is a directory (see `open_checkpoint`).
    """
    return _open(path, framework, device, threads)


def _open(path: str | os.PathLike[str], framework: Framework, device: Device, threads: int | None) -> TensorReader[Any]:
    target, count = Target.of(framework, device), num_threads(threads)
    location = absolute(path)
    if location.is_dir():
        advice = "is a directory; load_checkpoint and open_checkpoint read one"
        raise IsADirectoryError(errno.EISDIR, advice, str(location))
    stored = StoredFile(location)
    return TensorReader([stored], {name: (stored, tensor) for name, tensor in stored.tensors.items()}, target, count)


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
