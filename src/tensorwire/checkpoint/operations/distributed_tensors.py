"""The tensors of a distributed checkpoint, each put together of the parts that ranks have saved."""

from __future__ import annotations

import io
import re
from collections import Counter
from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy

from ..._ground.copies import not_copied
from ..._ground.packages import require
from ...codec import FROM_TORCH, dtype_bits
from ...errors import (
    CorruptDataError,
    ErrorContext,
    LimitExceededError,
    TensorwireError,
    TruncatedDataError,
    UnsupportedTensorError,
)
from ...files.loader import load_contents
from ...files.names import shown
from ...files.torch_file import check_members
from ...storage.inputs import open_input
from ..directory import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...files.base import Base
    from ...files.reader import StoredFile, StoredTensor
    from ...storage.inputs import Opened
    from ...storage.locations import Location

Key: TypeAlias = tuple[str, tuple[int, ...] | None]
"""A part: the name of its tensor and where it begins in that; None for a value that is no tensor."""
Place: TypeAlias = tuple[str | int, ...]
"""The keys of dicts and the indices of lists that lead to something in a state dict."""

MAX_NAMED = 16
"""How many times as large as a file of torch's all parts in it may be together. Any number of names may stand for one
range of bytes, as those of tied tensors may, so nothing but the file bounds what its metadata can claim."""

_SHOWN = 8
"""So many names of a checkpoint stand in an error."""
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "V16"}
_REFUSED_GLOBAL = re.compile(r"GLOBAL (\S+) was not an allowed global")


class SavedTensor(NamedTuple):
    """What the metadata says of a tensor.

    Attributes:
        dtype: as torch has it.
        parts: where each begins, and its shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element of torch's.

        Raises:
            UnsupportedTensorError: it is of a dtype that no file of ours has.
        """
        bits = dtype_bits(FROM_TORCH.get(self.dtype, ""))
        if not bits:
            raise UnsupportedTensorError(f"expected a dtype that frames have, got {self.dtype}", tensor=self.name)
        return max(8, bits) // 8  # FP4: two in a byte, which is an element of torch's

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize


class _Parts(Protocol):
    """Where parts are read from. One thread at a time."""

    def expect(self, keys: Iterable[Key]) -> None:
        """They will be read, in this order."""

    def stored_nbytes(self, key: Key) -> int:
        """What a part takes in its file."""

    def value_nbytes(self, key: Key) -> int:
        """What is read of a value."""

    def is_compressed(self, key: Key) -> bool: ...

    def check(self, key: Key, nbytes: int) -> None:
        """Raise CorruptDataError for a part that cannot have so many bytes, before memory is taken for all of them."""

    def read(self, key: Key, nbytes: int | None) -> memoryview:
        """The content of a part, which has so many bytes; of a value None."""


