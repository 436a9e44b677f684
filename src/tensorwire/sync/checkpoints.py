"""Tensors of a checkpoint that stands somewhere, and tensors in memory, with their hashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from .._ground.allocation import new_buffer
from ..checkpoint.directory.shards import find_shards
from ..codec import content_hash, tensor_view
from ..errors import ErrorContext
from ..files.beside import open_beside
from ..files.header import check_given_name
from ..files.names import shown
from .versions import Tensor

if TYPE_CHECKING:
    from ..storage.locations import Location


def read_tensors(root: Location, threads: int) -> Iterator[tuple[str, Tensor, memoryview]]:
    """All tensors of a file or directory, plain or compressed, one after the other."""
    for place in find_shards(root).files:
        with closing(open_beside(place)) as stored:
            for tensor in stored.tensors.values():
                dtype, shape, nbytes = stored.layout(tensor.name)
                data = new_buffer(nbytes)
                stored.read(tensor, 0, data, threads=threads)
                yield tensor.name, Tensor(dtype, shape, content_hash(data, threads=threads)), data


def named_pairs(named_tensors: Any) -> Iterator[tuple[str, Any]]:
    """The pairs of a mapping, or those that are given, one after the other.

    Raises:
        TypeError: it is neither, or a name is not a string.
        ValueError: a name comes twice: of two contents followers would get one, and "xor" undoes itself.
    """
    pairs = named_tensors.items() if hasattr(named_tensors, "items") else named_tensors
    if not isinstance(pairs, Iterable) or hasattr(pairs, "state_dict"):  # a model may be iterable
        advice = "; give its state_dict()" if hasattr(pairs, "state_dict") else ""
        raise TypeError(f"expected a mapping of names to tensors, or such pairs, got {type(pairs).__name__}{advice}")
    seen = set()
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"expected pairs of a name and a tensor, got {type(pair).__name__}")
        name, tensor = pair
        check_given_name(name)
        if name in seen:
            raise ValueError(f"expected each tensor once, got {shown(name)} twice")
        seen.add(name)
        yield name, tensor


def tensor_of(name: str, array: Any, threads: int) -> Tensor:
    """What an array holds; `name` is for errors."""
    with ErrorContext(tensor=name):
        view = tensor_view(array)
        found = Tensor(view.dtype, view.shape, content_hash(view.data, threads=threads))
        view.check_memory()
        return found
