"""A state dict as one file of torch.save, of which one tensor at a time is in memory."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from mmap import MADV_DONTNEED, mmap
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import CorruptDataError
from ...files.names import shown
from ...storage.local import InputFile
from ...storage.spool import SpoolFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import torch

    from ...storage.local import OutputFile
    from .distributed_tensors import Place, SavedTensor

_ALIGNMENT = 64
_TOUCHED_NBYTES = 64 << 20
_MAX_GAP = 1000
"""A list may lack so many values one behind the other: those that held nothing, which no planner notes."""


class Item(NamedTuple):
    """Something in a state dict.

    Attributes:
        place: the keys that lead to it, through dicts and lists.
        tensor: None for what is no tensor.
        make: gives the content of a tensor, or the value.
    """

    place: Place
    tensor: SavedTensor | None
    make: Callable[[], Any]


class _Spooled(NamedTuple):
    """Where the content of a tensor lies in the temporary file. Values may be tuples too."""

    begin: int
    nbytes: int
    tensor: SavedTensor


def write_state_dict(items: Iterable[Item], file: OutputFile, directory: Path, check: Callable[[int], object]) -> None:
    """Write what `torch.load` gives as nested dicts. Tensors pass through a temporary file in `directory`, which
    torch.save reads through a memory map. `check` is called with the size that the file is about to have; it may raise.

    Raises:
        CorruptDataError: places contradict each other.
        UnsupportedTensorError: a tensor has a dtype that this torch lacks.
    """
    import torch

    with closing(SpoolFile(directory)) as spool:
        values: list[tuple[Place, Any]] = []
        for place, tensor, make in items:
            if tensor is None:
                values.append((place, make()))
                continue
            begin = -(-spool.nbytes // _ALIGNMENT) * _ALIGNMENT
            content = make()
            spool.write(begin, content)
            values.append((place, _Spooled(begin, len(content), tensor)))
            del content
        memory = _mapped(spool)
        made = [(place, _tensor(memory, *value) if isinstance(value, _Spooled) else value) for place, value in values]
        appended = _Appended(file, memory, check)
        try:
            torch.save(_nested(made), appended)
        except Exception:
            if appended.error is not None:
                raise appended.error from None
            raise


def _mapped(spool: SpoolFile) -> mmap | None:
    if not spool.nbytes:
        return None
    with InputFile(spool.location) as file:
        return file.map


def _tensor(memory: mmap | None, begin: int, nbytes: int, tensor: SavedTensor) -> torch.Tensor:
    import torch

    dtype = getattr(torch, tensor.dtype)
    if not nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    assert memory is not None
    found = torch.frombuffer(memory, dtype=torch.uint8, offset=begin, count=nbytes)
    return found.view(dtype).view(tensor.shape)


class _Appended:
    """What torch.save writes to. Pages of the memory map that have been written are given back now and then.

    Attributes:
        error: what has kept it from writing. torch raises another one, which does not say so.
    """

    def __init__(self, file: OutputFile, memory: mmap | None, check: Callable[[int], object]) -> None:
        self._file, self._memory, self._check = file, memory, check
        self._touched = 0
        self.error: Exception | None = None

    def write(self, data: bytes) -> int:
        try:
            self._check(self._file.nbytes + len(data))
            self._file.write(self._file.nbytes, data)
        except Exception as error:
            self.error = error
            raise
        self._touched += len(data)
        if self._memory is not None and self._touched >= _TOUCHED_NBYTES:
            self._memory.madvise(MADV_DONTNEED)  # the temporary file has them
            self._touched = 0
        return len(data)

    def flush(self) -> None:
        """The caller syncs."""


def _nested(values: Iterable[tuple[Place, Any]]) -> dict[Any, Any]:
    root: dict[Any, Any] = {}
    for place, value in values:
        inner: Any = root
        for step, following in pairwise(place):
            inner = _put(inner, step, [] if type(following) is int else {}, keep=True)
        _put(inner, place[-1], value, keep=False)
    return root


def _put(inner: Any, step: str | int, value: Any, *, keep: bool) -> Any:
    """Put a value into a dict or list unless, with `keep`, there is one. Returns what is there then."""
    if isinstance(inner, dict):
        if not keep:
            inner[step] = value
        return inner.setdefault(step, value)
    if not isinstance(inner, list) or not isinstance(step, int) or not 0 <= step <= len(inner) + _MAX_GAP:
        raise CorruptDataError(f"expected places in a state dict that fit each other, got {shown(str(step))}")
    inner += [None] * (step + 1 - len(inner))
    if not keep or inner[step] is None:
        inner[step] = value
    return inner[step]
