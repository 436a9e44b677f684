"""Tensors of a checkpoint that stands somewhere, and tensors in memory, with their hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from math import prod
from typing import TYPE_CHECKING, Any

from ..checkpoint.directory.shards import find_shards
from ..codec import content_hash, dtype_bits, new_buffer, tensor_view
from ..files.header import check_given_name
from ..files.reader import StoredFile
from .versions import Tensor

if TYPE_CHECKING:
    from ..storage.locations import Location


def read_tensors(root: Location, threads: int) -> Iterator[tuple[str, Tensor, memoryview]]:
    """All tensors of a file or directory, plain or compressed, one after the other."""
    for place in find_shards(root).files:
        with closing(StoredFile(place)) as stored:
            for tensor in stored.tensors.values():
                dtype, shape, nbytes = stored.layout(tensor.name)
                data = new_buffer(nbytes)
                stored.read(tensor, 0, data, threads=threads)
                yield tensor.name, Tensor(dtype, shape, content_hash(data, threads=threads)), data


def copy_tensors(arrays: Mapping[str, Any], threads: int) -> Iterator[tuple[str, Tensor, memoryview]]:
    """Copies of arrays, one after the other."""
    for name, array in arrays.items():
        check_given_name(name)
        view = tensor_view(array)
        data = new_buffer(len(view.data))
        data[:] = view.data
        view.check_memory()
        yield name, Tensor(view.dtype, view.shape, content_hash(data, threads=threads)), data


def tensor_of(array: Any, threads: int) -> Tensor:
    """What an array holds."""
    view = tensor_view(array)
    found = Tensor(view.dtype, view.shape, content_hash(view.data, threads=threads))
    view.check_memory()
    return found


def nbytes_of(tensor: Tensor) -> int:
    return prod(tensor.shape) * dtype_bits(tensor.dtype) // 8
