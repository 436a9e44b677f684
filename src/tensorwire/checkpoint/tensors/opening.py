"""The tensors of a file, or of all shards of a directory as if they were one file."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, overload

from ...codec import check_max_nbytes, num_threads
from ...errors import TensorwireError
from ...files.beside import open_beside
from ...files.loader import check_verify
from ...files.names import shown
from ...storage.locations import locate, path_in
from ...storage.spool import SpoolFile
from ..bases import enter
from ..directory.config_and_index import not_held
from ..directory.shards import find_shards, warn_of
from .target import Target
from .tensor_reader import TensorReader

Reader = TypeVar("Reader", bound=TensorReader[Any])

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy
    import torch
    from typing_extensions import Unpack

    from ...codec import Framework
    from ...files.loader import Verify
    from ...files.reader import StoredFile, StoredTensor
    from ..bases import PathOrArrays
    from ..directory.shards import Shards

    Device: TypeAlias = str | int | torch.device
    StrPath: TypeAlias = str | os.PathLike[str]

    class _Options(TypedDict, total=False):
        """What is the same for all frameworks."""

        base: PathOrArrays | None
        threads: int | None
        verify: Verify
        max_nbytes: int | None
        storage_options: Mapping[str, Any] | None

    class _TorchOptions(_Options, total=False):
        compressed: bool
        resident_nbytes: int | None


@overload
def load_file(
    path: StrPath, *, framework: Literal["np"] = "np", device: Literal["cpu"] = "cpu", **options: Unpack[_Options]
) -> dict[str, numpy.ndarray[Any, Any]]: ...
@overload
def load_file(
    path: StrPath, *, framework: Literal["pt"], device: Device = "cpu", **options: Unpack[_TorchOptions]
) -> dict[str, torch.Tensor]: ...
@overload
def load_file(
    path: StrPath, *, framework: Literal["bytes"], device: Literal["cpu"] = "cpu", **options: Unpack[_Options]
) -> dict[str, bytes]: ...
def load_file(
    path: StrPath,
    *,
    framework: Framework = "np",
    device: Device = "cpu",
    base: PathOrArrays | None = None,
    threads: int | None = None,
    verify: Verify = True,
    compressed: bool = False,
    resident_nbytes: int | None = None,
    max_nbytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Read all tensors of a file or directory, plain or compressed.

    It is a trusting reader of plain frames, and a checking reader of relative ones and of tensors that are stored as
    themselves (docs/checkpoints.md, "What is checked").

    Args:
        path: as for `open_file`.
        framework: "np" for NumPy arrays (ml_dtypes for dtypes that NumPy lacks), "pt" for torch tensors, or "bytes",
            which every dtype has; `open_file` tells dtypes and shapes.
        device: of the torch tensors. They are decoded by the CPU and copied to it.
        base: the checkpoint that `path` is relative to: a file, directory or index, plain or compressed, or arrays by
            name. If it is a delta, it comes in a list with what it is relative to, newest first; arrays may stand in
            last place. It is not looked at for tensors that are not relative, and no code may write to its arrays as
            long as it is read.
        threads: by default all usable cores.
        verify: check the checksums of the data, and of relative tensors the content hashes of base and result. With
            `compressed`, True checks a block of a tensor that stays compressed when it is first decoded, and "load"
            checks all before this returns; all other data is checked while loading either way. The checksums of
            headers are always checked.
        compressed: with framework "pt", floats that are stored compressed come as `tensorwire.torch.CompressedTensor`
            (docs/inference.md) without being decoded, those of less than 65,536 elements excepted. Relative ones are
            decoded and compressed anew. Slices are dense.
        resident_nbytes: with `compressed`, how many bytes of them to keep in memory. The blocks of the others stay in
            the file, which must not be written to, and are read, ahead of their use, each time they are needed.
        max_nbytes: refuse tensors that together have more uncompressed bytes than this, before memory is allocated for
            the first of them. CompressedTensors count with the bytes that they decode to.

    Returns:
        The tensors by their original names, file by file in the order of their data. Arrays are writable. As in
        safetensors, a name that ``save_model`` has left out is not there: metadata does not tell what its tensor was.

    Raises:
        BaseMismatchError: a tensor is relative, and there is no base, or one with another content.
        FormatError: a file is damaged. The first use of a damaged tensor that stays compressed raises it, too.
        LimitExceededError: the tensors are larger than `max_nbytes`; the error names one and what it claims.
        UnsupportedTensorError: the framework lacks a dtype.
        ImportError: compressed tensors are asked for, and PyTorch is missing or too old.
        TypeError, ValueError, OSError: as for `open_file`.
    """
    target = Target.of(framework, device, compressed, resident_nbytes)
    with _open(path, target, base, threads, verify, max_nbytes, storage_options, TensorReader) as reader:
        return reader.get_tensors()