class DistributedTensors:
    """An open distributed checkpoint, of our writer or of torch's FileSystemWriter.

    Attributes:
        names: of all that it holds, in the order of the metadata.
        tensors: by name; what has no entry is no tensor.
        places: by name the keys that lead to it in the state dict, as far as the planner has noted them.
        files: those that hold the parts.
    """

    __reduce_ex__ = not_copied("open files", "open it again by its path")

    def __init__(self, folder: Location, key: str | None, base: Base | None, threads: int) -> None:
        """`key`: names that do not begin with it and a dot count for nothing.

        Raises:
            FileNotFoundError: there is no checkpoint, or a file of it is missing.
            FormatError: it is damaged, or contradicts itself.
            ValueError: no name begins with the key.
            ImportError: torch's writer has made it, and there is no torch.
        """
        body = distributed.read_any(folder)
        state_dict: dict[str, Any] = body["state_dict"]
        self.names = [name for name in state_dict if key is None or name.startswith(f"{key}.")]
        if not self.names:
            tops = sorted({name.partition(".")[0] for name in state_dict})
            begin = f"; names begin with {', '.join(map(shown, tops[:_SHOWN]))}" if tops else ""
            raise ValueError(f"{folder} holds nothing" + ("" if key is None else f" below the key {shown(key)}{begin}"))
        self.tensors = {
            name: SavedTensor(
                name,
                str(state_dict[name]["dtype"]),
                tuple(state_dict[name]["size"]),
                tuple((tuple(begin), tuple(sizes)) for begin, sizes in state_dict[name]["chunks"]),
            )
            for name in self.names
            if state_dict[name] is not None
        }
        planner = body["planner"] if isinstance(body["planner"], dict) else {}
        self.places: dict[str, Place] = {
            name: place
            for name, place in planner.items()
            if isinstance(place, tuple) and place and all(isinstance(step, (str, int)) for step in place)
        }
        wanted = set(self.names)
        places = {
            (name, None if begin is None else tuple(begin)): (file, part)
            for name, begin, file, part in body["storage"]
            if name in wanted
        }
        self.files = [folder / name for name in dict.fromkeys(file for file, _ in places.values())]
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._parts: _Parts
            if body["files"] is None:
                require("torch", (2, 5), "what torch's FileSystemWriter has written is read with PyTorch")
                self._parts = _PartsOfTorch(folder, places, stack)
            else:
                self._parts = _Frames(folder, places, body["files"], base, threads, stack)
            self._stack = stack.pop_all()

    def keys(self, name: str) -> list[Key]:
        """The parts that hold anything of it."""
        tensor = self.tensors.get(name)
        return [(name, None)] if tensor is None else [(name, begin) for begin, sizes in tensor.parts if prod(sizes)]

    def expect(self, names: Iterable[str]) -> None:
        """These will be read, in this order."""
        self._parts.expect(key for name in names for key in self.keys(name))

    def stored_nbytes(self, name: str) -> int:
        """What it takes in the files."""
        return sum(map(self._parts.stored_nbytes, self.keys(name)))

    def value_nbytes(self, name: str) -> int:
        """What is read of a value that is no tensor."""
        return self._parts.value_nbytes((name, None))

    def is_compressed(self, name: str) -> bool:
        return any(map(self._parts.is_compressed, self.keys(name)))

    def content(self, name: str) -> memoryview:
        """The bytes of a whole tensor, in memory of their own.

        Raises:
            FormatError: the data is damaged.
            BaseMismatchError: a part is relative, and there is no base, or one with another content.
            OSError: reading fails.
        """
        tensor = self.tensors[name]
        with ErrorContext(tensor=name):
            parts = [part for part in tensor.parts if prod(part[1])]
            if len(parts) == 1:
                return self._parts.read((name, parts[0][0]), tensor.nbytes)
            word = numpy.dtype(_WORDS[tensor.itemsize])
            for begin, sizes in parts:
                self._parts.check((name, begin), prod(sizes) * tensor.itemsize)
            whole = numpy.zeros(tensor.shape, word)
            for begin, sizes in parts:
                found = self._parts.read((name, begin), prod(sizes) * tensor.itemsize)
                box = tuple(slice(start, start + size) for start, size in zip(begin, sizes, strict=True))
                whole[box] = numpy.frombuffer(found, word).reshape(sizes)
        return memoryview(whole.reshape(-1).view("u1"))  # type: ignore[arg-type]

    def value(self, name: str) -> Any:
        """What is no tensor, by torch's loader, which makes nothing but plain data of it.

        Raises:
            ValueError: torch would have to import or call something for it.
        """
        data = bytes(self._parts.read((name, None), None))
        try:
            return _torch_load(data)
        except Exception as error:
            found = _REFUSED_GLOBAL.search(str(error))
            why = f"names {found[1]}" if found else f"is not what torch.save writes: {_line(error)}"
            raise ValueError(
                f"{shown(name)} {why}, which torch's weights_only loader does not take; choose what else there is by "
                "key (--key), or, if you trust the checkpoint, call convert_checkpoint within "
                "torch.serialization.safe_globals([...])"
            ) from None

    def close(self) -> None:
        self._stack.close()


class _Frames:
    """The files of our writer."""

    def __init__(
        self,
        folder: Location,
        places: dict[Key, tuple[str, Any]],
        checksums: dict[str, str],
        base: Base | None,
        threads: int,
        stack: ExitStack,
    ) -> None:
        self._threads = threads
        opened: dict[str, StoredFile] = {}
        for name in dict.fromkeys(file for file, _ in places.values()):
            opened[name] = stack.enter_context(distributed.open_shard(folder / name, checksums[name]))
            opened[name].use_base(base, name)
        self._places: dict[Key, tuple[StoredFile, StoredTensor]] = {}
        for key, (file, entry) in places.items():
            found = opened[file].tensors.get(entry)
            if found is None:
                text = f"expected {shown(entry)} in the file that the metadata names"
                raise CorruptDataError(text, file=opened[file].path, tensor=key[0])
            self._places[key] = opened[file], found

    def expect(self, keys: Iterable[Key]) -> None:
        wanted: dict[int, tuple[StoredFile, list[StoredTensor]]] = {}
        for key in keys:
            stored, tensor = self._places[key]
            wanted.setdefault(id(stored), (stored, []))[1].append(tensor)
        for stored, tensors in wanted.values():
            stored.expect(tensors)

    def stored_nbytes(self, key: Key) -> int:
        return self._places[key][1].entry.nbytes

    def value_nbytes(self, key: Key) -> int:
        stored, tensor = self._places[key]
        return stored.layout(tensor.name)[2]

    def is_compressed(self, key: Key) -> bool:
        return self._places[key][1].compressed

    def check(self, key: Key, nbytes: int) -> None:
        stored, tensor = self._places[key]
        found = stored.layout(tensor.name)[2]
        if nbytes != found:
            raise CorruptDataError(f"expected a part of {nbytes} bytes, got {found}", file=stored.path)

    def read(self, key: Key, nbytes: int | None) -> memoryview:
        stored, tensor = self._places[key]
        if nbytes is not None:
            self.check(key, nbytes)
        found = stored.layout(tensor.name)[2]
        try:
            return load_contents(stored, [tensor], [found], self._threads, verify=True)[0]
        finally:
            stored.forget(tensor)


