"""Versions of weights in the directory layout that slime, miles and SGLang share: docs/sync-versions.md.

Experimental: it may change or go with any version. Nothing else in tensorwire imports it.
"""

from __future__ import annotations

import operator
import re
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._ground.allocation import new_buffer
from .._ground.filesystem import absolute
from ..checkpoint.directory.config_and_index import read_index, weight_map
from ..codec import as_array, check_framework_name, num_threads, tensor_view
from ..errors import BaseMismatchError, CorruptDataError, ErrorContext, UnsupportedVersionError
from ..files.header import check_dtype
from ..files.json_object import load
from ..files.names import shown
from ..files.reader import StoredFile
from ..storage.pool import mapped
from .checkpoints import named_pairs
from .encodings import (
    CHECKSUMS,
    COMPRESSION,
    ENCODINGS,
    available_checksum,
    check_size,
    checksum,
    decode,
    encode,
    require_checksum,
    require_zstandard,
)
from .new_version import NewTensor, NewVersion
from .versions import INDEX_NAME, MAX_NUMBER, folder_name, number_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ..codec import Framework, TensorView
    from ..files.header import TensorEntry
    from .encodings import Encoding


__all__ = ["read_version", "write_version"]

_NUMBER = re.compile(r"[0-9]{1,18}")