@overload
def open_file(
    path: StrPath, framework: Literal["np"] = "np", device: Literal["cpu"] = "cpu", **options: Unpack[_Options]
) -> TensorReader[numpy.ndarray[Any, Any]]: ...
@overload
def open_file(
    path: StrPath, framework: Literal["pt"], device: Device = "cpu", **options: Unpack[_TorchOptions]
) -> TensorReader[torch.Tensor]: ...
@overload
def open_file(
    path: StrPath, framework: Literal["bytes"], device: Literal["cpu"] = "cpu", **options: Unpack[_Options]
) -> TensorReader[bytes]: ...
def open_file(
    path: StrPath,
    framework: Framework = "np",
    device: Device = "cpu",
    *,
    base: PathOrArrays | None = None,
    threads: int | None = None,
    verify: Verify = True,
    compressed: bool = False,
    resident_nbytes: int | None = None,
    max_nbytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TensorReader[Any]:
    """Open a file or directory, plain or compressed, to read some of it. Use it in a ``with`` statement.

    It takes the place of ``safetensors.safe_open``. Arguments are those of `load_file`, and so is what is checked of
    whole tensors; of slices it is a trusting reader. `verify` holds for all that is read, and `max_nbytes` for what one
    call reads: a tensor, the rows of a slice, or all tensors.

    Args:
        path: a safetensors file; or a directory, whose shards are read as one file; or an index
            (``*.safetensors.index.json``) of a directory that has several. An index says in which files the tensors
            are. Without one they are in all .safetensors files at the top of the directory, never in folders below it.
            A file or index that config.json names as `transformers_weights` is read before all others.
            If ``model.safetensors`` stands beside an index that does not name it, the file is read, as Transformers
            does, and a RuntimeWarning says so. Another one names tensors that the index lists and its files lack.

    Raises:
        FormatError: an index or the header of a file, or of one of the base, is damaged, or they do not agree.
        ValueError: the directory holds no safetensors file, or more than one model: several indexes, or without an
            index two files with tensors of one name. There is no such framework, device or `verify`, or the
            framework has no compressed tensors. The base is a chain that is not whole, or has a checkpoint that it does
            not need.
        TypeError, ValueError: `max_nbytes` is no number of bytes.
        OSError: a file cannot be read, or one that an index names is missing.
    """
    target = Target.of(framework, device, compressed, resident_nbytes)
    return _open(path, target, base, threads, verify, max_nbytes, storage_options, TensorReader)


def open_as(kind: type[Reader], path: StrPath, framework: Framework, device: Device) -> Reader:
    """What `open_file` gives, as a reader of this kind."""
    return _open(path, Target.of(framework, device, False, None), None, None, True, None, None, kind)


def load_bytes(data: bytes, framework: Framework) -> dict[str, Any]:
    """What `load_file` gives of a file with these bytes. They pass through a temporary file."""
    with closing(SpoolFile()) as file:
        file.write(0, data)
        try:
            return load_file(file.location, framework=framework)
        except TensorwireError as error:
            error.file = None  # which has no name
            raise


def _open(
    path: StrPath,
    target: Target,
    base: PathOrArrays | None,
    threads: int | None,
    verify: Verify,
    max_nbytes: int | None,
    storage_options: Mapping[str, Any] | None,
    kind: type[Reader],
) -> Reader:
    check_verify(verify)
    check_max_nbytes(max_nbytes)
    count = num_threads(threads)
    root = locate(path, storage_options)
    shards = find_shards(root)
    directory = root if root.is_dir() else root.parent
    with ExitStack() as stack:
        with _naming_index(shards):
            files = [stack.enter_context(open_beside(location)) for location in shards.files]
        opened = enter(stack, base, storage_options, takes_arrays=True)
        for file in files:
            file.use_base(opened, path_in(file.path, directory))
        places = _places(files, shards)
        stack.pop_all()
    return kind(files, places, target, count, base=opened, verify=verify, max_nbytes=max_nbytes)


@contextmanager
def _naming_index(shards: Shards) -> Iterator[None]:
    """Say of a file that is missing which index names it."""
    try:
        yield
    except FileNotFoundError as error:
        if shards.named_by is None:
            raise
        is_gone = error.strerror == os.strerror(errno.ENOENT)
        fact = "missing; fetch it" if is_gone else error.strerror
        text = f"this file, which {shards.named_by.name} names, is {fact}"
        raise FileNotFoundError(errno.ENOENT, text, error.filename) from None


def _places(files: list[StoredFile], shards: Shards) -> dict[str, tuple[StoredFile, StoredTensor]]:
    places: dict[str, tuple[StoredFile, StoredTensor]] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name not in places or shards.home.get(name) == file.path:
                places[name] = file, tensor
            elif name not in shards.home:
                raise ValueError(
                    f"tensor {shown(name)} is in {places[name][0].path} and in {file.path}, and no index says which is "
                    "meant; give the path of one of them"
                )
    held = {(file.path, entry.name) for file in files for entry in file.header.entries}
    missing = [name for name, home in shards.home.items() if (home, name) not in held]
    if missing and shards.named_by is not None:
        warn_of(shards.named_by, [not_held(missing)])
    return places