class _PartsOfTorch:
    """The files of torch's FileSystemWriter: one file of torch.save behind the other."""

    def __init__(self, folder: Location, places: dict[Key, tuple[str, Any]], stack: ExitStack) -> None:
        self._files: dict[str, Opened] = {}
        for name in dict.fromkeys(file for file, _ in places.values()):
            self._files[name] = _opened(folder / name)
            stack.callback(self._files[name].close)
        self._places = places
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Raises TruncatedDataError or LimitExceededError for parts that a file is too small for."""
        named: Counter[str] = Counter()
        for (name, _), (file, (start, nbytes)) in self._places.items():
            named[file] += nbytes
            opened = self._files[file]
            if start + nbytes > opened.nbytes:
                text = f"expected a file of at least {start + nbytes} bytes, got {opened.nbytes}"
                raise TruncatedDataError(text, file=opened.path, byte=opened.nbytes)
            if named[file] > MAX_NAMED * opened.nbytes:
                raise LimitExceededError(
                    f"expected parts of at most {MAX_NAMED} times the {opened.nbytes} bytes of the file, "
                    f"got {named[file]} bytes or more",
                    file=opened.path,
                    tensor=name,
                    advice=f"copy the file again; if this is all of it, {distributed.PICKLE_NAME} is forged",
                )

    def expect(self, keys: Iterable[Key]) -> None:
        wanted: dict[str, list[tuple[int, int]]] = {}
        for key in keys:
            file, (start, nbytes) = self._places[key]
            wanted.setdefault(file, []).append((start, start + nbytes))
        for file, ranges in wanted.items():
            self._files[file].expect(ranges)

    def stored_nbytes(self, key: Key) -> int:
        return int(self._places[key][1][1])

    value_nbytes = stored_nbytes

    def is_compressed(self, key: Key) -> bool:
        return False

    def check(self, key: Key, nbytes: int) -> None:
        file, (_, length) = self._places[key]
        if nbytes > length:
            path = self._files[file].path
            raise CorruptDataError(f"expected a part of {nbytes} bytes, got one in {length}", file=path)

    def read(self, key: Key, nbytes: int | None) -> memoryview:
        file, (start, length) = self._places[key]
        self.check(key, nbytes or 0)
        with ErrorContext(file=self._files[file].path):
            data = self._files[file].read(start, length)
            return memoryview(data) if nbytes is None else _content(data, nbytes)


def _opened(place: Location) -> Opened:
    try:
        return open_input(place)
    except FileNotFoundError:
        raise distributed.missing(place, distributed.PICKLE_NAME) from None


def _content(data: bytes, nbytes: int) -> memoryview:
    """The content of a tensor of so many bytes, out of what torch.save has written of it."""
    import torch

    try:
        tensor = _torch_load(data)
    except Exception as error:  # of a damaged file torch raises any
        raise CorruptDataError(f"expected a tensor as torch.save writes it: {_line(error)}") from None
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        raise CorruptDataError(f"expected a dense tensor, got {type(tensor).__name__}")
    if tensor.nbytes != nbytes or tensor.untyped_storage().nbytes() < nbytes:  # one that repeats itself takes more
        raise CorruptDataError(f"expected a part of {nbytes} bytes, got {tensor.nbytes}")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return memoryview(dense.reshape(-1).view(torch.uint8).numpy())


def _line(error: Exception) -> str:
    """The first line of what torch says, or what we do."""
    text = error.message if isinstance(error, TensorwireError) else str(error)
    return f"{text.partition(chr(10))[0]:.200}"


def _torch_load(data: bytes) -> Any:
    import torch

    check_members(data)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