def write_version(
    directory: str | os.PathLike[str],
    named_tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    version: int,
    base: Mapping[str, Any] | None = None,
    base_version: int | None = None,
    encoding: Encoding = "xor",
    max_shard_nbytes: int = 5_000_000_000,
    threads: int | None = None,
) -> Path:
    """Write a version of weights as slime does, for SGLang and all others that read its layout.

    The version is the folder ``weight_v000017`` in `directory`. It is there for readers once it has its index, which is
    written last. If anything goes wrong, what was written of it is removed.

    Args:
        directory: a directory of this machine, which exists.
        named_tensors: NumPy arrays or torch tensors by name, or pairs of both, one after the other. A tensor keeps its
            content until the call returns. Tensors that did not change since `base` are left out of the version.
        version: its number, from 0 on.
        base: the tensors of the version before. None writes all tensors as they are.
        base_version: the number of that version. Receivers apply a version only to this one.
        encoding: "xor" is smaller, and applied exactly once. "overwrite" may be applied again, and takes tensors of
            less than 4 GiB.
        max_shard_nbytes: how many bytes of tensors a file gets. They stay in memory until it is written.
        threads: by default all usable cores.

    Returns:
        The folder.

    Raises:
        ValueError: a number or `encoding` is invalid; a name is given twice or is none for a tensor; `base` lacks a
            tensor, or has it with another dtype or shape: receivers can neither add tensors nor change these.
        TypeError: a name is not a string.
        UnsupportedTensorError: a tensor has a device, layout or dtype that cannot be stored.
        LimitExceededError: a tensor is too large for "overwrite", or a header would exceed 100 MB.
        BufferError: the memory of a tensor was freed, moved or cut meanwhile.
        ImportError: the package zstandard is missing.
        FileExistsError: the folder has an index or safetensors files already.
        OSError: writing fails.
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"expected encoding xor or overwrite, got {encoding!r}")
    if max_shard_nbytes < 1:
        raise ValueError(f"expected max_shard_nbytes of at least 1, got {max_shard_nbytes}")
    metadata = _new_metadata(version, base_version, encoding, is_full=base is None)
    count = num_threads(threads)
    folder = absolute(directory) / folder_name(version)
    work = partial(_store, base=base, encoding=encoding, checksum_format=metadata["checksum_format"])
    with NewVersion(folder, {"format": "pt"} if base is None else {}, max_shard_nbytes) as new:
        with closing(mapped(work, named_pairs(named_tensors), count, "tensorwire-version")) as stored:
            for tensor in stored:
                if tensor is not None:
                    new.add(tensor)
        new.publish(metadata)
    return folder


def _new_metadata(version: int, base_version: int | None, encoding: Encoding, *, is_full: bool) -> dict[str, str]:
    """What the index says of a version."""
    number = operator.index(version)
    if number < 0:
        raise ValueError(f"expected a version from 0 on, got {number}")
    if number > MAX_NUMBER:
        raise ValueError(f"expected a version up to {MAX_NUMBER}, got {number}")
    if is_full != (base_version is None):
        raise ValueError("expected base and base_version together; a version with all tensors has neither")
    metadata = {"version": f"{number:06d}", "checksum_format": available_checksum()}
    if base_version is None:
        return metadata
    older = operator.index(base_version)
    if not 0 <= older < number:
        raise ValueError(f"expected a base_version from 0 to {number - 1}, got {older}")
    require_zstandard()
    return metadata | {
        "base_version": f"{older:06d}",
        "delta_encoding": encoding,
        "compression_format": COMPRESSION,
    }


def _store(
    item: tuple[str, Any], *, base: Mapping[str, Any] | None, encoding: Encoding, checksum_format: str
) -> NewTensor | None:
    """What a version has of a tensor; None if it did not change."""
    name, tensor = item
    with ErrorContext(tensor=name):
        view = tensor_view(tensor)
        check_dtype(view.dtype)
        if base is None:
            return NewTensor(name, view.dtype, view.shape, view.data, checksum(checksum_format, view.data), view)
        old = _old_view(name, view, base)
        check_size(encoding, len(view.data))
        data = encode(encoding, view.data, old.data)
        found = "" if data is None else checksum(checksum_format, view.data)
        view.check_memory()
        old.check_memory()
        return None if data is None else NewTensor(name, "U8", (len(data),), data, found, None)


def _old_view(name: str, view: TensorView, base: Mapping[str, Any]) -> TensorView:
    """The tensor of this name in the base, of the same dtype and shape."""
    advice = "write all tensors, without base, since receivers can neither add a tensor nor change its dtype or shape"
    if name not in base:
        raise ValueError(f"tensor {shown(name)}: expected one of this name in base, got none; {advice}")
    old = tensor_view(base[name])
    if (old.dtype, old.shape) != (view.dtype, view.shape):
        expected, found = (f"{each.dtype} {each.shape}" for each in (old, view))
        raise ValueError(f"tensor {shown(name)}: expected {expected} as in base, got {found}; {advice}")
    return old


class _Index(NamedTuple):
    """What the index of a version says.

    Attributes:
        encoding: of the differences; None if all tensors are there.
        checksum: the kind of checksums; None if there are none.
        base_version: None if all tensors are there.
        files: the names of the tensors in each file.
    """

    encoding: str | None
    checksum: str | None
    base_version: int | None
    files: dict[str, set[str]]


class _VersionTensor(NamedTuple):
    """A tensor of a version: where it is stored, what its content is to be, and what it is relative to."""

    stored: StoredFile
    entry: TensorEntry
    dtype: str
    shape: tuple[int, ...]
    checksum: str | None
    old: TensorView | None


def read_version(
    directory: str | os.PathLike[str],
    *,
    base: Mapping[str, Any] | None = None,
    base_version: int | None = None,
    framework: Framework = "np",
    threads: int | None = None,
) -> dict[str, Any]:
    """Read the tensors of a version that slime, miles or `write_version` has written.

    Nothing is returned unless every tensor has been read and has its checksum. `base` is not changed.

    Args:
        directory: the folder of the version, such as ``weights/weight_v000017``.
        base: the tensors of the version before, by name. It is not looked at if the version has all tensors.
        base_version: the number of that version, if you know it. Without it, only the tensors that changed are compared
            with the version, and nothing tells whether the others are right.
        framework: "np" for NumPy arrays, "pt" for torch tensors, or "bytes".
        threads: by default all usable cores.

    Returns:
        The new tensors by name: those that changed since `base`, or all.

    Raises:
        BaseMismatchError: there is no base, or another one than the version needs; or a shard is damaged so that
            nothing else tells.
        UnsupportedVersionError: the encoding, the compression or the kind of checksums is none that is known.
        FormatError: the version is damaged, or contradicts itself; all other classes.
        UnsupportedTensorError: the framework lacks a dtype.
        ImportError: the package zstandard is missing, or that of the checksums.
        FileNotFoundError: there is no index, so the version is not whole yet, or a shard is missing.
        ValueError: there is no such framework.
        OSError: a file cannot be read.
    """
    check_framework_name(framework)
    count = num_threads(threads)
    folder = absolute(directory)
    index = _read_index(folder)
    _check_base(folder, index, base, base_version)
    read = partial(_read, index=index, framework=framework)
    with ExitStack() as stack:
        tensors = []
        for file, names in index.files.items():
            stored = stack.enter_context(_open_shard(folder.joinpath(*file.split("/")), names))
            tensors += [_version_tensor(stored, entry, index, base) for entry in stored.header.entries]
        return dict(stack.enter_context(closing(mapped(read, tensors, count, "tensorwire-version"))))


def _read_index(folder: Path) -> _Index:
    with ErrorContext(file=folder / INDEX_NAME):
        index = load(read_index(folder / INDEX_NAME))
        files: dict[str, set[str]] = {}
        for name, file in weight_map(index).items():
            files.setdefault(file, set()).add(name)
        metadata = index.get("metadata", {})
        if not isinstance(metadata, dict):
            raise CorruptDataError(f"expected an object metadata in the index, got {type(metadata).__name__}")
        is_delta = "delta_encoding" in metadata
        encoding = base_version = kind = None
        if is_delta or "version" in metadata:
            number = _number(metadata, "version")
            _check_folder(folder, number)
        if is_delta:
            encoding = _known(metadata, "delta_encoding", ENCODINGS)
            _known(metadata, "compression_format", (COMPRESSION,))
            require_zstandard()
            base_version = _number(metadata, "base_version")
            if base_version >= number:
                raise CorruptDataError(f"expected a base_version below {number}, got {base_version}")
        if is_delta or "checksum_format" in metadata:
            kind = _known(metadata, "checksum_format", CHECKSUMS)
            require_checksum(kind)
        return _Index(encoding, kind, base_version, files)


def _check_folder(folder: Path, number: int) -> None:
    """Raise CorruptDataError if the folder is named as that of another version: a store may mix up two of them."""
    if number_of(folder.name) not in (None, number):
        raise CorruptDataError(f"expected the version of the folder {shown(folder.name)}, got {number}")


def _known(metadata: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    found = metadata.get(key)
    if found not in known:
        advice = "have it written anew with one of them"
        if found == "tensorwire":
            advice = "tensorwire.sync.Follower reads it, and tensorwire.load_file with base="
        raise UnsupportedVersionError(f"expected {key} {' or '.join(known)}, got {found!r:.60}", advice=advice)
    return str(found)


def _number(metadata: Mapping[str, Any], key: str) -> int:
    text = metadata.get(key)
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise CorruptDataError(f"expected a number in digits as {key}, got {text!r:.60}")
    return int(text)


def _check_base(folder: Path, index: _Index, base: object, base_version: int | None) -> None:
    """Raise BaseMismatchError if there is no base where one is needed, or it is said to be another one."""
    if index.encoding is None:
        return
    expected = f"expected version {index.base_version} as base"
    if base is None:
        raise BaseMismatchError(f"{expected}, got none", file=folder, advice="give its tensors by name: base=TENSORS")
    if base_version not in (None, index.base_version):
        raise BaseMismatchError(f"{expected}, got version {base_version}", file=folder)


def _open_shard(path: Path, names: set[str]) -> StoredFile:
    """A shard that holds the tensors that the index says it has."""
    stored = StoredFile(path)
    with ExitStack() as stack, ErrorContext(file=path):
        stack.callback(stored.close)
        if stored.compressed:
            raise UnsupportedVersionError(
                "expected a shard without frames of tensorwire, got one with frames",
                advice="tensorwire.load_file reads it",
            )
        found = {entry.name for entry in stored.header.entries}
        if found != names:
            one = shown(min(found ^ names))
            raise CorruptDataError(f"expected the tensors that the index names, and {one} is in one of both alone")
        stack.pop_all()
    return stored


def _version_tensor(
    stored: StoredFile, entry: TensorEntry, index: _Index, base: Mapping[str, Any] | None
) -> _VersionTensor:
    """What is known of a tensor before it is read."""
    with ErrorContext(file=stored.path, tensor=entry.name):
        expected = (stored.header.metadata or {}).get(entry.name)
        if index.checksum is not None and expected is None:
            raise CorruptDataError("expected a checksum in the header of the shard, got none")
        if index.encoding is None:
            return _VersionTensor(stored, entry, entry.dtype, entry.shape, expected, None)
        if entry.dtype != "U8" or len(entry.shape) != 1:
            raise CorruptDataError(f"expected differences as U8 in one dimension, got {entry.dtype} {entry.shape}")
        assert base is not None
        if entry.name not in base:
            raise BaseMismatchError(f"expected a base with this tensor, version {index.base_version}, got one without")
        old = tensor_view(base[entry.name])
        return _VersionTensor(stored, entry, old.dtype, old.shape, expected, old)


def _read(tensor: _VersionTensor, *, index: _Index, framework: Framework) -> tuple[str, Any]:
    """The name and the new content of a tensor."""
    with ErrorContext(file=tensor.stored.path, tensor=tensor.entry.name):
        data = new_buffer(tensor.entry.nbytes)
        tensor.stored.file.read_into(tensor.stored.header.data_start + tensor.entry.start, data)
        if tensor.old is not None:
            assert index.encoding is not None
            data = decode(index.encoding, data, tensor.old.data)
        if index.checksum is not None:
            _check(tensor, index, data)
        return tensor.entry.name, as_array(data, tensor.dtype, tensor.shape, framework)


def _check(tensor: _VersionTensor, index: _Index, content: memoryview) -> None:
    """Compare a tensor's new content with its checksum."""
    assert index.checksum is not None
    found = checksum(index.checksum, content)
    if found == tensor.checksum:
        return
    text = f"expected content with {index.checksum} {tensor.checksum}, got {found}"
    if tensor.old is None:
        raise CorruptDataError(text)
    if checksum(index.checksum, tensor.old.data) == tensor.checksum:
        text += "; the base has the content that was expected: the version was applied already"
    advice = f"give the tensors of version {index.base_version}; if that is what you gave, fetch the shard again"
    raise BaseMismatchError(text, advice=advice)
