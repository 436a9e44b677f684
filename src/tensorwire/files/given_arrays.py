"""Tensors that a caller gives as arrays: all of them, or callables that make one after the other."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codec import check_dtype_name, dtype_bits, shape_sizes, tensor_view
from ..errors import ErrorContext
from ..storage.pipeline import WINDOW_NBYTES
from .header import TensorEntry, build_header, check_dtype, check_given_name
from .names import shown

if TYPE_CHECKING:
    from ..codec import TensorView

    Item = tuple[str, str, Sequence[int], Callable[[], Any]]


class Arrays:
    """Arrays by name. Their memory is looked at before each use, and once more when all is done: see `check`.

    Attributes:
        entries: in the order in which they were given; their offsets are those of one behind the other.
        view: the bytes of an array by its index.
    """

    def __init__(
        self,
        entries: Sequence[TensorEntry],
        view: Callable[[int], TensorView],
        alive: Callable[[], Iterable[tuple[int, TensorView]]],
    ) -> None:
        """`alive` gives the arrays that were not forgotten since they were used, by their indices."""
        self.entries = entries
        self.view = view
        self._alive = alive

    def windows(self, index: int) -> Iterator[tuple[int, memoryview]]:
        """All content of an array: where each window begins, and its bytes.

        Raises:
            BufferError: the memory was freed, moved or cut.
        """
        view = self.view(index)
        for start in range(0, len(view.data) or 1, WINDOW_NBYTES):
            _check_memory(self.entries[index], view)
            yield start, view.data[start : start + WINDOW_NBYTES]

    def read(self, index: int, start: int, out: memoryview) -> None:
        """Put content of an array from byte `start` on into `out`; errors are those of `windows`."""
        view = self.view(index)
        _check_memory(self.entries[index], view)
        out[:] = view.data[start : start + len(out)]

    def check(self) -> None:
        """Raise BufferError if memory was freed, moved or cut: what was read last may have been read after that."""
        for index, view in self._alive():
            _check_memory(self.entries[index], view)


def _check_memory(entry: TensorEntry, view: TensorView) -> None:
    try:
        view.check_memory()
    except BufferError as error:
        raise BufferError(f"tensor {shown(entry.name)}: {error}") from None


def given_arrays(tensors: Any) -> Arrays:
    """The arrays of a mapping, or those that are made when they are needed: see `_made_arrays`.

    Raises:
        TypeError: it is neither; otherwise as both do.
        UnsupportedTensorError: safetensors lacks a dtype.
    """
    if hasattr(tensors, "items"):
        arrays = held_arrays(tensors)
    elif isinstance(tensors, Iterable):
        arrays = _made_arrays(tensors)
    else:
        raise _no_tensors(tensors)
    for entry in arrays.entries:
        with ErrorContext(tensor=entry.name):
            check_dtype(entry.dtype)
    return arrays


def _no_tensors(found: object) -> TypeError:
    return TypeError(
        "expected a mapping of names to tensors, or (name, dtype, shape, callable) for each of them, got "
        f"{type(found).__name__}; of a module give its state_dict()"
    )


def held_arrays(tensors: Mapping[str, Any]) -> Arrays:
    """The arrays of a mapping. What is not contiguous is copied.

    Raises:
        UnsupportedTensorError: one is no array, or has a device, layout or dtype that cannot be stored.
        TypeError, ValueError: a name is none for a tensor.
    """
    entries: list[TensorEntry] = []
    views = []
    for name, tensor in tensors.items():
        check_given_name(name)
        with ErrorContext(tensor=name):
            view = tensor_view(tensor)
        views.append(view)
        entries.append(_entry(entries, name, view.dtype, view.shape, len(view.data)))
    return Arrays(entries, views.__getitem__, lambda: enumerate(views))


def _made_arrays(items: Iterable[Item]) -> Arrays:
    """Arrays that are made when they are needed, and forgotten before the next one is made.

    Args:
        items: name, dtype, shape, and what makes the array. It makes the same one each time that it is called.

    Raises:
        TypeError, ValueError: something is no such item, a name is there twice or none for a tensor, or there is no
            such dtype or shape. A callable that makes another array raises ValueError later.
    """
    entries: list[TensorEntry] = []
    names: set[str] = set()
    makers = []
    for item in items:
        if not isinstance(item, tuple) or len(item) != 4:
            raise _no_tensors(item)
        name, dtype, shape, make = item
        check_given_name(name)
        if not callable(make):
            raise TypeError(
                f"tensor {shown(name)}: expected a callable that gives the array, got {type(make).__name__}; "
                "give lambda: array, or a mapping of names to arrays"
            )
        if name in names:
            raise ValueError(f"expected unique names, got {shown(name)} twice")
        names.add(name)
        makers.append(make)
        entries.append(_entry(entries, name, dtype, *_layout(name, dtype, shape)))
    made = _OneAtATime(entries, makers)
    return Arrays(entries, made.view, made.alive)


class _OneAtATime:
    """The bytes of the array that was made last."""

    def __init__(self, entries: Sequence[TensorEntry], makers: Sequence[Callable[[], Any]]) -> None:
        self._entries = entries
        self._makers = makers
        self._made: tuple[int, TensorView] | None = None

    def view(self, index: int) -> TensorView:
        if self._made is None or self._made[0] != index:
            self._forget()  # before the next one takes memory
            self._made = index, self._make(index)
        return self._made[1]

    def alive(self) -> list[tuple[int, TensorView]]:
        return [] if self._made is None else [self._made]

    def _forget(self) -> None:
        for index, view in self.alive():
            _check_memory(self._entries[index], view)
        self._made = None

    def _make(self, index: int) -> TensorView:
        name, dtype, shape, _, _ = self._entries[index]
        with ErrorContext(tensor=name):
            view = tensor_view(_call(self._makers[index], name))
        if (view.dtype, view.shape) != (dtype, shape):
            raise ValueError(
                f"tensor {shown(name)}: expected its callable to give an array of {dtype} {shape}, as was said before, "
                f"got {view.dtype} {view.shape}"
            )
        return view


def _call(make: Callable[[], Any], name: str) -> Any:
    """The array of a tensor. What its callable raises says for which tensor, where Python has notes."""
    try:
        array = make()
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"raised by the callable of tensor {shown(name)}")
        raise
    if array is None:
        raise TypeError(f"tensor {shown(name)}: expected its callable to return an array, got None")
    return array


def _layout(name: str, dtype: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The shape as a tuple, and the size in bytes."""
    try:
        sizes, bits = shape_sizes(shape), dtype_bits(check_dtype_name(dtype))
    except (TypeError, ValueError) as error:
        raise type(error)(f"tensor {shown(name)}: {error}") from None
    if not bits or any(size < 0 for size in sizes) or prod(sizes) * bits % 8:
        hint = "" if bits else f"; safetensors has no dtype {dtype}: store the bytes as U8, or a frame with compress"
        raise ValueError(f"tensor {shown(name)}: expected a dtype and shape of whole bytes, got {dtype} {sizes}{hint}")
    return sizes, prod(sizes) * bits // 8


def _entry(entries: Sequence[TensorEntry], name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> TensorEntry:
    """The entry behind those that are there."""
    start = entries[-1].stop if entries else 0
    return TensorEntry(name, dtype, shape, start, start + nbytes)


class ArrayFile:
    """The arrays of a mapping as a `Readable`: the safetensors file that they would be. Nothing is copied before it is
    read, and nothing tells whether an array was written to."""

    path = Path("the mapping given as base")

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._arrays = held_arrays(tensors)
        header = build_header(None, self._arrays.entries)
        self._prefix = header.prefix
        self._starts = [header.data_start + entry.start for entry in header.entries]
        self.nbytes = header.data_start + header.data_nbytes

    @property
    def identity(self) -> list[int]:
        return [self.nbytes]

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the header: what else is read this way belongs to frames, and there are none."""
        return self._prefix[offset : offset + nbytes]

    def read_into(self, offset: int, out: memoryview) -> None:
        """Content of one array."""
        index = bisect_right(self._starts, offset) - 1
        self._arrays.read(index, offset - self._starts[index], out)

    def read_ahead(self, offset: int, nbytes: int) -> None: ...

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None: ...

    def check_size(self) -> None: ...

    def check_unchanged(self) -> None: ...

    def close(self) -> None: ...
