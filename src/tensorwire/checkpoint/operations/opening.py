"""The tensors of a checkpoint that is a directory, as if it were one file."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal, overload

from ..._ground.filesystem import absolute
from ...codec import num_threads
from ...errors import CorruptDataError
from ...files.names import shown
from ...files.reader import StoredFile
from ..directory.shards import find_shards
from .bases import open_base
from .tensor_reader import TensorReader
from .tensor_slice import Target

if TYPE_CHECKING:
    import os

    import numpy
    import torch

    from ...codec import Framework
    from ...files.reader import StoredTensor
    from ..directory.shards import Shards
    from .saving import Device


@overload
def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    framework: Literal["np"] = "np",
    device: Literal["cpu"] = "cpu",
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, numpy.ndarray[Any, Any]]: ...
@overload
def load_checkpoint(
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
def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    framework: Literal["bytes"],
    device: Literal["cpu"] = "cpu",
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> dict[str, bytes]: ...
def load_checkpoint(
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
    """Read all tensors of a checkpoint, plain or compressed, whatever files they are in.

    Args:
        path: as for `open_checkpoint`; the others are those of `load_file`.

    Returns:
        The tensors by their original names, file by file. Tied names share one array.

    Raises:
        BaseMismatchError, FormatError, UnsupportedTensorError, OSError, ValueError: as `open_checkpoint` and
            `load_file`.
    """
    with _open(path, Target.of(framework, device, compressed, resident_nbytes), base, threads, verify) as reader:
        return reader.get_tensors()


@overload
def open_checkpoint(
    path: str | os.PathLike[str],
    framework: Literal["np"] = "np",
    device: Literal["cpu"] = "cpu",
    *,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> TensorReader[numpy.ndarray[Any, Any]]: ...
@overload
def open_checkpoint(
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
def open_checkpoint(
    path: str | os.PathLike[str],
    framework: Literal["bytes"],
    device: Literal["cpu"] = "cpu",
    *,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> TensorReader[bytes]: ...
def open_checkpoint(
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
    """Open all shards of a checkpoint as one file. Use it in a ``with`` statement.

    Names that ``safetensors.torch.save_model`` has tied, and wrote once, are there under each of their names.

    Args:
        path: a directory, or one of its indexes (``*.safetensors.index.json``) where it has several. With an index the
            tensors are in the files that it names; without one in all .safetensors files at the top of the directory.
            Folders below it are not looked into.
        framework, device, base, threads, verify, compressed, resident_nbytes: as for `open_file`.

    Raises:
        FormatError: an index or the header of a file is damaged, or they do not agree.
        FileNotFoundError: there is no such directory, or a file that the index names is missing.
        NotADirectoryError: it is one file (see `open_file`).
        ValueError: there is no safetensors file, or more than one model: several indexes, or without an index two
            files with tensors of one name. There is no such framework or device.
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
    root = absolute(path)
    shards = find_shards(root)
    directory = root if root.is_dir() else root.parent
    with ExitStack() as stack:
        files = [stack.enter_context(StoredFile(location)) for location in shards.files]
        opened = None if base is None else stack.enter_context(closing(open_base(base)))
        for file in files:
            file.use_base(opened, file.path.relative_to(directory).as_posix())
        places = _places(files, shards)
        stack.pop_all()
    return TensorReader(files, places, target, count, base=opened, verify=verify)


def _places(files: list[StoredFile], shards: Shards) -> dict[str, tuple[StoredFile, StoredTensor]]:
    places: dict[str, tuple[StoredFile, StoredTensor]] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name not in places or shards.home.get(name) == file.path:
                places[name] = file, tensor
            elif name not in shards.home:
                raise ValueError(
                    f"tensor {shown(name)} is in {places[name][0].path} and in {file.path}, and no index says which is "
                    "meant; open_file reads one of them"
                )
    held = {(file.path, entry.name) for file in files for entry in file.header.entries}
    for name, home in shards.home.items():
        if (home, name) not in held:
            raise CorruptDataError(
                "the index says that the tensor is in this file, which does not hold it", file=home, tensor=name
            )
    for file in files:
        for name, kept in file.metadata.items():  # what save_model writes of a name that it has left out
            if name not in places and kept in file.tensors:
                places[name] = file, file.tensors[kept]
    return places
