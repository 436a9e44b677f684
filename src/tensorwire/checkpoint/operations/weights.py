"""What the weights of a model take in memory, dense and compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ErrorContext
from ...files.torch_file import open_stored
from ..directory.shards import find_shards, tensor_files
from .estimation import Candidate, sampled_share, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...codec import Profile
    from ...files.reader import StoredFile, StoredTensor
    from ...storage.locations import Location


@dataclass(frozen=True)
class Weights:
    """The weights of one model.

    Attributes:
        nbytes: of all tensors, dense.
        largest_nbytes: of the largest tensor, dense.
        stored: what all tensors take by profile, those included that stay plain; nothing if none is compressed. Loading
            compresses a tensor anew that is relative to one of another file, so it counts for what that one takes.
        compressed: whether they are compressed already, so that `stored` has the true size in the one profile that they
            have; else it has estimates from samples.
        dtype: the dtype that most bytes have.
    """

    nbytes: int
    largest_nbytes: int
    stored: dict[str, int]
    compressed: bool
    dtype: str


def weights_of(path: Location, profiles: Sequence[Profile], threads: int | None = None) -> Weights:
    """The weights of a file, or of a directory: the files of its index, or all safetensors files in it, or without one
    its torch files.

    Args:
        profiles: those to estimate if the files are plain.

    Raises:
        FormatError: the files are damaged.
        BaseMismatchError: a tensor is relative to another file of its directory, and that is not there.
        OSError: they cannot be read.
        ValueError: there are none, or they are a delta.
    """
    whole = not path.is_dir() or any(path.glob("*.safetensors"))
    files: Iterable[Location] = find_shards(path).files if whole else tensor_files(path).values()
    by_dtype: dict[str, int] = {}
    largest = stored_nbytes = 0
    plain: list[Candidate] = []
    compressed, profile = False, None
    for location in files:
        with open_stored(location) as stored, ErrorContext(file=location):
            if stored.base_name is not None:
                raise ValueError(f"{location} is a delta, and takes what its base makes of it: decompress it first")
            for tensor in stored.tensors.values():
                dtype, _, nbytes = stored.layout(tensor.name)
                by_dtype[dtype] = by_dtype.get(dtype, 0) + nbytes
                largest = max(largest, nbytes)
                stored_nbytes += _stored_nbytes(stored, tensor)
                if tensor.compressed and profile is None:
                    profile = stored.frame(tensor).info.profile
            compressed = compressed or stored.compressed
            if not stored.compressed:
                plain += tensors_of(stored)
    total = sum(by_dtype.values())
    if not total:
        raise ValueError(f"{path} holds no tensor that has any bytes")
    if compressed:
        sizes = {} if profile is None else {str(profile): stored_nbytes}
    else:
        sizes = {each: round(sampled_share(plain, each, threads).value * total) for each in profiles}
    return Weights(total, largest, sizes, compressed, max(by_dtype, key=lambda dtype: by_dtype[dtype]))


def _stored_nbytes(stored: StoredFile, tensor: StoredTensor) -> int:
    if stored.beside is None or not stored.is_relative(tensor):
        return tensor.entry.nbytes
    return stored.beside.end_nbytes(stored.link(tensor))
